package flow

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// Guesses counts the wrong passwords for an address, whether or not it has an account. A try is checked twice: before
// the hash, which an empty bucket saves, and by the statement that follows it, which decides. So parallel guesses learn
// no more than the bucket holds, and beyond that right and wrong ones get the same answer.
type Guesses struct {
	Address string
	// limit is the account's bucket, or that of the place where it is known.
	limit, Account store.Limit
	Place          store.Place
	note           store.Limit // pause between two audit rows about the address, so that guesses cannot fill the log
	off            bool
}

// PasswordGuesses returns the guesses at the password of an address.
func PasswordGuesses(f *Flow, aud, who string) Guesses {
	n := f.Settings.Passwords.TriesPerAccount
	g := Guesses{Address: who, note: store.NewInterval(f.LimitKey("password note", who), time.Minute), off: n <= 0}
	n = max(n, 1) // off: counted by the same statements, and not checked
	g.limit = store.Limit{Key: f.LimitKey("password", aud, who), Size: float64(n),
		Refill: time.Duration(n) * time.Minute}
	g.Account = g.limit
	g.Place = placeTries(f, g.limit, "password place", aud, who)
	return g
}

// ConsoleGuesses are those at the admin console: a bucket of its own, which guesses at the public port do not empty.
func ConsoleGuesses(f *Flow, aud, who string) Guesses {
	g := PasswordGuesses(f, aud, who)
	g.limit.Key = f.LimitKey("console password", aud, who)
	g.Account = g.limit
	return g
}

// Check refuses a try that the bucket does not have: that of the place, if the user has signed in from there before.
func (g *Guesses) Check(f *Flow, tried store.Tried) error {
	v := tried.Tries
	if g.limit = g.Account; tried.PlaceKnown {
		g.limit, v = g.Place.Tries, tried.PlaceTries
	}
	if wait := g.limit.Wait(v, f.Now, 1); wait > 0 && !g.off {
		return tooManyPasswords(wait)
	}
	return nil
}

// tooManyPasswords is the same answer for known and unknown addresses.
func tooManyPasswords(wait time.Duration) *refusal.Refusal {
	return refusal.Limited(refusal.CodeOverRequestRate,
		"Too many wrong passwords for this address. Wait, or sign in with a link or a code.", wait)
}

// LimitToCheck returns the bucket that a statement checks; without a key where tries are not limited.
func (g *Guesses) LimitToCheck() store.Limit {
	if g.off {
		return store.Limit{}
	}
	return g.limit
}

// RefusalOf turns the error of a statement that found the bucket empty into the refusal. The bucket's level is not
// known then; refilling a whole try takes no longer than this.
func (g *Guesses) RefusalOf(err error) error {
	if over, ok := errors.AsType[*store.LimitError](err); ok {
		return tooManyPasswords(over.Limit.Refill / time.Duration(over.Limit.Size))
	}
	return err
}

// CountWrong takes a try for a wrong password, and returns answer.
func (g *Guesses) CountWrong(ctx context.Context, f *Flow, user uuid.UUID, reason string, answer error) error {
	err := f.Core.DB.FailedPassword(ctx, g.failed(f, g.limit, user, reason))
	if _, over := errors.AsType[*store.LimitError](err); over && g.off {
		err = nil
	}
	if err != nil {
		return refusal.Failure("failed password", g.RefusalOf(err))
	}
	return answer
}

// RecordRefused records a try that failed although the password was right.
func (g *Guesses) RecordRefused(ctx context.Context, f *Flow, user uuid.UUID, r *refusal.Refusal) error {
	if err := f.Core.DB.RefusedPassword(ctx, g.failed(f, g.LimitToCheck(), user, r.Code)); err != nil {
		return refusal.Failure("refused sign-in", g.RefusalOf(err))
	}
	return r
}

func (g *Guesses) failed(f *Flow, limit store.Limit, user uuid.UUID, reason string) store.FailedPassword {
	return store.FailedPassword{
		Tries: limit, Now: f.Now, Note: g.note,
		Audit: f.Audit(store.ActionLoginFailed, user, uuid.Nil, "reason", reason),
	}
}

// RecordRejected records a try that the hook rejected, and counts it if the password was wrong.
func (g *Guesses) RecordRejected(ctx context.Context, f *Flow, user uuid.UUID, right bool, why error) error {
	r, ok := errors.AsType[*refusal.Refusal](why)
	switch {
	case !ok:
		return refusal.Failure("hook of passwords", why)
	case right:
		return g.RecordRefused(ctx, f, user, r)
	}
	return g.CountWrong(ctx, f, user, "password", r)
}

// CodeTries returns the bucket of wrong digits for an address, whether or not any were sent to it; without a key where
// they are not limited. name separates callers that hold different locks when the try is taken.
func CodeTries(f *Flow, name, aud, who string) (store.Limit, store.Place) {
	n := f.Settings.CodesPerAccount
	if n <= 0 {
		return store.Limit{}, store.Place{}
	}
	limit := store.Limit{Key: f.LimitKey(name, aud, who), Size: float64(n), Refill: 3 * time.Duration(n) * time.Minute}
	return limit, placeTries(f, limit, name+" place", aud, who)
}

// TooManyCodes is the answer to digits, right or wrong, for which there is no try left; err, if it is another error.
func TooManyCodes(err error) error {
	if over, ok := errors.AsType[*store.LimitError](err); ok {
		return refusal.Limited(refusal.CodeOverRequestRate, "Too many wrong codes for this address. Wait; links still work.",
			over.Limit.Refill/time.Duration(over.Limit.Size))
	}
	return err
}

// PlaceLife is how long a place that a user signed in from stays known.
const PlaceLife = 90 * 24 * time.Hour

// place returns the part of the network that the client's address is in: an IPv4 /24, an IPv6 /64, from which providers
// assign the next address to the same home. "" if the address is unknown.
func (req RequestInfo) place() string {
	if ip, err := netip.ParseAddr(req.Network); err == nil && ip.Is4() {
		return netip.PrefixFrom(ip, 24).Masked().String()
	}
	if p, err := netip.ParsePrefix(req.Network); err == nil {
		return p.String()
	}
	return ""
}

// PlaceMAC returns the MAC of the client's place, nil if places are not used or this one is not known.
func PlaceMAC(f *Flow) []byte {
	where := f.Req.place()
	if where == "" || !f.Settings.KnownPlaces {
		return nil
	}
	return f.Core.Root.MAC(secret.Limits, "place", where)
}

// placeTries returns the bucket, of the same size as like, for guesses about an address from the client's place.
func placeTries(f *Flow, like store.Limit, name ...string) store.Place {
	p := store.Place{MAC: PlaceMAC(f), Since: f.Now.Add(-PlaceLife), Tries: like}
	if p.MAC != nil {
		p.Tries.Key = f.LimitKey(append(name, f.Req.place())...)
	}
	return p
}

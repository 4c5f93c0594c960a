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

// Guesses counts the wrong passwords for an address, whether or not it has an account, in a bucket of tries. The bucket
// is checked twice: before the password is hashed, which is skipped if the bucket is empty, and by the statement after
// the hash, which decides. So parallel guesses get no more tries than the bucket holds. Once it is empty, right and
// wrong passwords get the same answer.
type Guesses struct {
	Address string
	// limit is the bucket that the guess counts in: Account or, if the user has signed in from the client's network
	// before, the bucket of that network, Place.Tries.
	limit, Account store.Limit
	Place          store.Place
	note           store.Limit // limits audit rows about the address to one a minute
	off            bool
}

// PasswordGuesses returns the Guesses for the password of a user of the audience aud; who is the user's e-mail address
// or phone number.
func PasswordGuesses(f *Flow, aud, who string) Guesses {
	n := f.Settings.Passwords.TriesPerAccount
	g := Guesses{Address: who, note: store.NewInterval(f.LimitKey("password note", who), time.Minute), off: n <= 0}
	n = max(n, 1) // switched off: the same statements count, but nothing is checked
	g.limit = store.Limit{Key: f.LimitKey("password", aud, who), Size: float64(n),
		Refill: time.Duration(n) * time.Minute}
	g.Account = g.limit
	g.Place = placeTries(f, g.limit, "password place", aud, who)
	return g
}

// ConsoleGuesses returns the Guesses for a sign-in to the admin console. It has a bucket of its own, so that guesses at
// the public port do not lock administrators out.
func ConsoleGuesses(f *Flow, aud, who string) Guesses {
	g := PasswordGuesses(f, aud, who)
	g.limit.Key = f.LimitKey("console password", aud, who)
	g.Account = g.limit
	return g
}

// Check returns a refusal if the bucket is empty; tried has the levels read from the database. If the user has signed
// in from the client's network before, Check uses that network's bucket instead of the account's.
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

// tooManyPasswords returns the refusal of every password once the bucket of tries is empty. It is the same for known
// and unknown addresses.
func tooManyPasswords(wait time.Duration) *refusal.Refusal {
	return refusal.Limited(refusal.CodeOverRequestRate,
		"Too many wrong passwords for this address. Wait, or sign in with a link or a code.", wait)
}

// LimitToCheck returns the bucket that a sign-in's statement checks. It has no key, so that nothing is checked, if
// tries are not limited.
func (g *Guesses) LimitToCheck() store.Limit {
	if g.off {
		return store.Limit{}
	}
	return g.limit
}

// RefusalOf converts the error of a statement that found the bucket empty to a refusal, and returns other errors
// unchanged. The statement does not return the bucket's level, so the refusal names the longest possible wait: the time
// in which one try is refilled.
func (g *Guesses) RefusalOf(err error) error {
	if over, ok := errors.AsType[*store.LimitError](err); ok {
		return tooManyPasswords(over.Limit.Refill / time.Duration(over.Limit.Size))
	}
	return err
}

// CountWrong counts a wrong password against the bucket of tries and writes an audit row with the given reason. It
// returns the error answer or, if the bucket was empty, a refusal.
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

// RecordRefused writes an audit row about a sign-in that was refused with r although the password was right. It uses up
// no try, and returns r.
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

// RecordRejected records a sign-in that the operator's hook of passwords rejected; why is the refusal. It takes a try
// only if the password was wrong.
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

// CodeTries returns the bucket of wrong one-time codes for an address, whether or not a code was sent to it, and the
// bucket of its guesses from the client's network; who is the e-mail address or phone number. Both buckets are zero if
// wrong codes are not limited. Callers that lock different rows before they take a try must pass different values of
// name: they get separate buckets, and so cannot deadlock.
func CodeTries(f *Flow, name, aud, who string) (store.Limit, store.Place) {
	n := f.Settings.CodesPerAccount
	if n <= 0 {
		return store.Limit{}, store.Place{}
	}
	limit := store.Limit{Key: f.LimitKey(name, aud, who), Size: float64(n), Refill: 3 * time.Duration(n) * time.Minute}
	return limit, placeTries(f, limit, name+" place", aud, who)
}

// TooManyCodes converts a LimitError, the error of a statement that found no try left, to the refusal of a one-time
// code, right or wrong. It returns other errors unchanged.
func TooManyCodes(err error) error {
	if over, ok := errors.AsType[*store.LimitError](err); ok {
		return refusal.Limited(refusal.CodeOverRequestRate, "Too many wrong codes for this address. Wait; links still work.",
			over.Limit.Refill/time.Duration(over.Limit.Size))
	}
	return err
}

// PlaceLife is how long the service remembers the network (the place) that a user signed in from.
const PlaceLife = 90 * 24 * time.Hour

// place returns the network of the client's address: its IPv4 /24, since providers often assign a household's next
// address from the same network, or its IPv6 /64. It returns "" if the address is unknown.
func (req RequestInfo) place() string {
	if ip, err := netip.ParseAddr(req.Network); err == nil && ip.Is4() {
		return netip.PrefixFrom(ip, 24).Masked().String()
	}
	if p, err := netip.ParsePrefix(req.Network); err == nil {
		return p.String()
	}
	return ""
}

// PlaceMAC returns a MAC of the network that the client is in, by which the network is stored; nil if known places are
// switched off or the client's address is unknown.
func PlaceMAC(f *Flow) []byte {
	where := f.Req.place()
	if where == "" || !f.Settings.KnownPlaces {
		return nil
	}
	return f.Core.Root.MAC(secret.Limits, "place", where)
}

// placeTries returns the bucket for guesses from the network that the client is in. The bucket has the size and refill
// of the limit in the parameter like. Its key is made of the network and the strings in name, which say what is
// guessed.
func placeTries(f *Flow, like store.Limit, name ...string) store.Place {
	p := store.Place{MAC: PlaceMAC(f), Since: f.Now.Add(-PlaceLife), Tries: like}
	if p.MAC != nil {
		p.Tries.Key = f.LimitKey(append(name, f.Req.place())...)
	}
	return p
}

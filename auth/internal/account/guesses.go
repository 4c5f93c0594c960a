package account

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// guesses counts the wrong passwords for an address, whether or not it has an account. A try is checked twice: before
// the hash, which an empty bucket saves, and by the statement that follows it, which decides. So parallel guesses learn
// no more than the bucket holds, and beyond that right and wrong ones get the same answer.
type guesses struct {
	address string
	// limit is the account's bucket, or that of the place where it is known.
	limit, account store.Limit
	place          store.Place
	note           store.Limit // pause between two audit rows about the address, so that guesses cannot fill the log
	off            bool
}

func passwordGuesses(f *flow, aud, who string) guesses {
	n := f.settings.Passwords.TriesPerAccount
	g := guesses{address: who, note: store.NewInterval(f.limitKey("password note", who), time.Minute), off: n <= 0}
	n = max(n, 1) // off: counted by the same statements, and not checked
	g.limit = store.Limit{Key: f.limitKey("password", aud, who), Size: float64(n),
		Refill: time.Duration(n) * time.Minute}
	g.account = g.limit
	g.place = placeTries(f, g.limit, "password place", aud, who)
	return g
}

// check refuses a try that the bucket does not have: that of the place, if the user has signed in from there before.
func (g *guesses) check(f *flow, tried store.Tried) error {
	v := tried.Tries
	if g.limit = g.account; tried.PlaceKnown {
		g.limit, v = g.place.Tries, tried.PlaceTries
	}
	if wait := g.limit.Wait(v, f.now, 1); wait > 0 && !g.off {
		return tooManyPasswords(wait)
	}
	return nil
}

// tooManyPasswords is the same answer for known and unknown addresses.
func tooManyPasswords(wait time.Duration) *Refusal {
	return limited(CodeOverRequestRate,
		"Too many wrong passwords for this address. Wait, or sign in with a link or a code.", wait)
}

// limitToCheck returns the bucket that a statement checks; without a key where tries are not limited.
func (g *guesses) limitToCheck() store.Limit {
	if g.off {
		return store.Limit{}
	}
	return g.limit
}

// refusalOf turns the error of a statement that found the bucket empty into the refusal. The bucket's level is not
// known then; refilling a whole try takes no longer than this.
func (g *guesses) refusalOf(err error) error {
	if over, ok := errors.AsType[*store.LimitError](err); ok {
		return tooManyPasswords(over.Limit.Refill / time.Duration(over.Limit.Size))
	}
	return err
}

// countWrong takes a try for a wrong password, and returns answer.
func (g *guesses) countWrong(ctx context.Context, f *flow, user uuid.UUID, reason string, answer error) error {
	err := f.core.db.FailedPassword(ctx, g.failed(f, g.limit, user, reason))
	if _, over := errors.AsType[*store.LimitError](err); over && g.off {
		err = nil
	}
	if err != nil {
		return failure("failed password", g.refusalOf(err))
	}
	return answer
}

// recordRefused records a try that failed although the password was right.
func (g *guesses) recordRefused(ctx context.Context, f *flow, user uuid.UUID, r *Refusal) error {
	if err := f.core.db.RefusedPassword(ctx, g.failed(f, g.limitToCheck(), user, r.Code)); err != nil {
		return failure("refused sign-in", g.refusalOf(err))
	}
	return r
}

func (g *guesses) failed(f *flow, limit store.Limit, user uuid.UUID, reason string) store.FailedPassword {
	return store.FailedPassword{
		Tries: limit, Now: f.now, Note: g.note,
		Audit: f.audit(store.ActionLoginFailed, user, uuid.Nil, "reason", reason),
	}
}

// recordRejected records a try that the hook rejected, and counts it if the password was wrong.
func (g *guesses) recordRejected(ctx context.Context, f *flow, user uuid.UUID, right bool, why error) error {
	r, ok := errors.AsType[*Refusal](why)
	switch {
	case !ok:
		return failure("hook of passwords", why)
	case right:
		return g.recordRefused(ctx, f, user, r)
	}
	return g.countWrong(ctx, f, user, "password", r)
}

// codeTries returns the bucket of wrong digits for an address, whether or not any were sent to it; without a key where
// they are not limited. name separates callers that hold different locks when the try is taken.
func codeTries(f *flow, name, aud, who string) (store.Limit, store.Place) {
	n := f.settings.CodesPerAccount
	if n <= 0 {
		return store.Limit{}, store.Place{}
	}
	limit := store.Limit{Key: f.limitKey(name, aud, who), Size: float64(n), Refill: 3 * time.Duration(n) * time.Minute}
	return limit, placeTries(f, limit, name+" place", aud, who)
}

// tooManyCodes is the answer to digits, right or wrong, for which there is no try left; err, if it is another error.
func tooManyCodes(err error) error {
	if over, ok := errors.AsType[*store.LimitError](err); ok {
		return limited(CodeOverRequestRate, "Too many wrong codes for this address. Wait; links still work.",
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

// placeMAC returns the MAC of the client's place, nil if places are not used or this one is not known.
func placeMAC(f *flow) []byte {
	where := f.req.place()
	if where == "" || !f.settings.KnownPlaces {
		return nil
	}
	return f.core.root.MAC(secret.Limits, "place", where)
}

// placeTries returns the bucket, of the same size as like, for guesses about an address from the client's place.
func placeTries(f *flow, like store.Limit, name ...string) store.Place {
	p := store.Place{MAC: placeMAC(f), Since: f.now.Add(-PlaceLife), Tries: like}
	if p.MAC != nil {
		p.Tries.Key = f.limitKey(append(name, f.req.place())...)
	}
	return p
}

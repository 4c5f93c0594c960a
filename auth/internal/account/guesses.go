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

// guesses counts the wrong passwords for an address, whether or not anybody has it. A try is judged twice:
// before the hash, which an empty bucket spares, and by the statement that follows it, which decides. So parallel
// guesses learn no more than the bucket holds, and beyond that right and wrong ones get the same answer.
type guesses struct {
	f       *flow
	address string
	// limit is the account's bucket, or that of the place where that is known.
	limit, account store.Limit
	place          store.Place
	note           store.Limit // pause between two audit rows about the address, or anybody could fill the log
	off            bool
}

func passwordGuesses(f *flow, aud, who string) guesses {
	n := f.settings.Passwords.TriesPerAccount
	g := guesses{f: f, address: who, note: store.NewInterval(f.limitKey("password note", who), time.Minute), off: n <= 0}
	n = max(n, 1) // off: counted by the same statements, and not judged
	g.limit = store.Limit{Key: f.limitKey("password", aud, who), Size: float64(n), Refill: time.Duration(n) * time.Minute}
	g.account = g.limit
	g.place = placeTries(f, g.limit, "password place", aud, who)
	return g
}

// check refuses what the bucket has no try for: that of the place, if the user signed in from there before.
func (g *guesses) check(tried store.Tried) error {
	v := tried.Tries
	if g.limit = g.account; tried.PlaceKnown {
		g.limit, v = g.place.Tries, tried.PlaceTries
	}
	if wait := g.limit.Wait(v, g.f.now, 1); wait > 0 && !g.off {
		return tooManyPasswords(wait)
	}
	return nil
}

// tooManyPasswords is the same for known and unknown addresses.
func tooManyPasswords(wait time.Duration) *Refusal {
	return limited(CodeOverRequestRate, "Too many wrong passwords for this address. Wait, or sign in with a link or a code.", wait)
}

// limitToCheck is the bucket that a statement has to look at; without a key where tries are not limited.
func (g *guesses) limitToCheck() store.Limit {
	if g.off {
		return store.Limit{}
	}
	return g.limit
}

// refusalOf turns the error of a statement that found the bucket empty into the refusal. How much has come back is not
// known then; a whole try takes no longer than this.
func (g *guesses) refusalOf(err error) error {
	if over, ok := errors.AsType[*store.LimitError](err); ok {
		return tooManyPasswords(over.Limit.Refill / time.Duration(over.Limit.Size))
	}
	return err
}

// countWrong takes a try for a wrong password, and answers what the caller would.
func (g *guesses) countWrong(ctx context.Context, user uuid.UUID, reason string, answer error) error {
	err := g.f.core.db.FailedPassword(ctx, g.failed(g.limit, user, reason))
	if _, over := errors.AsType[*store.LimitError](err); over && g.off {
		err = nil
	}
	if err != nil {
		return failure("failed password", g.refusalOf(err))
	}
	return answer
}

// recordRefused notes a try that failed although the password was right.
func (g *guesses) recordRefused(ctx context.Context, user uuid.UUID, r *Refusal) error {
	if err := g.f.core.db.RefusedPassword(ctx, g.failed(g.limitToCheck(), user, r.Code)); err != nil {
		return failure("refused sign-in", g.refusalOf(err))
	}
	return r
}

func (g *guesses) failed(limit store.Limit, user uuid.UUID, reason string) store.FailedPassword {
	return store.FailedPassword{
		Tries: limit, Now: g.f.now, Note: g.note,
		Audit: g.f.audit(store.ActionLoginFailed, user, uuid.Nil, "reason", reason),
	}
}

// recordRejected notes a try that the hook ended, and counts it if it was wrong.
func (g *guesses) recordRejected(ctx context.Context, user uuid.UUID, right bool, why error) error {
	r, ok := errors.AsType[*Refusal](why)
	switch {
	case !ok:
		return failure("hook of passwords", why)
	case right:
		return g.recordRefused(ctx, user, r)
	}
	return g.countWrong(ctx, user, "password", r)
}

// codeTries is the bucket of wrong digits for an address, whether or not any were sent to it; without a key where they
// are not limited. name tells apart who holds which lock when the try is taken.
func codeTries(f *flow, name, aud, who string) (store.Limit, store.Place) {
	n := f.settings.CodesPerAccount
	if n <= 0 {
		return store.Limit{}, store.Place{}
	}
	limit := store.Limit{Key: f.limitKey(name, aud, who), Size: float64(n), Refill: 3 * time.Duration(n) * time.Minute}
	return limit, placeTries(f, limit, name+" place", aud, who)
}

// tooManyCodes is the answer to digits for which there is no try, right or wrong; err, if it is of another kind.
func tooManyCodes(err error) error {
	if over, ok := errors.AsType[*store.LimitError](err); ok {
		return limited(CodeOverRequestRate, "Too many wrong codes for this address. Wait; links still work.", over.Limit.Refill/time.Duration(over.Limit.Size))
	}
	return err
}

// PlaceLife is for how long a place is known from which a user signed in.
const PlaceLife = 90 * 24 * time.Hour

// place is the part of the network that a client's address is in: an IPv4 /24, an IPv6 /64. Providers give
// the next address to the same home from there. "" where the address is unknown.
func (req RequestInfo) place() string {
	if ip, err := netip.ParseAddr(req.Network); err == nil && ip.Is4() {
		return netip.PrefixFrom(ip, 24).Masked().String()
	}
	if p, err := netip.ParsePrefix(req.Network); err == nil {
		return p.String()
	}
	return ""
}

// place is the MAC of the client's place, nil when places are not known, or this one is not.
func placeMAC(f *flow) []byte {
	where := f.req.place()
	if where == "" || !f.settings.KnownPlaces {
		return nil
	}
	return f.core.root.MAC(secret.Limits, "place", where)
}

// placeTries is the bucket like that one, named for an address, of guesses from the client's place.
func placeTries(f *flow, like store.Limit, name ...string) store.Place {
	p := store.Place{MAC: placeMAC(f), Since: f.now.Add(-PlaceLife), Tries: like}
	if p.MAC != nil {
		p.Tries.Key = f.limitKey(append(name, f.req.place())...)
	}
	return p
}

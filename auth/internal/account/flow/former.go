package flow

import (
	"context"
	"errors"
	"strings"
	"time"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// TookOver is called once the takeover of users from the former service (supabase/auth) is completed in this database.
// From then on the users' former refresh tokens are looked up, and until linksUntil the links that the former service
// has mailed.
func (k *Core) TookOver(linksUntil time.Time) {
	k.linksUntil.Store(&linksUntil)
}

// IsFormer reports whether a refresh token has to be looked up as one of the former service: a takeover of users has
// been completed, and the token has the former service's form.
func (k *Core) IsFormer(text string) bool {
	if !k.HasTakenOver() {
		return false
	}
	_, ok := former.ParseToken(text)
	return ok
}

// HasTakenOver reports whether a takeover of users has been completed in this database.
func (k *Core) HasTakenOver() bool { return k.linksUntil.Load() != nil }

// FormerLink returns the hash of the token in a link that the former service has mailed, and whether the link belongs
// to a PKCE flow. ok is false if the token does not have the former service's form.
func FormerLink(text string) (hash []byte, pkce, ok bool) {
	text, pkce = strings.CutPrefix(text, pkcePrefix)
	sum, ok := former.LinkHash(text)
	return sum[:], pkce, ok
}

// CarriesLinks reports whether a link that the former service has mailed may still be valid.
func (f *Flow) CarriesLinks() bool {
	until := f.Core.linksUntil.Load()
	return until != nil && f.Now.Before(*until)
}

// formerLinkMisses is how many unknown links of the former service's form all clients together may try within an hour.
// Such a link's token is a hash of the address and a code of six digits, so it could be guessed in a million tries.
const formerLinkMisses = 600

func formerLinkTries(f *Flow) store.Limit {
	return store.Limit{Key: f.LimitKey("former links"), Size: formerLinkMisses, Refill: time.Hour}
}

// TakeFormerLinkTry takes one of the formerLinkMisses tries before a link of the former service's form is looked up. It
// commits at once, so that parallel guesses get no more tries than the limit allows. If the link is found,
// GiveBackFormerLinkTry follows.
func TakeFormerLinkTry(ctx context.Context, f *Flow) error {
	l := formerLinkTries(f)
	err := f.Run(ctx, func(b *Batch) { b.Take(l, 1, f.Now) })
	if _, over := errors.AsType[*store.LimitError](err); over {
		return refusal.Limited(refusal.CodeOverRequestRate, "Request rate limit reached", l.Refill/formerLinkMisses)
	}
	return refusal.Failure("link", err)
}

// GiveBackFormerLinkTry undoes TakeFormerLinkTry. If it fails, the try is missing until it is refilled, which takes six
// seconds.
func GiveBackFormerLinkTry(ctx context.Context, f *Flow) {
	if err := f.Run(ctx, func(b *Batch) { b.Take(formerLinkTries(f), -1, f.Now) }); err != nil {
		f.Core.Log.Warn("a try of a link was not given back", "error", err)
	}
}

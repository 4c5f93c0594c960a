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

// TookOver is called when a takeover of users was closed in this database: from now on the users' former refresh tokens
// are looked up, and until linksUntil the links that the former service has mailed.
func (k *Core) TookOver(linksUntil time.Time) {
	k.linksUntil.Store(&linksUntil)
}

// IsFormer reports whether a refresh token has to be looked up as a former token: users were taken over, and the token
// has the former service's form.
func (k *Core) IsFormer(text string) bool {
	if !k.HasTakenOver() {
		return false
	}
	_, ok := former.ParseToken(text)
	return ok
}

// HasTakenOver reports whether a takeover of users was closed in this database.
func (k *Core) HasTakenOver() bool { return k.linksUntil.Load() != nil }

// FormerLink returns the hash of the token in a former link, and whether the link belongs to a PKCE flow.
func FormerLink(text string) (hash []byte, pkce, ok bool) {
	text, pkce = strings.CutPrefix(text, pkcePrefix)
	sum, ok := former.LinkHash(text)
	return sum[:], pkce, ok
}

// CarriesLinks reports whether a carried link may still be valid.
func (f *Flow) CarriesLinks() bool {
	until := f.Core.linksUntil.Load()
	return until != nil && f.Now.Before(*until)
}

// formerLinkMisses is how many unknown links of the former service's form may be tried within an hour, by all clients
// together. Such a link can be guessed from the address and a million codes.
const formerLinkMisses = 600

func formerLinkTries(f *Flow) store.Limit {
	return store.Limit{Key: f.LimitKey("former links"), Size: formerLinkMisses, Refill: time.Hour}
}

// TakeFormerLinkTry takes a try before a link of the former service's form is looked up. It commits, so that parallel
// guesses get no more tries than the bucket holds. If the link is found, the try is given back.
func TakeFormerLinkTry(ctx context.Context, f *Flow) error {
	l := formerLinkTries(f)
	err := f.Run(ctx, func(b *Batch) { b.Take(l, 1, f.Now) })
	if _, over := errors.AsType[*store.LimitError](err); over {
		return refusal.Limited(refusal.CodeOverRequestRate, "Request rate limit reached", l.Refill/formerLinkMisses)
	}
	return refusal.Failure("link", err)
}

// GiveBackFormerLinkTry undoes TakeFormerLinkTry. If it fails, a try is lost for six seconds.
func GiveBackFormerLinkTry(ctx context.Context, f *Flow) {
	if err := f.Run(ctx, func(b *Batch) { b.Take(formerLinkTries(f), -1, f.Now) }); err != nil {
		f.Core.Log.Warn("a try of a link was not given back", "error", err)
	}
}

package account

import (
	"context"
	"errors"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// OwnToken converts a refresh token of the former service (supabase/auth) to a refresh token of this daemon: the first
// token of the session that was taken over, whose secret is derived from the former token. Refresh then handles it like
// any other.
func (a *Accounts) OwnToken(ctx context.Context, text string) (string, error) {
	t, ok := former.ParseToken(text)
	if !ok || !a.core.HasTakenOver() {
		return "", errRefreshNotFound
	}
	k := a.core
	var s store.SessionSecret
	var err error
	if t.Version == 2 {
		s, err = k.DB.SecretOfSession(ctx, t.Session)
	} else {
		s, err = k.DB.SecretOfFormerToken(ctx, t.MACs(k.Root))
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "", errRefreshNotFound
	case err != nil:
		return "", refusal.Unavailable(err, flow.RefreshRetry)
	}
	secret, ok := t.SecretOf(k.Root, s.Hash)
	if !ok {
		return "", errRefreshNotFound
	}
	return string(k.Codec.Append(nil, &token.Refresh{Session: s.Session, Secret: secret})), nil
}

// byFormerLink maps the type of a verification to the kinds of tokens that a link of the former service (supabase/auth)
// may redeem. byLink does so for this daemon's own links. Some types have more kinds here, since the former service
// redeems its links under more types.
var byFormerLink = map[string][]store.Kind{
	typeEmail:       {store.KindSignup, store.KindInvite, store.KindMagicLink, store.KindRecovery},
	"signup":        {store.KindSignup, store.KindInvite},
	"invite":        {store.KindInvite, store.KindSignup},
	"recovery":      {store.KindRecovery},
	"magiclink":     {store.KindMagicLink, store.KindRecovery},
	typeEmailChange: byLink[typeEmailChange],
}

// formerType returns the type of verification that the answer names after a link of the former service was redeemed. It
// is the type in the request; the type "email" is replaced by signup or magiclink, depending on the kind of the token.
func formerType(requested string, k store.Kind) string {
	switch {
	case requested != typeEmail:
		return requested
	case k == store.KindSignup || k == store.KindInvite:
		return "signup"
	}
	return "magiclink"
}

// isFormerForm reports whether a refresh token has the form of the former service's tokens and is not merely malformed:
// by its checksum or, if users were taken over, by its length and alphabet.
func isFormerForm(f *flow.Flow, text string) bool {
	t, ok := former.ParseToken(text)
	return ok && (t.Version == 2 || f.Core.HasTakenOver())
}

package account

import (
	"context"
	"errors"
	"strings"
	"time"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// takeover is what flows need to know about users that were taken over from another service.
type takeover struct {
	linksUntil time.Time // when the last link that was carried over expires
}

// TookOver says that a takeover of users was closed in this database: from now on their former refresh tokens are
// looked up, and until linksUntil the links that the other service has mailed them.
func (a *Accounts) TookOver(linksUntil time.Time) {
	if old := a.core.takeover.Load(); old == nil || !old.linksUntil.Equal(linksUntil) {
		a.core.takeover.Store(&takeover{linksUntil: linksUntil})
	}
}

// IsFormer reports whether a refresh token has to be looked up as one of another service whose users were taken over.
func (a *Accounts) IsFormer(text string) bool {
	if a.core.takeover.Load() == nil {
		return false
	}
	_, ok := former.ParseToken(text)
	return ok
}

// OwnToken returns the refresh token here that a former one stands for: the first of its session, whose secret is
// derived from the former text. Refresh does everything else.
func (a *Accounts) OwnToken(ctx context.Context, text string) (string, error) {
	t, ok := former.ParseToken(text)
	if !ok || a.core.takeover.Load() == nil {
		return "", errRefreshNotFound
	}
	k := &a.core
	var s store.SessionSecret
	var err error
	if t.Version == 2 {
		s, err = k.db.SecretOfSession(ctx, t.Session)
	} else {
		s, err = k.db.SecretOfFormerToken(ctx, t.MACs(k.root))
	}
	switch {
	case errors.Is(err, store.ErrNotFound):
		return "", errRefreshNotFound
	case err != nil:
		return "", unavailable(err, refreshRetry)
	}
	secret, ok := t.SecretOf(k.root, s.Hash)
	if !ok {
		return "", errRefreshNotFound
	}
	return string(k.codec.Append(nil, &token.Refresh{Session: s.Session, Secret: secret})), nil
}

// byFormerLink is byLink for links that were carried over: the other service finds each under two names.
var byFormerLink = map[string][]store.Kind{
	typeEmail:       {store.KindSignup, store.KindInvite, store.KindMagicLink, store.KindRecovery},
	"signup":        {store.KindSignup, store.KindInvite},
	"invite":        {store.KindInvite, store.KindSignup},
	"recovery":      {store.KindRecovery},
	"magiclink":     {store.KindMagicLink, store.KindRecovery},
	typeEmailChange: byLink[typeEmailChange],
}

// formerType returns the type that the answer names for a link that was carried over: the one in the request.
func formerType(requested string, k store.Kind) string {
	switch {
	case requested != typeEmail:
		return requested
	case k == store.KindSignup || k == store.KindInvite:
		return "signup"
	}
	return "magiclink"
}

// formerLink returns the hash of a link's token of the other service, and whether the link belongs to a PKCE flow.
func formerLink(text string) (hash []byte, pkce, ok bool) {
	text, pkce = strings.CutPrefix(text, pkcePrefix)
	sum, ok := former.LinkHash(text)
	return sum[:], pkce, ok
}

// carriesLinks reports whether a link that was carried over may still be valid.
func (f *flow) carriesLinks() bool {
	t := f.core.takeover.Load()
	return t != nil && f.now.Before(t.linksUntil)
}

// formerLinkMisses is how many links of the other service's form may be tried in vain within an hour, by all clients
// together. Such a link can be guessed from the address and a million codes.
const formerLinkMisses = 600

func formerLinkTries(f *flow) store.Limit {
	return store.Limit{Key: f.limitKey("former links"), Size: formerLinkMisses, Refill: time.Hour}
}

// takeFormerLinkTry takes a try before a link of the other service's form is looked up. It commits, so that parallel
// guesses learn no more than the bucket holds; a link that was found gives it back.
func takeFormerLinkTry(ctx context.Context, f *flow) error {
	l := formerLinkTries(f)
	b := f.batch()
	b.Take(l, 1, f.now)
	err := b.Send(ctx)
	if _, over := errors.AsType[*store.LimitError](err); over {
		return limited(CodeOverRequestRate, "Request rate limit reached", l.Refill/formerLinkMisses)
	}
	return failure("link", err)
}

// giveBackFormerLinkTry undoes it. If it fails, a try is lost for six seconds.
func giveBackFormerLinkTry(ctx context.Context, f *flow) {
	b := f.batch()
	b.Take(formerLinkTries(f), -1, f.now)
	if err := b.Send(ctx); err != nil {
		f.core.log.Warn("a try of a link was not given back", "error", err)
	}
}

// invitationLink returns the hash of an invitation's token, of ours or of the other service's form; former says which.
func invitationLink(f *flow, text string) (hash []byte, isFormer, ok bool) {
	if hash, _, ok = linkHash(text); ok || !f.carriesLinks() {
		return hash, false, ok
	}
	hash, _, ok = formerLink(text)
	return hash, true, ok
}

// isFormerForm reports whether a refresh token is one of another service and not merely malformed: by its checksum, or,
// where users were taken over, by its length and alphabet.
func isFormerForm(f *flow, text string) bool {
	t, ok := former.ParseToken(text)
	return ok && (t.Version == 2 || f.core.takeover.Load() != nil)
}

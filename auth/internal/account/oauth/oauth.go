// Package oauth holds the flows of external providers: the redirect of the browser to a provider and its callback, the
// choice of the account for an identity, linking and unlinking of identities, sign-in by ID tokens, and the exchange of
// a PKCE code for a session.
package oauth

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// Identities has the entry points of the flows of external providers. Its methods may be called from any goroutine.
type Identities struct{ core *flow.Core }

// New returns the entry points of the flows in this package. They use the database, the keys and the settings in k.
func New(k *flow.Core) *Identities { return &Identities{k} }

// OAuthStart requests the URL of an external provider, to which the browser is redirected.
type OAuthStart struct {
	Provider, Scopes string
	// Params is the request's query. Parameters that this daemon does not use itself are passed on to the provider.
	Params    url.Values
	Challenge flow.Challenge
	// InviteToken is the token of an invitation's link, if the sign-in accepts an invitation.
	InviteToken string
	// Linking is the user to whom the identity is linked; nil: the user signs in.
	Linking *flow.Principal
}

// OAuthStarted is the answer to an OAuthStart: the provider's URL, and a cookie for the browser.
type OAuthStarted struct {
	URL string
	// CookieName and CookieValue are a cookie that lives for the time Life. CookieName is "" if the callback may come
	// from any browser.
	CookieName, CookieValue string
	Life                    time.Duration
	// CrossSite is set if the callback will be a POST from the provider's page, so the cookie must be sent across
	// sites.
	CrossSite bool
}

// StartOAuth begins a sign-in with an external provider, or the linking of an identity. The state in the URL is a
// random ID; the data that belongs to it is stored in the database.
func (a *Identities) StartOAuth(ctx context.Context, req flow.RequestInfo, p OAuthStart) (OAuthStarted, error) {
	f := a.core.Begin(req)
	if p.Linking != nil {
		if err := checkLinking(f.Settings, p.Linking.User, p.Linking.Session); err != nil {
			return OAuthStarted{}, err
		}
		if f.Settings.External.LinkingPKCE && !p.Challenge.Given() {
			return OAuthStarted{}, errLinkingNeedsPKCE
		}
	}
	via, err := enabledProvider(f.Settings, p.Provider)
	if err != nil {
		return OAuthStarted{}, err
	}
	st := store.ExternalState{
		Provider: via.Name(), Aud: f.Aud(), RedirectTo: f.Req.RedirectTo, Challenge: p.Challenge.Challenge,
		ChallengeMethod: strings.ToLower(p.Challenge.Method), CreatedAt: f.Now,
		ExpiresAt: f.Now.Add(f.Settings.FlowLife),
	}
	if p.Linking != nil {
		st.LinkingUser, st.LinkingSession, st.Aud = p.Linking.User.ID, p.Linking.Session.ID, p.Linking.User.Aud
		st.LinkingAAL = p.Linking.Session.AAL
	} else if st.InviteHash, err = invitationHash(ctx, f, p.InviteToken); err != nil {
		return OAuthStarted{}, err
	}
	if err := p.Challenge.Check(); err != nil {
		return OAuthStarted{}, err
	}
	state := uuid.NewString()
	st.Hash = hashOf(state)
	begun, err := via.Begin(ctx, provider.Start{State: state, Scopes: p.Scopes, Params: p.Params})
	if err != nil {
		return OAuthStarted{}, providerError(err)
	}
	st.Private = f.Core.Root.Seal(secret.ExternalStates, begun.Private, st.Hash)
	out := OAuthStarted{URL: begun.URL, Life: f.Settings.FlowLife, CrossSite: via.FormPost()}
	// The callback must come from the browser that begins the sign-in.
	if p.Linking == nil && f.Settings.External.StateCookie {
		var random [32]byte
		rand.Read(random[:])
		out.CookieName, out.CookieValue = StateCookie(state), base64.RawURLEncoding.EncodeToString(random[:])
		st.CookieHash = hashOf(out.CookieValue)
	}
	return out, refusal.Failure("external state", f.Run(ctx, func(b *flow.Batch) { b.InsertExternalState(st) }))
}

// StateCookie returns the name of the cookie that belongs to a state, so that each sign-in under way has a cookie of
// its own. The state cannot be computed from the name.
func StateCookie(state string) string {
	return "gatehouse-state-" + hex.EncodeToString(hashOf(strings.ToLower(state))[:8])
}

// hashOf returns the hash by which the store finds a state, or compares the value of its cookie.
func hashOf(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

// enabledProvider returns the provider with this name, or a refusal if it is unknown or not enabled.
func enabledProvider(s *flow.Settings, name string) (*provider.Provider, error) {
	if s.External.Providers == nil {
		return nil, refusal.NotValid("Unsupported provider: provider is not enabled")
	}
	via, err := s.External.Providers.Lookup(name)
	if err != nil {
		return nil, providerError(err)
	}
	return via, nil
}

// invitationHash returns the hash of an invitation's token if the invitation is still open; nil if inviteToken is "".
func invitationHash(ctx context.Context, f *flow.Flow, inviteToken string) ([]byte, error) {
	if inviteToken == "" {
		return nil, nil
	}
	hash, isFormer, ok := invitationLink(f, inviteToken)
	var who uuid.UUID
	if ok {
		if isFormer {
			if err := flow.TakeFormerLinkTry(ctx, f); err != nil {
				return nil, err
			}
		}
		if err := f.Run(ctx, func(b *flow.Batch) { b.Invitation(&who, hash, f.Now) }); err != nil {
			return nil, refusal.Failure("invitation", err)
		}
		if isFormer && who != uuid.Nil {
			flow.GiveBackFormerLinkTry(ctx, f)
		}
	}
	if who == uuid.Nil {
		return nil, refusal.Missing(refusal.CodeUserNotFound, "User identified by token not found")
	}
	return hash, nil
}

// ProviderRefused is an external provider's refusal. The application gets the provider's text.
type ProviderRefused struct{ Code, Description string }

func (e *ProviderRefused) Error() string { return "the provider refused: " + e.Code }

// providerError converts an error of package provider to a Refusal, and returns other errors unchanged.
func providerError(err error) error {
	e, ok := errors.AsType[*provider.Error](err)
	if !ok {
		return refusal.Failure("provider", err)
	}
	if e.OAuth != "" {
		return &ProviderRefused{Code: e.OAuth, Description: e.Message}
	}
	r := &refusal.Refusal{Kind: refusal.KindFailed, Code: e.Code, Msg: e.Message, Err: e.Err}
	if e.Status == http.StatusBadRequest { // the only other status is 500
		r.Kind = refusal.KindInvalid
	}
	return r
}

// invitationLink returns the hash of the token in an invitation's link. isFormer says whether the former service
// (supabase/auth) has mailed the link. ok is false if text is malformed.
func invitationLink(f *flow.Flow, text string) (hash []byte, isFormer, ok bool) {
	if hash, _, ok = flow.LinkHash(text); ok || !f.CarriesLinks() {
		return hash, false, ok
	}
	hash, _, ok = flow.FormerLink(text)
	return hash, true, ok
}

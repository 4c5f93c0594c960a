// Package oauth holds the flows of external providers: the redirect to a provider and the callback, the choice of the
// account for an identity, linking and unlinking, ID tokens, and the exchange of a PKCE code for a session.
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

// New returns the flows over what they share.
func New(k *flow.Core) *Identities { return &Identities{k} }

// OAuthStart requests a provider's URL, to which the browser is sent.
type OAuthStart struct {
	Provider, Scopes string
	// Params are the request's query; parameters that are not this service's own are passed on to the provider.
	Params    url.Values
	Challenge flow.Challenge
	// InviteToken is the token of an invitation's link.
	InviteToken string
	// Linking is the user to link the identity to; nil: it is a sign-in.
	Linking *flow.Principal
}

// OAuthStarted is the provider's URL, with a cookie for the browser.
type OAuthStarted struct {
	URL string
	// CookieName and CookieValue are the cookie, for the time Life; "" if the browser need not be recognized.
	CookieName, CookieValue string
	Life                    time.Duration
	// CrossSite: the callback is a POST from the provider's page.
	CrossSite bool
}

// StartOAuth begins a sign-in, or the linking of an identity. The state in the URL is a random ID; the data of the
// state is stored here.
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
	if p.Linking == nil && f.Settings.External.StateCookie { // the callback must come from the browser that begins
		var random [32]byte
		rand.Read(random[:])
		out.CookieName, out.CookieValue = StateCookie(state), base64.RawURLEncoding.EncodeToString(random[:])
		st.CookieHash = hashOf(out.CookieValue)
	}
	return out, refusal.Failure("external state", f.Run(ctx, func(b *flow.Batch) { b.InsertExternalState(st) }))
}

// StateCookie returns the name of the cookie that belongs to a state. Each flow has a cookie of its own. The state
// cannot be read back from the name.
func StateCookie(state string) string {
	return "gatehouse-state-" + hex.EncodeToString(hashOf(strings.ToLower(state))[:8])
}

// hashOf returns the hash by which the store knows a state, or the value of its cookie.
func hashOf(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

// enabledProvider returns an enabled provider.
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

// invitationHash returns the hash of an open invitation; nil without a token.
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

// ProviderRefused is a refusal by a provider; the application gets the provider's text.
type ProviderRefused struct{ Code, Description string }

func (e *ProviderRefused) Error() string { return "the provider refused: " + e.Code }

// providerError converts an error of package provider to an error of this package.
func providerError(err error) error {
	e, ok := errors.AsType[*provider.Error](err)
	if !ok {
		return refusal.Failure("provider", err)
	}
	if e.OAuth != "" {
		return &ProviderRefused{Code: e.OAuth, Description: e.Message}
	}
	r := &refusal.Refusal{Kind: refusal.KindFailed, Code: e.Code, Msg: e.Message, Err: e.Err}
	if e.Status == http.StatusBadRequest { // the other status is 500
		r.Kind = refusal.KindInvalid
	}
	return r
}

// invitationLink returns the hash of an invitation's token, in our form or in the former service's; isFormer says
// which.
func invitationLink(f *flow.Flow, text string) (hash []byte, isFormer, ok bool) {
	if hash, _, ok = flow.LinkHash(text); ok || !f.CarriesLinks() {
		return hash, false, ok
	}
	hash, _, ok = flow.FormerLink(text)
	return hash, true, ok
}

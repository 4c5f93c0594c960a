package account

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// OAuthResult is the result of a callback.
type OAuthResult struct {
	// RedirectTo is where the browser goes, also with an error; "" while that is unknown, because the state is not
	// ours.
	RedirectTo string
	Provider   string
	// Grant is the session; in a PKCE flow, Code is what it is exchanged for.
	Grant *Grant
	Code  string
	User  uuid.UUID
}

var errStateUnknown = invalid(CodeBadOAuthState, "OAuth state not found or expired")

// FinishOAuth handles a provider's answer, which the browser brings. cookie is the value of the cookie
// StateCookie(state). A state is good for one callback, whatever its result. The provider is queried before a
// transaction is begun.
func (a *Accounts) FinishOAuth(ctx context.Context, req RequestInfo, callback url.Values,
	cookie string) (out OAuthResult, err error) {
	f := a.begin(req)
	st, err := useState(ctx, f, callback.Get("state"), cookie)
	if err != nil {
		return OAuthResult{}, err
	}
	f.req.RedirectTo, f.req.Aud = st.RedirectTo, st.Aud
	out = OAuthResult{RedirectTo: st.RedirectTo, Provider: st.Provider}
	if code := callback.Get("error"); code != "" {
		return out, &ProviderRefused{Code: code, Description: callback.Get("error_description")}
	}
	via, err := f.settings.provider(st.Provider)
	if err != nil {
		return out, err
	}
	private, _, err := f.core.root.Open(secret.ExternalStates, st.Private, st.Hash)
	if err != nil {
		return out, fmt.Errorf("account: external state: %w", err)
	}
	profile, err := via.Finish(ctx, callback, private)
	if err != nil {
		return out, providerError(err)
	}
	op := oauthOp{f: *f, profile: profile, names: append([]string{profile.Provider}, via.Aliases()...),
		optional: via.EmailOptional(), strict: true,
		linkUser: st.LinkingUser, linkSession: st.LinkingSession, linkAAL: st.LinkingAAL, invite: st.InviteHash}
	if st.LinkingUser != uuid.Nil &&
		f.settings.External.LinkingPKCE && st.Challenge == "" { // begun before the setting was in force
		return out, errLinkingNeedsPKCE
	}
	if st.Challenge != "" {
		op.challenge = Challenge{Challenge: st.Challenge, Method: st.ChallengeMethod}
	}
	return op.finish(ctx, out)
}

// finish runs the operation and writes its result into out.
func (op *oauthOp) finish(ctx context.Context, out OAuthResult) (OAuthResult, error) {
	if op.linkUser != uuid.Nil && op.challenge.given() && op.f.settings.External.LinkingPKCE {
		return op.issueLinkingCode(ctx, out)
	}
	if err := op.run(ctx); err != nil {
		return out, err
	}
	out.User = op.user.ID
	if op.code != "" {
		out.Code = op.code
		return out, nil
	}
	g, err := grantNew(ctx, &op.f, op.user, &op.open)
	if err != nil {
		return out, err
	}
	g.ProviderToken, g.ProviderRefreshToken = op.profile.Token, op.profile.RefreshToken
	out.Grant = &g
	return out, nil
}

// useState uses a state up and returns what is wrong with it. Until here nothing in the request is trusted, so its
// errors lead to SITE_URL.
func useState(ctx context.Context, f *flow, text, cookie string) (store.ExternalState, error) {
	if text == "" {
		return store.ExternalState{}, invalid(CodeBadOAuthCallback, "OAuth state parameter missing")
	}
	state, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return store.ExternalState{}, invalid(CodeBadOAuthState, "OAuth state parameter is invalid")
	}
	st, err := f.core.db.UseExternalState(ctx, stateHash(state.String()), f.now)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return st, errStateUnknown
	case err != nil:
		return st, failure("external state", err)
	case !st.UsedAt.IsZero() && st.Challenge != "":
		return st, invalid(CodeFlowStateAlreadyUsed, "State has already been used")
	case !st.UsedAt.IsZero():
		return st, errStateUnknown
	case !f.now.Before(st.ExpiresAt):
		return st, invalid(CodeBadOAuthState, "OAuth state has expired")
	case st.CookieHash != nil && subtle.ConstantTimeCompare(st.CookieHash, cookieHash(cookie)) == 0:
		// Another browser's callback: the user who opens it must not end up in that account.
		return st, invalid(CodeBadOAuthState, "OAuth state was not issued to this browser")
	}
	if st.LinkingUser != uuid.Nil {
		u, err := f.core.db.User(ctx, st.LinkingUser)
		if errors.Is(err, store.ErrNotFound) || err == nil && !u.DeletedAt.IsZero() {
			return st, errTargetGone
		}
		if err != nil {
			return st, failure("linking target", err)
		}
	}
	return st, nil
}

var errTargetGone = unprocessable(CodeUserNotFound, "Linking target user not found")

// providerTokens are a provider's own tokens, as they are sealed in a flow.
type providerTokens struct {
	Token   string `json:"t,omitempty"`
	Refresh string `json:"r,omitempty"`
}

// issueFlow returns the flow of a client that came with a challenge, and the hash of its code.
func (op *oauthOp) issueFlow(user uuid.UUID) (store.Flow, []byte) {
	code, hash := token.NewLinkToken()
	op.code = code
	pkce := store.Flow{
		ID: uuid.New(), User: user, Method: methodOAuth, Challenge: op.challenge.Challenge,
		ChallengeMethod: op.challenge.Method,
		IssuedAt:        op.f.now, ExpiresAt: op.f.now.Add(op.f.settings.FlowLife), Provider: op.profile.Provider,
		AAL: op.level, AMR: op.methods,
	}
	if op.profile.Token != "" || op.profile.RefreshToken != "" {
		text := mustJSON(providerTokens{op.profile.Token, op.profile.RefreshToken})
		pkce.ProviderTokens = op.f.core.root.Seal(secret.ProviderTokens, text, pkce.ID[:])
	}
	return pkce, hash[:]
}

// giveTokens adds the provider's tokens of a flow to the grant that its code is exchanged for.
func giveTokens(f *flow, g *Grant, pkce store.Flow) {
	if pkce.ProviderTokens == nil {
		return
	}
	var tokens providerTokens
	text, _, err := f.core.root.Open(secret.ProviderTokens, pkce.ProviderTokens, pkce.ID[:])
	if err == nil {
		err = json.Unmarshal(text, &tokens)
	}
	if err != nil {
		f.core.log.Warn("a provider's tokens could not be opened", "provider", pkce.Provider, "error", err)
	}
	g.ProviderToken, g.ProviderRefreshToken = tokens.Token, tokens.Refresh
}

// IDToken is a native sign-in.
type IDToken struct {
	Request provider.IDTokenRequest
	// Linking is the user to link the identity to; nil: it is a sign-in.
	Linking *Principal
}

// OAuthError is a failure in the form of RFC 6749, for the grant that answers so.
type OAuthError struct {
	Code, Description string
	Err               error
}

func (e *OAuthError) Error() string {
	if e.Err != nil {
		return e.Code + ": " + e.Description + ": " + e.Err.Error()
	}
	return e.Code + ": " + e.Description
}

func (e *OAuthError) Unwrap() error { return e.Err }

// SignInIDToken opens a session for the user whom an ID token names, or links the identity.
func (a *Accounts) SignInIDToken(ctx context.Context, req RequestInfo, p IDToken) (Grant, error) {
	f := a.begin(req)
	if p.Linking != nil {
		if err := f.settings.checkLinking(p.Linking.User, p.Linking.Session); err != nil {
			return Grant{}, err
		}
	}
	switch {
	case p.Request.IDToken == "":
		return Grant{}, &OAuthError{Code: "invalid request", Description: "id_token required"}
	case p.Request.Provider == "" && (p.Request.ClientID == "" || p.Request.Issuer == ""):
		return Grant{}, &OAuthError{Code: "invalid request", Description: "provider or client_id and issuer required"}
	}
	if f.settings.External.Providers == nil {
		return Grant{}, invalid(CodeProviderDisabled, "Provider is not enabled")
	}
	profile, accepted, err := f.settings.External.Providers.IDToken(ctx, p.Request)
	if err != nil {
		return Grant{}, idTokenError(err)
	}
	op := oauthOp{f: *f, profile: profile, names: []string{profile.Provider}}
	if via, err := f.settings.External.Providers.Lookup(profile.Provider); err == nil {
		op.names = append(op.names, via.Aliases()...)
		op.optional = via.EmailOptional()
	}
	if f.settings.External.IDTokenOnce {
		op.accepted = accepted
	}
	if p.Linking != nil {
		op.linkUser, op.linkSession, op.f.req.Aud = p.Linking.User.ID, p.Linking.Session.ID, p.Linking.User.Aud
		op.linkAAL = p.Linking.Session.AAL
	}
	out, err := op.finish(ctx, OAuthResult{})
	if err != nil {
		if r, ok := errors.AsType[*Refusal](err); ok {
			return Grant{}, r
		}
		if _, ok := errors.AsType[*OAuthError](err); ok {
			return Grant{}, err
		}
		return Grant{}, &OAuthError{Code: "server_error", Description: "Internal Server Error", Err: err}
	}
	out.Grant.ProviderToken, out.Grant.ProviderRefreshToken = "", ""
	return *out.Grant, nil
}

func idTokenError(err error) error {
	if e, ok := errors.AsType[*provider.IDTokenError](err); ok {
		return &OAuthError{Code: e.Code, Description: e.Description, Err: e.Err}
	}
	if e, ok := errors.AsType[*provider.Refused](err); ok {
		return &Refusal{Kind: kindOfStatus(e.Status), Code: e.Code, Msg: e.Message, Err: e.Err}
	}
	return &OAuthError{Code: "server_error", Description: "Internal Server Error", Err: err}
}

// errSpent is the answer to an ID token that was used to sign in before.
var errSpent = &OAuthError{Code: "invalid request", Description: "Bad ID token",
	Err: errors.New("account: the ID token was used before")}

// spendIDToken records an ID token in the transaction of its sign-in.
func (op *oauthOp) spendIDToken(ctx context.Context, tx *tx) error {
	if op.accepted == nil {
		return nil
	}
	until := op.accepted.Until
	if least := op.f.now.Add(time.Minute); until.Before(least) {
		until = least
	}
	first, err := tx.SpendIDToken(ctx, op.accepted.Key, until)
	if err == nil && !first {
		return errSpent
	}
	return err
}

package oauth

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// OAuthResult is the result of a callback: what the browser gets after an external provider has sent it back.
type OAuthResult struct {
	// RedirectTo is where the browser goes, also after an error; "" if the target is unknown, because this daemon did
	// not issue the state.
	RedirectTo string
	Provider   string
	// Grant is the session that was opened. In a PKCE flow Code is set instead, which the client exchanges for a
	// session.
	Grant *flow.Grant
	Code  string
	User  uuid.UUID
}

var errStateUnknown = refusal.Invalid(refusal.CodeBadOAuthState, "OAuth state not found or expired")

// FinishOAuth handles an external provider's answer, which the browser brings in a callback. cookie is the value of the
// cookie named StateCookie(state). A state is valid for one callback, whatever its result. The provider is queried
// before a transaction begins.
func (a *Identities) FinishOAuth(ctx context.Context, req flow.RequestInfo, callback url.Values,
	cookie string) (out OAuthResult, err error) {
	f := a.core.Begin(req)
	st, err := useState(ctx, f, callback.Get("state"), cookie)
	if err != nil {
		return OAuthResult{}, err
	}
	f.Req.RedirectTo, f.Req.Aud = st.RedirectTo, st.Aud
	out = OAuthResult{RedirectTo: st.RedirectTo, Provider: st.Provider}
	if code := callback.Get("error"); code != "" {
		return out, &ProviderRefused{Code: code, Description: callback.Get("error_description")}
	}
	via, err := enabledProvider(f.Settings, st.Provider)
	if err != nil {
		return out, err
	}
	private, _, err := f.Core.Root.Open(secret.ExternalStates, st.Private, st.Hash)
	if err != nil {
		return out, fmt.Errorf("account: external state: %w", err)
	}
	profile, err := via.Finish(ctx, callback, private)
	if err != nil {
		return out, providerError(err)
	}
	p := Arrival{Profile: profile, Aliases: via.Aliases(), Optional: via.EmailOptional(),
		LinkUser: st.LinkingUser, LinkSession: st.LinkingSession, LinkAAL: st.LinkingAAL, Invite: st.InviteHash}
	if st.LinkingUser != uuid.Nil &&
		f.Settings.External.LinkingPKCE && st.Challenge == "" { // the linking began before the setting was in force
		return out, errLinkingNeedsPKCE
	}
	if st.Challenge != "" {
		p.Challenge = flow.Challenge{Challenge: st.Challenge, Method: st.ChallengeMethod}
	}
	return Arrive(ctx, f, p, out)
}

// Arrival is a user's profile that an external provider gave, and what it is used for: a sign-in, an accepted
// invitation or the linking of an identity.
type Arrival struct {
	provider.Profile
	Aliases  []string // other names of the provider under which identities may be stored
	Optional bool     // the profile need not have an e-mail address
	// Native is set if the profile came in an ID token. Any other profile that needs an address and has none is refused
	// before the database is queried.
	Native bool
	// Challenge is the PKCE challenge. If there is one, the client gets a PKCE code, otherwise a session.
	Challenge flow.Challenge
	Accepted  *provider.Accepted // the ID token, if it may be used only once
	Invite    []byte             // hash of an invitation's token

	// LinkUser is the user who requested the linking, by an access token of the session LinkSession at assurance level
	// LinkAAL; Nil: the user signs in.
	LinkUser, LinkSession uuid.UUID
	LinkAAL               int
}

// Arrive signs in the user of a provider's profile, or links the profile's identity. It returns out with the result
// added.
func Arrive(ctx context.Context, f *flow.Flow, p Arrival, out OAuthResult) (OAuthResult, error) {
	op := oauthOp{f: *f, Arrival: p, names: append([]string{p.Provider}, p.Aliases...)}
	return op.finish(ctx, out)
}

// finish runs the operation, and returns out with the result added.
func (op *oauthOp) finish(ctx context.Context, out OAuthResult) (OAuthResult, error) {
	if op.LinkUser != uuid.Nil && op.Challenge.Given() && op.f.Settings.External.LinkingPKCE {
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
	g, err := flow.GrantNew(ctx, &op.f, op.user, &op.open)
	if err != nil {
		return out, err
	}
	g.ProviderToken, g.ProviderRefreshToken = op.Profile.Token, op.Profile.RefreshToken
	out.Grant = &g
	return out, nil
}

// useState uses up the state of a callback and checks it. Nothing else in the request is trusted before this check, so
// its errors redirect the browser to SITE_URL.
func useState(ctx context.Context, f *flow.Flow, text, cookie string) (store.ExternalState, error) {
	if text == "" {
		return store.ExternalState{}, refusal.Invalid(refusal.CodeBadOAuthCallback, "OAuth state parameter missing")
	}
	state, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return store.ExternalState{}, refusal.Invalid(refusal.CodeBadOAuthState, "OAuth state parameter is invalid")
	}
	st, err := f.Core.DB.UseExternalState(ctx, hashOf(state.String()), f.Now)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return st, errStateUnknown
	case err != nil:
		return st, refusal.Failure("external state", err)
	case !st.UsedAt.IsZero() && st.Challenge != "":
		return st, refusal.Invalid(refusal.CodeFlowStateAlreadyUsed, "State has already been used")
	case !st.UsedAt.IsZero():
		return st, errStateUnknown
	case !f.Now.Before(st.ExpiresAt):
		return st, refusal.Invalid(refusal.CodeBadOAuthState, "OAuth state has expired")
	case st.CookieHash != nil && subtle.ConstantTimeCompare(st.CookieHash, hashOf(cookie)) == 0:
		// Another browser began this sign-in: the user who opens the callback here must not be signed in to the account
		// of that browser's user.
		return st, refusal.Invalid(refusal.CodeBadOAuthState, "OAuth state was not issued to this browser")
	}
	if st.LinkingUser != uuid.Nil {
		u, err := f.Core.DB.User(ctx, st.LinkingUser)
		if errors.Is(err, store.ErrNotFound) || err == nil && !u.DeletedAt.IsZero() {
			return st, errTargetGone
		}
		if err != nil {
			return st, refusal.Failure("linking target", err)
		}
	}
	return st, nil
}

var errTargetGone = refusal.Unprocessable(refusal.CodeUserNotFound, "Linking target user not found")

// providerTokens are the tokens that an external provider issued, as they are stored in a PKCE flow, encrypted.
type providerTokens struct {
	Token   string `json:"t,omitempty"`
	Refresh string `json:"r,omitempty"`
}

// issueFlow returns a flow with the client's PKCE challenge, and the hash of the flow's code. The code itself is in
// op.code.
func (op *oauthOp) issueFlow(user uuid.UUID) (store.Flow, []byte) {
	code, hash := token.NewLinkToken()
	op.code = code
	pkce := store.Flow{
		ID: uuid.New(), User: user, Method: methodOAuth, Challenge: op.Challenge.Challenge,
		ChallengeMethod: op.Challenge.Method,
		IssuedAt:        op.f.Now, ExpiresAt: op.f.Now.Add(op.f.Settings.FlowLife), Provider: op.Profile.Provider,
		AAL: op.level, AMR: op.methods,
	}
	if op.Profile.Token != "" || op.Profile.RefreshToken != "" {
		text := flow.MustJSON(providerTokens{op.Profile.Token, op.Profile.RefreshToken})
		pkce.ProviderTokens = op.f.Core.Root.Seal(secret.ProviderTokens, text, pkce.ID[:])
	}
	return pkce, hash[:]
}

// giveTokens adds the external provider's tokens, which are encrypted in the flow pkce, to the grant.
func giveTokens(f *flow.Flow, g *flow.Grant, pkce store.Flow) {
	if pkce.ProviderTokens == nil {
		return
	}
	var tokens providerTokens
	text, _, err := f.Core.Root.Open(secret.ProviderTokens, pkce.ProviderTokens, pkce.ID[:])
	if err == nil {
		err = json.Unmarshal(text, &tokens)
	}
	if err != nil {
		f.Core.Log.Warn("a provider's tokens could not be opened", "provider", pkce.Provider, "error", err)
	}
	g.ProviderToken, g.ProviderRefreshToken = tokens.Token, tokens.Refresh
}

// IDToken is a native sign-in: the client has the ID token of an external provider already.
type IDToken struct {
	Request provider.IDTokenRequest
	// Linking is the user to whom the identity is linked; nil: the user signs in.
	Linking *flow.Principal
}

// SignInIDToken opens a session for the user whose identity an ID token proves, or links the identity.
func (a *Identities) SignInIDToken(ctx context.Context, req flow.RequestInfo, p IDToken) (flow.Grant, error) {
	f := a.core.Begin(req)
	if p.Linking != nil {
		if err := checkLinking(f.Settings, p.Linking.User, p.Linking.Session); err != nil {
			return flow.Grant{}, err
		}
	}
	switch {
	case p.Request.IDToken == "":
		return flow.Grant{}, &provider.OAuthError{Code: "invalid request", Description: "id_token required"}
	case p.Request.Provider == "" && (p.Request.ClientID == "" || p.Request.Issuer == ""):
		return flow.Grant{}, &provider.OAuthError{Code: "invalid request",
			Description: "provider or client_id and issuer required"}
	}
	if f.Settings.External.Providers == nil {
		return flow.Grant{}, refusal.Invalid(refusal.CodeProviderDisabled, "Provider is not enabled")
	}
	profile, accepted, err := f.Settings.External.Providers.IDToken(ctx, p.Request)
	if err != nil {
		return flow.Grant{}, idTokenError(err)
	}
	via := f.Settings.External.Providers.Known(profile.Provider)
	arrival := Arrival{Profile: profile, Native: true, Aliases: via.Aliases(), Optional: via.EmailOptional()}
	if f.Settings.External.IDTokenOnce {
		arrival.Accepted = accepted
	}
	if p.Linking != nil {
		arrival.LinkUser, arrival.LinkSession = p.Linking.User.ID, p.Linking.Session.ID
		arrival.LinkAAL, f.Req.Aud = p.Linking.Session.AAL, p.Linking.User.Aud
	}
	out, err := Arrive(ctx, f, arrival, OAuthResult{})
	if err != nil {
		return flow.Grant{}, idTokenError(err)
	}
	out.Grant.ProviderToken, out.Grant.ProviderRefreshToken = "", ""
	return *out.Grant, nil
}

// idTokenError returns the answer to an error. Errors other than refusals and errors of package provider are failures
// of the server.
func idTokenError(err error) error {
	if r, ok := errors.AsType[*refusal.Refusal](err); ok {
		return r
	}
	if e, ok := errors.AsType[*provider.OAuthError](err); ok {
		return e
	}
	if _, ok := errors.AsType[*provider.Error](err); ok {
		return providerError(err)
	}
	return &provider.OAuthError{Code: "server_error", Description: "Internal Server Error", Err: err}
}

// errSpent is the answer to an ID token that was used to sign in before, if each may be used only once.
var errSpent = &provider.OAuthError{Code: "invalid request", Description: "Bad ID token",
	Err: errors.New("account: the ID token was used before")}

// spendIDToken records that an ID token was used, in the transaction of its sign-in.
func (op *oauthOp) spendIDToken(ctx context.Context, tx *flow.Tx) error {
	if op.Accepted == nil {
		return nil
	}
	until := op.Accepted.Until
	if least := op.f.Now.Add(time.Minute); until.Before(least) {
		until = least
	}
	first, err := tx.SpendIDToken(ctx, op.Accepted.Key, until)
	if err == nil && !first {
		return errSpent
	}
	return err
}

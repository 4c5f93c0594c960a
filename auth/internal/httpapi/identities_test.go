package httpapi

import (
	"context"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/outbound"
	"gatehouse/auth/internal/provider"
	"gatehouse/shared/fakeidp"
)

// link begins the linking of an identity as the client library does, and follows it.
func (a *abroad) link(g grantJSON, query string) landing {
	a.t.Helper()
	return a.callback(a.visit(a.linkURL(g, query)))
}

func (a *abroad) linkURL(g grantJSON, query string) string {
	a.t.Helper()
	var out struct{ URL string }
	a.do("GET /user/identities/authorize?skip_http_redirect=true&"+query, nil, bearer(g.AccessToken)).json(&out)
	return out.URL
}

func TestIdentities(t *testing.T) {
	a := openAbroad(t)
	mia, tom := a.member("mia@example.org"), a.member("tom@example.org")
	a.idp.SetUser(person("1", "!else@example.org"))
	u := a.user(a.link(mia, "provider=GitHub"))
	if u.ID != mia.User.ID || len(u.Identities) != 2 || u.Email != "mia@example.org" {
		t.Fatalf("%+v", u)
	}
	// The address is shown although it matches no account.
	github := u.Identities[1]
	if github["provider"] != "github" || github["email"] != "else@example.org" || github["id"] != "1" {
		t.Errorf("%v", github)
	}
	a.link(mia, "provider=github").out("server_error", "identity_already_exists", "Identity is already linked")
	a.link(tom, "provider=github").out("server_error", "identity_already_exists",
		"Identity is already linked to another user")
	// Without skip_http_redirect it is a redirect; the flow is bound to the user, so no cookie is needed.
	a.idp.SetUser(person("2", "!other@example.org"))
	got := a.do("GET /user/identities/authorize?provider=gitlab", nil, bearer(mia.AccessToken))
	if got.StatusCode != 302 || len(got.Cookies()) != 0 {
		t.Errorf("%d %v", got.StatusCode, got.Cookies())
	}
	a.callback(a.visit(got.Header.Get("Location"))).in()
	if got := a.do("HEAD /user/identities/authorize?provider=gitlab", nil,
		bearer(mia.AccessToken)); got.StatusCode != 405 {
		t.Errorf("HEAD: %d", got.StatusCode)
	}
	a.do("GET /user/identities/authorize?provider=none", nil, bearer(mia.AccessToken)).refused(400, "validation_failed",
		"Unsupported provider: *")
	// A code instead of a session.
	a.idp.SetUser(person("3", "!third@example.org"))
	l := a.link(mia, "provider=bitbucket&code_challenge="+challenge+"&code_challenge_method=S256")
	var g grantJSON
	a.do("POST /token?grant_type=pkce",
		map[string]any{"auth_code": l.query.Get("code"), "code_verifier": pkceVerifier}).json(&g)
	if g.User.ID != mia.User.ID || len(g.User.Identities) != 4 {
		t.Errorf("%+v", g.User)
	}

	drop := func(g grantJSON, id string, headers ...header) answer {
		t.Helper()
		return a.do("DELETE /user/identities/"+id, nil, append(headers, bearer(g.AccessToken))...)
	}
	drop(mia, "none").refused(404, "validation_failed", "identity_id must be an UUID")
	drop(mia, mia.User.ID).refused(422, "identity_not_found", "Identity doesn't exist")
	drop(tom, github["identity_id"].(string)).refused(422, "single_identity_not_deletable",
		"User must have at least 1 identity after unlinking")
	drop(mia, mia.User.ID, header{"X-JWT-AUD", "other"}).refused(403, "unexpected_audience",
		"Token audience doesn't match request audience")
	drop(mia, github["identity_id"].(string)).is(200, "{}")
	// An address that the provider has not verified is not given: the user has none then.
	a.idp.SetUser(person("4", "!tom@example.org"))
	ann := a.member("ann@example.org")
	out := a.link(ann, "provider=github")
	drop(ann, ann.User.Identities[0]["identity_id"].(string)).is(200, "{}")
	if u := a.user(out); u.Email != "" {
		t.Errorf("%+v", u)
	}
	// A verified one that belongs to another user keeps the user's own.
	a.idp.SetUser(person("5", "tom@example.org"))
	bob := a.member("bob@example.org")
	a.link(bob, "provider=github").in()
	drop(bob, bob.User.Identities[0]["identity_id"].(string)).refused(422, "email_conflict_identity_not_deletable",
		"Unable to unlink identity due to email conflict")

	a.settings(func(s *flow.Settings) { s.External.ManualLinking = false })
	const off = "Manual linking is disabled"
	drop(mia, github["identity_id"].(string)).refused(404, "manual_linking_disabled", off)
	a.do("GET /user/identities/authorize?provider=none", nil, bearer(mia.AccessToken)).refused(404,
		"manual_linking_disabled", off)
	a.do("GET /user/identities/authorize?provider=none", nil).refused(401, "no_authorization", "*")
}

// The user that began the linking is checked again when the browser is back.
func TestIdentities_checkedAgain(t *testing.T) {
	a := openAbroad(t)
	a.idp.SetUser(person("1", "else@example.org"))
	mia := a.member("mia@example.org")
	back := a.visit(a.linkURL(mia, "provider=github"))
	a.do("POST /logout?scope=local", nil, bearer(mia.AccessToken)).is(204, "")
	a.callback(back).out("access_denied", "session_not_found", "*")
	tom := a.member("tom@example.org")
	back = a.visit(a.linkURL(tom, "provider=github"))
	a.settings(func(s *flow.Settings) { s.Sessions.Timebox = time.Minute })
	a.pass(2 * time.Minute)
	a.callback(back).out("access_denied", "session_expired", "*")
	a.settings(func(s *flow.Settings) { s.Sessions.Timebox = 0 })
	back = a.visit(a.linkURL(tom, "provider=github"))
	a.do("DELETE /admin/users/"+tom.User.ID, nil, a.service()).is(200, "{}")
	a.callback(back).astray("user_not_found", "Linking target user not found")
}

func TestIdentities_anonymous(t *testing.T) {
	a := openAbroad(t)
	guest := func() (g grantJSON) {
		a.do("POST /signup", map[string]any{}).json(&g)
		return g
	}
	a.member("mia@example.org")
	a.idp.SetUser(person("1", "mia@example.org"))
	a.link(guest(), "provider=github").out("invalid_request", "email_exists", "*")
	a.idp.SetUser(person("2", "!tom@example.org"))
	a.link(guest(), "provider=github").out("server_error", "email_not_confirmed",
		"Unverified email with github. A confirmation email has been sent to your github email")
	a.idp.SetUser(person("3", "ann@example.org"))
	g := guest()
	if u := a.user(a.link(g, "provider=github")); u.ID != g.User.ID || u.IsAnonymous || u.Email != "ann@example.org" {
		t.Errorf("%+v", u)
	}
	a.settings(func(s *flow.Settings) { s.Email.Sent = flow.Rate{N: 0, Per: time.Hour} })
	a.idp.SetUser(person("4", "!kim@example.org"))
	a.signIn("provider=github").out("server_error", "over_email_send_rate_limit", "email rate limit exceeded")
	a.settings(func(s *flow.Settings) {
		s.Email.Sent, s.Email.Authorized = flow.Rate{N: 100, Per: time.Hour}, []string{"boss@example.org"}
	})
	a.signIn("provider=github").out("invalid_request", "email_address_not_authorized", "*")
	native := map[string]any{"id_token": a.idp.IDToken("google", person("5", "!kim@example.org"), nil),
		"provider": "google"}
	a.do("POST /token?grant_type=id_token", native).refused(400, "email_address_not_authorized", "*")
}

func TestToken_idToken(t *testing.T) {
	a := openAbroad(t)
	native := func(in map[string]any, headers ...header) answer {
		t.Helper()
		return a.do("POST /token?grant_type=id_token", in, headers...)
	}
	oauth := func(got answer, code, description string) {
		t.Helper()
		if got.StatusCode != 400 || !like(got.body, `{"error":"`+code+`","error_description":"`+description+`"}`) ||
			got.Header.Get("X-Sb-Error-Code") != "" {
			t.Errorf("%d %s, want %s %s", got.StatusCode, got.body, code, description)
		}
	}
	oauth(native(map[string]any{}), "invalid request", "id_token required")
	oauth(native(map[string]any{"id_token": "x"}), "invalid request", "provider or client_id and issuer required")
	oauth(native(map[string]any{"id_token": "x", "provider": "google"}), "invalid request", "Bad ID token")
	native(map[string]any{"id_token": "x", "provider": "github"}).refused(400, "validation_failed",
		`Custom OIDC provider "github" not allowed`)

	mint := func(email string, claims map[string]any) string {
		u := person("9"+email, email)
		return a.idp.IDToken("google", u, claims)
	}
	var g grantJSON
	text := mint("mia@example.org", nil)
	got := native(map[string]any{"id_token": text, "provider": "google", "gotrue_meta_security": map[string]any{}})
	got.json(&g)
	if g.User.Email != "mia@example.org" || g.User.AppMetadata["provider"] != "google" ||
		strings.Contains(got.body, "provider_token") {
		t.Errorf("%s", got.body)
	}
	// Once. A leaked token is useless after its owner used it.
	oauth(native(map[string]any{"id_token": text, "provider": "google"}), "invalid request", "Bad ID token")
	a.settings(func(s *flow.Settings) { s.External.IDTokenOnce = false })
	native(map[string]any{"id_token": text, "provider": "google"}).is(200, "*")
	a.settings(func(s *flow.Settings) { s.External.IDTokenOnce = true })

	oauth(native(map[string]any{"id_token": mint("n@example.org", map[string]any{"nonce": "x"}), "provider": "google"}),
		"invalid request", "Passed nonce and nonce in id_token should either both exist or not.")
	oauth(native(map[string]any{"id_token": mint("n@example.org", map[string]any{"nonce": "x"}), "provider": "google",
		"nonce": "y"}), "invalid nonce", "Nonces mismatch")
	oauth(native(map[string]any{"id_token": mint("n@example.org", map[string]any{"aud": "other"}),
		"provider": "google"}),
		"invalid request", "Unacceptable audience in id_token: *")
	a.idp.Behave("google", fakeidp.Behaviour{Forged: true})
	oauth(native(map[string]any{"id_token": mint("n@example.org", nil), "provider": "google"}), "invalid request",
		"Bad ID token")
	a.idp.Behave("google", fakeidp.Behaviour{})
	for _, why := range []string{"invalid nonce: Nonces mismatch",
		"Bad ID token: account: the ID token was used before", "Bad ID token: token signature is invalid"} {
		if !strings.Contains(a.log.String(), why) {
			t.Errorf("the log says nothing of %q", why)
		}
	}

	native(map[string]any{"id_token": mint("!open@example.org", nil), "provider": "google"}).refused(422,
		"provider_email_needs_verification", "Unverified email with google. *")
	native(map[string]any{"id_token": mint("", nil), "provider": "google"}).refused(500, "unexpected_failure",
		"Error getting user email from external provider")
	native(map[string]any{"id_token": mint("not an address", nil), "provider": "google"}).refused(422,
		"validation_failed", "google returned an address that is not valid")
	a.client("google", func(c *provider.Client) { c.EmailOptional, c.IDTokenOnly, c.Secret = true, true, "" })
	native(map[string]any{"id_token": mint("", map[string]any{"jti": "optional"}), "provider": "google"}).is(200, "*")
	a.client("google", func(c *provider.Client) { c.EmailOptional = false })
	a.settings(func(s *flow.Settings) { s.DisableSignup = true })
	native(map[string]any{"id_token": mint("closed@example.org", nil), "provider": "google"}).refused(422,
		"signup_disabled", "Signups not allowed for this instance")
	a.do("PUT /admin/users/"+g.User.ID, map[string]any{"ban_duration": "1h"}, a.service()).is(200, "*")
	a.pass(time.Second)
	native(map[string]any{"id_token": mint("mia@example.org", map[string]any{"jti": "another"}),
		"provider": "google"}).refused(403, "user_banned", "User is banned")
	a.settings(func(s *flow.Settings) { s.DisableSignup, s.Email.Sent = false, flow.Rate{N: 0, Per: time.Hour} })
	native(map[string]any{"id_token": mint("!limit@example.org", nil), "provider": "google"}).refused(429,
		"over_email_send_rate_limit", "*")
	a.settings(func(s *flow.Settings) { s.Email.Sent = flow.Rate{N: 100, Per: time.Hour} })

	// Linking.
	linking := func(email string) map[string]any {
		return map[string]any{"id_token": mint(email, map[string]any{"jti": email + time.Now().String()}),
			"provider": "google", "link_identity": true}
	}
	oauth(native(linking("l@example.org")), "invalid request",
		"Linking requires a valid user access token in Authorization")
	native(linking("l@example.org"), header{"Authorization", "Basic x"}).refused(401, "no_authorization", "*")
	native(linking("l@example.org"), bearer("x")).refused(403, "bad_jwt", "*")
	kim := a.member("kim@example.org")
	var linked grantJSON
	native(linking("l@example.org"), bearer(kim.AccessToken)).json(&linked)
	if linked.User.ID != kim.User.ID || len(linked.User.Identities) != 2 {
		t.Errorf("%+v", linked.User)
	}
	native(linking("l@example.org"), bearer(kim.AccessToken)).refused(422, "identity_already_exists",
		"Identity is already linked")
	var guest grantJSON
	a.do("POST /signup", map[string]any{}).json(&guest)
	native(linking("kim@example.org"), bearer(guest.AccessToken)).refused(400, "email_exists", "*")
	native(linking("!unproven@example.org"), bearer(guest.AccessToken)).refused(422, "email_not_confirmed", "*")
	gone := a.member("gone@example.org")
	a.do("POST /logout?scope=local", nil, bearer(gone.AccessToken)).is(204, "")
	native(linking("g@example.org"), bearer(gone.AccessToken)).refused(403, "session_not_found", "*")
	a.settings(func(s *flow.Settings) { s.External.ManualLinking = false })
	native(linking("m@example.org"), bearer(kim.AccessToken)).refused(404, "manual_linking_disabled",
		"Manual linking is disabled")

	a.client("google", func(c *provider.Client) { c.Enabled = false })
	native(map[string]any{"id_token": "x", "provider": "google"}).refused(400, "provider_disabled",
		`Provider (issuer "*") is not enabled`)
}

// Linking by PKCE: the callback gives a code, which links nothing until it is exchanged.
func TestIdentities_byCode(t *testing.T) {
	a := openAbroad(t)
	a.idp.SetUser(person("1", "else@example.org"))
	mia, tom := a.member("mia@example.org"), a.member("tom@example.org")
	began := a.visit(a.linkURL(mia, "provider=github")) // without a challenge, while that was allowed
	a.settings(func(s *flow.Settings) { s.External.LinkingPKCE = true })
	const needed = "Linking needs a code challenge: use the PKCE flow (flowType: 'pkce')"
	a.callback(began).out("invalid_request", "validation_failed", needed)
	const path = "GET /user/identities/authorize?skip_http_redirect=true&provider="
	a.do(path+"github", nil, bearer(mia.AccessToken)).refused(400, "validation_failed", needed)
	link := func(g grantJSON) map[string]any {
		t.Helper()
		l := a.link(g, "provider=github&code_challenge="+challenge+"&code_challenge_method=S256")
		return map[string]any{"auth_code": l.query.Get("code"), "code_verifier": pkceVerifier}
	}
	body := link(mia)
	var u userJSON
	a.do("GET /user", nil, bearer(mia.AccessToken)).json(&u)
	if len(u.Identities) != 1 {
		t.Errorf("linked before the exchange: %+v", u)
	}
	var g grantJSON
	a.do("POST /token?grant_type=pkce", body).json(&g)
	if g.User.ID != mia.User.ID || len(g.User.Identities) != 2 {
		t.Errorf("%+v", g.User)
	}
	a.do("POST /token?grant_type=pkce", link(tom)).refused(422, "identity_already_exists",
		"Identity is already linked to another user")
	a.do("POST /token?grant_type=pkce", link(tom), bearer(mia.AccessToken)).refused(403, "bad_jwt",
		"The access token is not of the user who asked for the linking")
}

// The code of a linking is good from the moment that it is issued, however long the provider took to answer.
func TestIdentities_byCodeOfSlowProvider(t *testing.T) {
	a := openAbroad(t, func(s *flow.Settings, _ *Settings) { s.External.LinkingPKCE = true })
	a.idp.SetUser(person("1", "else@example.org"))
	mia := a.member("mia@example.org")
	a.providers.Watch = func(ctx context.Context, _ outbound.Call) (context.Context, func(int, error)) {
		a.pass(10 * time.Second)
		return ctx, func(int, error) {}
	}
	var life time.Duration
	a.settings(func(s *flow.Settings) { s.External.Providers, life = a.set(t), s.FlowLife })
	l := a.link(mia, "provider=github&code_challenge="+challenge+"&code_challenge_method=S256")
	a.pass(life)
	var g grantJSON
	body := map[string]any{"auth_code": l.query.Get("code"), "code_verifier": pkceVerifier}
	if a.do("POST /token?grant_type=pkce", body).json(&g); g.User.ID != mia.User.ID || len(g.User.Identities) != 2 {
		t.Errorf("%+v", g.User)
	}
}

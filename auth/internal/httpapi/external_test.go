package httpapi

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/provider"
	"gatehouse/shared/fakeidp"
)

// Every provider, from the button to GET /user.
func TestExternal_everyProvider(t *testing.T) {
	a := openAbroad(t)
	for i, name := range append(provider.Names(), "local") {
		email := name + "@example.org"
		if name == "spotify" { // which verifies nothing
			a.settings(func(s *flow.Settings) { s.External.AllowUnverified = true })
		}
		if name == "azure" { // one tenant's word for its own domain is enough; any tenant's is not
			a.idp.Behave(name, fakeidp.Behaviour{Claims: func(c map[string]any) { c["xms_edov"] = true }})
		}
		a.idp.SetUser(person(fmt.Sprint(1000+i), email))
		l := a.signIn("provider=" + name + "&redirect_to=" + url.QueryEscape("https://other.example.org/in?a=b#old"))
		u := a.user(l)
		if u.Email != email || u.AppMetadata["provider"] != name || len(u.Identities) != 1 ||
			u.Identities[0]["provider"] != name {
			t.Errorf("%s: %+v", name, u)
		}
		v := l.fragment
		if l.to != "https://other.example.org/in" || l.query.Encode() != "a=b" ||
			v.Get("token_type") != "bearer" || v.Get("expires_in") != "3600" ||
			v.Get("expires_at") != fmt.Sprint(a.clock().Unix()+3600) || v.Get("provider") != name ||
			v.Get("provider_token") == "" || v.Get("refresh_token") == "" || v.Has("sb") {
			t.Errorf("%s: %s", name, l.Header.Get("Location"))
		}
		if keys := slices.Sorted(maps.Keys(v)); name == "github" &&
			fmt.Sprint(
				keys) !=
				"[access_token expires_at expires_in provider provider_refresh_token provider_token refresh_token "+
					"token_type]" {
			t.Errorf("%v", keys)
		}
		if claims := claimsOf(t, v.Get("access_token")); claims["aal"] != "aal1" ||
			fmt.Sprint(claims["amr"].([]any)[0].(map[string]any)["method"]) != "oauth" {
			t.Errorf("%s: %v", name, claims)
		}
		// The second time the user is known.
		if again := a.user(a.signIn("provider=" + strings.ToUpper(name))); again.ID != u.ID ||
			len(again.Identities) != 1 {
			t.Errorf("%s: a second user or identity: %+v", name, again)
		}
		dialect := name
		if name == "local" {
			dialect = "oidc"
		}
		if c := a.idp.Complaints(dialect); c != nil {
			t.Errorf("%s: the provider complains: %s", name, c)
		}
	}
	var set struct{ External map[string]bool }
	a.do("GET /settings", nil).json(&set)
	if set.External["github"] { // what it shows is not requested from the providers
		t.Errorf("%+v", set)
	}
}

// suite is what differs between the providers that all cases are tried with.
var suites = map[string]struct {
	// unverified has the provider send an address that it doesn't vouch for; nil: it always does.
	unverified func(*fakeidp.User, *fakeidp.Behaviour)
	verified   func(*fakeidp.Behaviour)
	// badProfile are ways in which the profile can be unusable.
	badProfile map[string]fakeidp.Behaviour
}{
	"github": {
		unverified: unverifiedFlag,
		badProfile: map[string]fakeidp.Behaviour{"500": answers("/api/v3/user", fakeidp.ServerError),
			"no JSON": answers("/api/v3/user/emails", fakeidp.NotJSON)},
	},
	"google": {unverified: unverifiedFlag, badProfile: map[string]fakeidp.Behaviour{"forged": {Forged: true},
		"another audience": claims("aud", "somebody-else")}},
	"apple": {badProfile: map[string]fakeidp.Behaviour{"no ID token": {NoIDToken: true},
		"another issuer": claims("iss", "https://evil.example")}},
	"keycloak": {unverified: unverifiedFlag,
		badProfile: map[string]fakeidp.Behaviour{"500": answers("/protocol/openid-connect/userinfo",
			fakeidp.ServerError),
			"no JSON": answers("/protocol/openid-connect/userinfo", fakeidp.NotJSON)}},
	"azure": {
		unverified: func(_ *fakeidp.User, b *fakeidp.Behaviour) { *b = claims("xms_edov", nil) },
		verified:   func(b *fakeidp.Behaviour) { *b = claims("xms_edov", true) },
		badProfile: map[string]fakeidp.Behaviour{"no ID token": {NoIDToken: true},
			"another issuer": claims("iss", "https://evil.example/v2.0")},
	},
	"twitter": {badProfile: map[string]fakeidp.Behaviour{"500": answers("/1.1/account/verify_credentials.json",
		fakeidp.ServerError), "no JSON": answers("/1.1/account/verify_credentials.json", fakeidp.NotJSON)}},
}

func unverifiedFlag(u *fakeidp.User, _ *fakeidp.Behaviour) { u.Verified = false }

func answers(path string, a fakeidp.Answer) fakeidp.Behaviour {
	return fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{path: a}}
}

func claims(name string, value any) fakeidp.Behaviour {
	return fakeidp.Behaviour{Claims: func(c map[string]any) {
		if c[name] = value; value == nil {
			delete(c, name)
		}
	}}
}

// All cases of docs/providers.md#who-signs-in, from /authorize to the session.
func TestExternal_cases(t *testing.T) {
	for name, s := range suites {
		t.Run(name, func(t *testing.T) {
			a := openAbroad(t)
			n := 0
			// as sets the user at the provider; behaviour overrides the default of a verified address.
			as := func(email string, b fakeidp.Behaviour) fakeidp.User {
				n++
				u := person(fmt.Sprint(5000+n), email)
				if s.verified != nil && b.Claims == nil {
					v := fakeidp.Behaviour{}
					s.verified(&v)
					b.Claims = v.Claims
				}
				a.idp.SetUser(u)
				a.idp.Behave(name, b)
				return u
			}
			go_ := "provider=" + name
			honest := fakeidp.Behaviour{}

			as("new@example.org", honest)
			u := a.user(a.signIn(go_))
			if u.Email != "new@example.org" || u.ConfirmedAt == "" || u.UserMetadata["full_name"] == "" {
				t.Errorf("%+v", u)
			}
			old := a.member("old@example.org")
			as("Old@Example.org", honest)
			if u := a.user(a.signIn(go_)); u.ID != old.User.ID || len(u.Identities) != 2 {
				t.Errorf("not linked: %+v", u)
			}

			a.settings(func(s *flow.Settings) { s.DisableSignup = true })
			as("closed@example.org", honest)
			a.signIn(go_).out("access_denied", "signup_disabled", "Signups not allowed for this instance")
			as("old@example.org", honest)
			a.signIn(go_).in()
			a.settings(func(s *flow.Settings) { s.DisableSignup = false })

			as("", honest)
			a.signIn(go_).out("server_error", "unexpected_failure", "Error getting user email from external provider")
			as("not an address", honest)
			lines := strings.Count(a.log.String(), "level=ERROR")
			a.signIn(go_).out("server_error", "validation_failed", "* returned an address that is not valid")
			if n := strings.Count(a.log.String(), "level=ERROR"); n != lines {
				t.Errorf("%d error lines for a malformed address", n-lines)
			}
			a.client(name, func(c *provider.Client) { c.EmailOptional = true })
			a.signIn(go_).out("server_error", "validation_failed", "* returned an address that is not valid")
			as("", honest)
			if u := a.user(a.signIn(go_)); u.Email != "" {
				t.Errorf("%+v", u)
			}
			a.client(name, func(c *provider.Client) { c.EmailOptional = false })

			if s.unverified != nil {
				b := honest
				u := person("4999", "open@example.org")
				s.unverified(&u, &b)
				a.idp.SetUser(u)
				a.idp.Behave(name, b)
				a.signIn(go_).out("access_denied", "provider_email_needs_verification",
					fmt.Sprintf("Unverified email with %s. A confirmation email has been sent to your %s email", name,
						name))
				l := a.newest("open@example.org")
				a.do("POST /verify", map[string]any{"type": "signup", "token_hash": l.Hash}).is(200, "*")
				a.signIn(go_).in()
				u = person("4998", "new@example.org") // another user's
				s.unverified(&u, &b)
				a.idp.SetUser(u)
				a.signIn(go_).out("access_denied", "provider_email_needs_verification",
					fmt.Sprintf("Unverified email with %s. Verify the email with %s in order to sign in", name, name))
			}

			invite := func(email string) string {
				a.do("POST /invite", map[string]any{"email": email}, a.service()).is(200, "*")
				return "&invite_token=" + a.newest(email).Hash
			}
			as("guest@example.org", honest)
			token := invite("guest@example.org")
			if u := a.user(a.signIn(go_ + token)); u.Email != "guest@example.org" ||
				u.InvitedAt == "" || u.AppMetadata["provider"] != name {
				t.Errorf("%+v", u)
			}
			a.do("GET /authorize?"+go_+token, nil).refused(404, "user_not_found",
				"User identified by token not found") // used up
			as("another@example.org", honest)
			a.signIn(go_+invite("guest2@example.org")).out("invalid_request", "validation_failed",
				"Invited email does not match emails from external provider")
			token = invite("guest3@example.org")
			b := a.authorize(go_ + token)
			a.do("POST /verify", map[string]any{"type": "invite",
				"token_hash": strings.TrimPrefix(token, "&invite_token=")}).is(200, "*")
			a.callback(b.back, b.cookies...).out("server_error", "invite_not_found", "Invite not found")

			as("new@example.org", fakeidp.Behaviour{Deny: true})
			l := a.signIn(go_)
			if l.query.Get("error") != "access_denied" || l.query.Get("error_description") == "" ||
				l.query.Has("error_code") || l.fragment.Get("error") != "access_denied" {
				t.Errorf("%s", l.Header.Get("Location"))
			}
			path := "token"
			if name == "twitter" {
				path = "/oauth/access_token"
			}
			as("new@example.org", answers(path, fakeidp.Unauthorized))
			a.signIn(go_).out("server_error", "unexpected_failure", "Unable to exchange external code")
			for _, bad := range s.badProfile {
				as("new@example.org", bad)
				a.signIn(go_).out("server_error", "unexpected_failure",
					"Error getting user profile from external provider")
			}

			person := as("barred@example.org", honest)
			barred := a.user(a.signIn(go_))
			a.do("PUT /admin/users/"+barred.ID, map[string]any{"ban_duration": "1h"}, a.service()).is(200, "*")
			a.signIn(go_).out("access_denied", "user_banned", "User is banned")

			person.Email, person.ID = "pkce@example.org", "4000"
			a.idp.SetUser(person)
			b = a.authorize(go_ + "&code_challenge=" + challenge + "&code_challenge_method=s256&redirect_to=" +
				url.QueryEscape("https://other.example.org/in?a=b&code=old"))
			l = a.callback(b.back, b.cookies...)
			if l.to != "https://other.example.org/in" || len(l.fragment) > 0 ||
				l.query.Get("a") != "b" || len(l.query["code"]) != 1 || l.query.Get("code") == "old" {
				t.Fatalf("%s", l.Header.Get("Location"))
			}
			a.callback(b.back, b.cookies...).astray("flow_state_already_used", "State has already been used")
			var g struct {
				grantJSON
				ProviderToken string `json:"provider_token"`
			}
			a.do("POST /token?grant_type=pkce",
				map[string]any{"auth_code": l.query.Get("code"), "code_verifier": pkceVerifier}).json(&g)
			if g.User.Email != "pkce@example.org" || g.ProviderToken == "" {
				t.Errorf("%+v", g)
			}

			as("mixed@example.org", honest)
			first := a.user(a.signIn("provider=" + strings.ToUpper(name[:1]) + name[1:]))
			if again := a.user(a.signIn(go_)); again.ID != first.ID || len(again.Identities) != 1 ||
				again.Identities[0]["provider"] != name {
				t.Errorf("%+v", again)
			}
			if c := a.idp.Complaints(name); c != nil {
				t.Errorf("the provider complains: %s", c)
			}
		})
	}
}

// Every text that comes from a browser, an application or a provider, filled with what breaks naive code.
func TestExternal_hostile(t *testing.T) {
	a := openAbroad(t)
	g := a.member("mia@example.org")
	fine := func(what, field, text string, got answer) {
		t.Helper()
		if got.StatusCode >= 500 || got.StatusCode == 200 && strings.HasPrefix(what, "POST /token") {
			t.Errorf("%s with %s %.40q: %d %s", what, field, text, got.StatusCode, got.body)
		}
		if to := got.Header.Get("Location"); strings.ContainsFunc(to,
			func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			t.Errorf("%s with %s %.40q leads to %q", what, field, text, to)
		}
	}
	for i, text := range append(nasty, "\x00", "\xff\xfe", "https://other.example.org/\x00\xff\u00e9", "%00%ff") {
		for _, field := range []string{"provider", "scopes", "redirect_to", "code_challenge", "code_challenge_method",
			"invite_token", "login_hint", "state"} {
			q := url.Values{"provider": {"gitlab"}}
			q.Set(field, text[:min(len(text), 8000)])
			fine("GET /authorize", field, text, a.do("GET /authorize?"+q.Encode(), nil))
			fine("GET /user/identities/authorize", field, text,
				a.do("GET /user/identities/authorize?"+q.Encode(), nil, bearer(g.AccessToken)))
		}
		state := a.authorize("provider=gitlab")
		for _, field := range []string{"state", "code", "error", "error_description", "iss", "oauth_token", "user"} {
			if i%5 == 0 || field == "state" { // a state is used up each time
				state = a.authorize("provider=gitlab")
			}
			q := state.back.Params()
			q.Set(field, text[:min(len(text), 8000)])
			fine("GET /callback", field, text, a.do("GET /callback?"+q.Encode(), nil, state.cookies...))
			fine("POST /callback", field, text, a.do("POST /callback", q.Encode()))
		}
		for _, field := range []string{"id_token", "provider", "access_token", "nonce", "client_id", "issuer"} {
			in := map[string]any{"id_token": "x.y.z", "provider": "google"}
			in[field] = strings.ToValidUTF8(text, "?")
			fine("POST /token?grant_type=id_token", field, text,
				a.do("POST /token?grant_type=id_token", strings.ReplaceAll(jsonText(t, in), `\u0000`, ""),
					bearer(g.AccessToken)))
		}
		u := person(fmt.Sprint(7000+i), fmt.Sprintf("n%d@example.org", i))
		u.Name, u.Login, u.Picture = text[:min(len(text), 20000)], text[:min(len(text), 20000)],
			text[:min(len(text), 20000)]
		a.idp.SetUser(u)
		if got := a.user(a.signIn("provider=github")); got.Email != u.Email {
			t.Errorf("%+v", got)
		}
	}
}

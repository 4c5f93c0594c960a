package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/fakeidp"
)

const pkceVerifier = "a-verifier-of-at-least-forty-three-characters"

// challenge belongs to pkceVerifier by the method s256.
var challenge = func() string {
	sum := sha256.Sum256([]byte(pkceVerifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}()

// githubAlone is a set with one provider, of which no test asks more than the way there.
func githubAlone(t testing.TB) *provider.Set {
	t.Helper()
	set, err := provider.New(provider.Settings{Clients: map[string]provider.Client{
		"github": {Enabled: true, ClientIDs: []string{"client"}, Secret: "secret", RedirectURI: externalURL + "/callback"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	return set
}

// abroad is the API with every provider at a fake.
type abroad struct {
	*api
	idp       *fakeidp.Server
	providers provider.Settings
}

func openAbroad(t *testing.T, changes ...change) *abroad {
	t.Helper()
	idp, err := fakeidp.Start(fakeidp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(idp.Close)
	a := &abroad{idp: idp, providers: provider.Settings{Clients: map[string]provider.Client{}, OIDC: map[string]provider.Client{}}}
	for _, id := range append(provider.Names(), "oidc") {
		c := provider.Client{Enabled: true, ClientIDs: []string{fakeidp.ClientID}, Secret: fakeidp.ClientSecret, RedirectURI: externalURL + "/callback", URL: idp.Base(id)}
		if id == "oidc" {
			c.Issuer, c.URL = c.URL, ""
			a.providers.OIDC["local"] = c
		} else {
			a.providers.Clients[id] = c
		}
	}
	a.api = open(t, append([]change{func(s *account.Settings, _ *Settings) {
		s.External = account.ExternalSettings{StateCookie: true, ManualLinking: true, IDTokenOnce: true}
		s.External.Providers = a.set(t)
	}}, changes...)...)
	return a
}

func (a *abroad) set(t testing.TB) *provider.Set {
	t.Helper()
	set, err := provider.New(a.providers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(set.Close)
	return set
}

// client changes what is agreed with a provider.
func (a *abroad) client(id string, f func(*provider.Client)) {
	a.t.Helper()
	c := a.providers.Clients[id]
	f(&c)
	a.providers.Clients = maps.Clone(a.providers.Clients)
	a.providers.Clients[id] = c
	a.apply(func(s *account.Settings, _ *Settings) { s.External.Providers = a.set(a.t) })
}

func (a *abroad) settings(f func(*account.Settings)) {
	a.t.Helper()
	a.apply(func(s *account.Settings, _ *Settings) { f(s) })
}

// person is an account at the fake whose address is verified unless it begins with "!".
func person(id, email string) fakeidp.User {
	u := fakeidp.Ann
	u.ID, u.Login = id, "p"+id
	u.Email, u.Verified = strings.TrimPrefix(email, "!"), !strings.HasPrefix(email, "!") && email != ""
	return u
}

// begun is a browser on its way.
type begun struct {
	cookies []header
	back    fakeidp.Callback
	url     string
}

// authorize begins, and does what is to be done at the provider.
func (a *abroad) authorize(query string, headers ...header) begun {
	a.t.Helper()
	if strings.Contains(strings.ToLower(query), "provider=workos") {
		query += "&connection=conn_1"
	}
	got := a.do("GET /authorize?"+query, nil, headers...)
	if got.StatusCode != http.StatusFound {
		a.t.Fatalf("/authorize?%s: %d %s", query, got.StatusCode, got.body)
	}
	b := begun{url: got.Header.Get("Location")}
	for _, c := range got.Cookies() {
		b.cookies = append(b.cookies, header{"Cookie", c.Name + "=" + c.Value})
	}
	b.back = a.visit(b.url)
	return b
}

func (a *abroad) visit(address string) fakeidp.Callback {
	a.t.Helper()
	back, err := a.idp.Visit(a.t.Context(), address)
	if err != nil {
		a.t.Fatal(err)
	}
	return back
}

// landing is where the browser ends.
type landing struct {
	answer
	to              string
	query, fragment url.Values
}

// callback brings the provider's answer to us.
func (a *abroad) callback(b fakeidp.Callback, cookies ...header) landing {
	a.t.Helper()
	if b.Form != nil {
		return landed(a.do("POST /callback", b.Form.Encode(), append(cookies, header{"Content-Type", "application/x-www-form-urlencoded"})...))
	}
	u, err := url.Parse(b.URL)
	if err != nil || u.Path != "/callback" {
		a.t.Fatalf("%v: %s", err, b.URL)
	}
	return landed(a.do("GET /callback?"+u.RawQuery, nil, cookies...))
}

func landed(got answer) landing {
	got.t.Helper()
	u, err := url.Parse(got.Header.Get("Location"))
	if err != nil {
		got.t.Fatal(err)
	}
	l := landing{answer: got, query: u.Query()}
	if l.fragment, err = url.ParseQuery(u.EscapedFragment()); err != nil {
		got.t.Fatal(err)
	}
	u.RawQuery, u.Fragment, u.RawFragment = "", "", ""
	l.to = u.String()
	return l
}

// signIn is the whole way.
func (a *abroad) signIn(query string, headers ...header) landing {
	a.t.Helper()
	b := a.authorize(query, headers...)
	return a.callback(b.back, b.cookies...)
}

// in is a landing with a session.
func (l landing) in() landing {
	l.t.Helper()
	if l.StatusCode != http.StatusFound || l.fragment.Get("access_token") == "" {
		l.t.Fatalf("no session: %d %s", l.StatusCode, l.Header.Get("Location"))
	}
	return l
}

// out is a landing with an error, the same in query and fragment.
func (l landing) out(error, code, description string) landing {
	l.t.Helper()
	if l.StatusCode != http.StatusFound || l.query.Get("error") != error || l.query.Get("error_code") != code || !like(l.query.Get("error_description"), description) {
		l.t.Errorf("%d %s\nwant %s %s %s", l.StatusCode, l.Header.Get("Location"), error, code, description)
	}
	for _, key := range []string{"error", "error_code", "error_description"} {
		if l.query.Get(key) != l.fragment.Get(key) {
			l.t.Errorf("%s: query and fragment differ: %s", key, l.Header.Get("Location"))
		}
	}
	return l
}

// astray is a landing on the site, with the error in the query alone.
func (l landing) astray(code, description string) {
	l.t.Helper()
	if l.StatusCode != http.StatusSeeOther || l.to != siteURL || l.query.Get("error_code") != code || !like(l.query.Get("error_description"), description) || len(l.fragment) > 0 {
		l.t.Errorf("%d %s\nwant %s %s", l.StatusCode, l.Header.Get("Location"), code, description)
	}
}

// user is who has the session of a landing.
func (a *abroad) user(l landing) (u userJSON) {
	a.t.Helper()
	a.do("GET /user", nil, bearer(l.in().fragment.Get("access_token"))).json(&u)
	return u
}

// Every provider, from the button to GET /user.
func TestExternal_each(t *testing.T) {
	a := openAbroad(t)
	for i, name := range append(provider.Names(), "local") {
		email := name + "@example.org"
		if name == "spotify" { // which verifies nothing
			a.settings(func(s *account.Settings) { s.External.AllowUnverified = true })
		}
		if name == "azure" { // one tenant's word for its own domain is enough; any tenant's is not
			a.idp.Behave(name, fakeidp.Behaviour{Claims: func(c map[string]any) { c["xms_edov"] = true }})
		}
		a.idp.SetUser(person(fmt.Sprint(1000+i), email))
		l := a.signIn("provider=" + name + "&redirect_to=" + url.QueryEscape("https://other.example.org/in?a=b#old"))
		u := a.user(l)
		if u.Email != email || u.AppMetadata["provider"] != name || len(u.Identities) != 1 || u.Identities[0]["provider"] != name {
			t.Errorf("%s: %+v", name, u)
		}
		v := l.fragment
		if l.to != "https://other.example.org/in" || l.query.Encode() != "a=b" || v.Get("token_type") != "bearer" || v.Get("expires_in") != "3600" ||
			v.Get("expires_at") != fmt.Sprint(a.clock().Unix()+3600) || v.Get("provider") != name || v.Get("provider_token") == "" || v.Get("refresh_token") == "" || v.Has("sb") {
			t.Errorf("%s: %s", name, l.Header.Get("Location"))
		}
		if keys := slices.Sorted(maps.Keys(v)); name == "github" && fmt.Sprint(keys) != "[access_token expires_at expires_in provider provider_refresh_token provider_token refresh_token token_type]" {
			t.Errorf("%v", keys)
		}
		if claims := claimsOf(t, v.Get("access_token")); claims["aal"] != "aal1" || fmt.Sprint(claims["amr"].([]any)[0].(map[string]any)["method"]) != "oauth" {
			t.Errorf("%s: %v", name, claims)
		}
		// The second time he is known.
		if again := a.user(a.signIn("provider=" + strings.ToUpper(name))); again.ID != u.ID || len(again.Identities) != 1 {
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
	if set.External["github"] { // what it shows is not asked of the providers
		t.Errorf("%+v", set)
	}
}

// suite is what differs between the providers that all cases are tried with.
var suites = map[string]struct {
	// unverified has the provider tell an address that it doesn't vouch for; nil: it always does.
	unverified func(*fakeidp.User, *fakeidp.Behaviour)
	verified   func(*fakeidp.Behaviour)
	// badProfile are ways in which the profile can be no good.
	badProfile map[string]fakeidp.Behaviour
}{
	"github": {
		unverified: unverifiedFlag,
		badProfile: map[string]fakeidp.Behaviour{"500": answers("/api/v3/user", fakeidp.ServerError), "no JSON": answers("/api/v3/user/emails", fakeidp.NotJSON)},
	},
	"google":   {unverified: unverifiedFlag, badProfile: map[string]fakeidp.Behaviour{"forged": {Forged: true}, "another audience": claims("aud", "somebody-else")}},
	"apple":    {badProfile: map[string]fakeidp.Behaviour{"no ID token": {NoIDToken: true}, "another issuer": claims("iss", "https://evil.example")}},
	"keycloak": {unverified: unverifiedFlag, badProfile: map[string]fakeidp.Behaviour{"500": answers("/protocol/openid-connect/userinfo", fakeidp.ServerError), "no JSON": answers("/protocol/openid-connect/userinfo", fakeidp.NotJSON)}},
	"azure": {
		unverified: func(_ *fakeidp.User, b *fakeidp.Behaviour) { *b = claims("xms_edov", nil) },
		verified:   func(b *fakeidp.Behaviour) { *b = claims("xms_edov", true) },
		badProfile: map[string]fakeidp.Behaviour{"no ID token": {NoIDToken: true}, "another issuer": claims("iss", "https://evil.example/v2.0")},
	},
	"twitter": {badProfile: map[string]fakeidp.Behaviour{"500": answers("/1.1/account/verify_credentials.json", fakeidp.ServerError), "no JSON": answers("/1.1/account/verify_credentials.json", fakeidp.NotJSON)}},
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

// All cases of auth-extended.md 10.2.
func TestExternal_cases(t *testing.T) {
	for name, s := range suites {
		t.Run(name, func(t *testing.T) {
			a := openAbroad(t)
			n := 0
			// as sets who is at the provider; behaviour is put over what makes his address a verified one.
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

			a.settings(func(s *account.Settings) { s.DisableSignup = true })
			as("closed@example.org", honest)
			a.signIn(go_).out("access_denied", "signup_disabled", "Signups not allowed for this instance")
			as("old@example.org", honest)
			a.signIn(go_).in()
			a.settings(func(s *account.Settings) { s.DisableSignup = false })

			as("", honest)
			a.signIn(go_).out("server_error", "unexpected_failure", "Error getting user email from external provider")
			a.client(name, func(c *provider.Client) { c.EmailOptional = true })
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
					fmt.Sprintf("Unverified email with %s. A confirmation email has been sent to your %s email", name, name))
				l := a.newest("open@example.org")
				a.do("POST /verify", map[string]any{"type": "signup", "token_hash": l.Hash}).is(200, "*")
				a.signIn(go_).in()
				u = person("4998", "new@example.org") // somebody's
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
			if u := a.user(a.signIn(go_ + token)); u.Email != "guest@example.org" || u.InvitedAt == "" || u.AppMetadata["provider"] != name {
				t.Errorf("%+v", u)
			}
			a.do("GET /authorize?"+go_+token, nil).refused(404, "user_not_found", "User identified by token not found") // used up
			as("another@example.org", honest)
			a.signIn(go_+invite("guest2@example.org")).out("invalid_request", "validation_failed", "Invited email does not match emails from external provider")
			token = invite("guest3@example.org")
			b := a.authorize(go_ + token)
			a.do("POST /verify", map[string]any{"type": "invite", "token_hash": strings.TrimPrefix(token, "&invite_token=")}).is(200, "*")
			a.callback(b.back, b.cookies...).out("server_error", "invite_not_found", "Invite not found")

			as("new@example.org", fakeidp.Behaviour{Deny: true})
			l := a.signIn(go_)
			if l.query.Get("error") != "access_denied" || l.query.Get("error_description") == "" || l.query.Has("error_code") || l.fragment.Get("error") != "access_denied" {
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
				a.signIn(go_).out("server_error", "unexpected_failure", "Error getting user profile from external provider")
			}

			person := as("barred@example.org", honest)
			barred := a.user(a.signIn(go_))
			a.do("PUT /admin/users/"+barred.ID, map[string]any{"ban_duration": "1h"}, a.service()).is(200, "*")
			a.signIn(go_).out("access_denied", "user_banned", "User is banned")

			person.Email, person.ID = "pkce@example.org", "4000"
			a.idp.SetUser(person)
			b = a.authorize(go_ + "&code_challenge=" + challenge + "&code_challenge_method=s256&redirect_to=" + url.QueryEscape("https://other.example.org/in?a=b&code=old"))
			l = a.callback(b.back, b.cookies...)
			if l.to != "https://other.example.org/in" || len(l.fragment) > 0 || l.query.Get("a") != "b" || len(l.query["code"]) != 1 || l.query.Get("code") == "old" {
				t.Fatalf("%s", l.Header.Get("Location"))
			}
			a.callback(b.back, b.cookies...).astray("flow_state_already_used", "State has already been used")
			var g struct {
				grantJSON
				ProviderToken string `json:"provider_token"`
			}
			a.do("POST /token?grant_type=pkce", map[string]any{"auth_code": l.query.Get("code"), "code_verifier": pkceVerifier}).json(&g)
			if g.User.Email != "pkce@example.org" || g.ProviderToken == "" {
				t.Errorf("%+v", g)
			}

			as("mixed@example.org", honest)
			first := a.user(a.signIn("provider=" + strings.ToUpper(name[:1]) + name[1:]))
			if again := a.user(a.signIn(go_)); again.ID != first.ID || len(again.Identities) != 1 || again.Identities[0]["provider"] != name {
				t.Errorf("%+v", again)
			}
			if c := a.idp.Complaints(name); c != nil {
				t.Errorf("the provider complains: %s", c)
			}
		})
	}
}

// A state is good for one callback, whatever becomes of it.
func TestCallback_stateOnce(t *testing.T) {
	a := openAbroad(t)
	get := func(query string) landing { t.Helper(); return landed(a.do("GET /callback?"+query, nil)) }
	get("").astray("bad_oauth_callback", "OAuth state parameter missing")
	get("state=x&code=y").astray("bad_oauth_state", "OAuth state parameter is invalid")
	get("state=0f4e6c1a-1f6b-4d0b-8d8e-4a3f2f1b7c55&code=y").astray("bad_oauth_state", "OAuth state not found or expired")
	landed(a.do("POST /callback", "state=x", header{"Content-Type", "application/x-www-form-urlencoded"})).astray("bad_oauth_state", "*")
	landed(a.do("POST /callback", "%zz", header{"Content-Type", "application/x-www-form-urlencoded"})).astray("bad_oauth_callback", "OAuth state parameter missing")

	b := a.authorize("provider=github")
	state := b.back.Params().Get("state")
	a.do("HEAD /callback?state="+state, nil, b.cookies...).is(204, "")
	a.do("GET /callback?state="+state+"&code=x", nil, append(b.cookies, header{"Sec-Purpose", "prefetch"})...).is(204, "")
	landed(a.do("GET /callback?state="+state, nil, b.cookies...)).out("invalid_request", "bad_oauth_callback", "OAuth callback with missing authorization code missing")
	a.callback(b.back, b.cookies...).astray("bad_oauth_state", "OAuth state not found or expired")

	b = a.authorize("provider=github")
	a.pass(5 * time.Minute)
	a.callback(b.back, b.cookies...).astray("bad_oauth_state", "OAuth state has expired")

	// While the database is away nothing is used up, and the browser is told to come back.
	b = a.authorize("provider=github")
	t.Run("away", func(t *testing.T) {
		lost := openOn(t, storetest.Open(t))
		lost.db.Close()
		u, err := url.Parse(b.back.URL)
		if err != nil {
			t.Fatal(err)
		}
		l := landed(lost.do("GET /callback?"+u.RawQuery, nil))
		if l.StatusCode != 303 || l.query.Get("error") != "temporarily_unavailable" || l.query.Get("error_code") != "unexpected_failure" {
			t.Errorf("%d %s", l.StatusCode, l.Header.Get("Location"))
		}
	})

	// Many at once: one gets in.
	b = a.authorize("provider=github")
	var wg sync.WaitGroup
	var mu sync.Mutex
	in := 0
	for range 8 {
		wg.Go(func() {
			if l := a.callback(b.back, b.cookies...); l.fragment.Get("access_token") != "" {
				mu.Lock()
				in++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if in != 1 {
		t.Errorf("%d got in", in)
	}
}

// What a redirect tells the application, the log tells the operator, at the level of other answers.
func TestCallback_log(t *testing.T) {
	a := openAbroad(t)
	f := func(level, cause string, b fakeidp.Behaviour) {
		t.Helper()
		a.idp.Behave("keycloak", b)
		before := len(a.log.String())
		a.signIn("provider=keycloak")
		for _, want := range []string{"level=" + level, "route=/callback", cause} {
			if log := a.log.String()[before:]; !strings.Contains(log, want) {
				t.Errorf("no %s in %s", want, log)
			}
		}
	}
	f("INFO", "status=302", fakeidp.Behaviour{})
	f("INFO", "error_code=provider_refused", fakeidp.Behaviour{Deny: true})
	f("WARN", "https://evil.example", fakeidp.Behaviour{ResponseIssuer: "https://evil.example"})
	f("ERROR", "answers 500", fakeidp.Behaviour{Answers: map[string]fakeidp.Answer{"/protocol/openid-connect/userinfo": fakeidp.ServerError}})
}

// A callback that another browser began signs nobody in: an attacker's code in a victim's browser
// (auth-extended.md 11.3).
func TestCallback_boundToTheBrowser(t *testing.T) {
	a := openAbroad(t)
	got := a.do("GET /authorize?provider=github", nil)
	k := got.Cookies()[0]
	if !strings.HasPrefix(k.Name, "__Host-gatehouse-state-") || !k.HttpOnly || !k.Secure || k.SameSite != http.SameSiteLaxMode || k.Path != "/" || k.MaxAge != 300 || k.Domain != "" {
		t.Errorf("%+v", k)
	}
	const other = "OAuth state was not issued to this browser"
	b := a.authorize("provider=github")
	a.callback(b.back).astray("bad_oauth_state", other)
	a.callback(b.back, b.cookies...).astray("bad_oauth_state", "OAuth state not found or expired")
	victims, attackers := a.authorize("provider=github"), a.authorize("provider=github")
	a.callback(attackers.back, victims.cookies...).astray("bad_oauth_state", other)
	l := a.callback(victims.back, victims.cookies...).in()
	if k := l.Cookies()[0]; k.MaxAge >= 0 || k.Value != "" {
		t.Errorf("the cookie stays: %+v", k)
	}
	// Two flows in one browser don't disturb each other.
	one, two := a.authorize("provider=github"), a.authorize("provider=google")
	both := append(one.cookies, two.cookies...)
	a.callback(one.back, both...).in()
	a.callback(two.back, both...).in()
	// Apple's is a POST from another site.
	k = a.do("GET /authorize?provider=apple", nil).Cookies()[0]
	if k.SameSite != http.SameSiteNoneMode || !k.Secure {
		t.Errorf("%+v", k)
	}
	// By http, which is for development, the name can't promise that.
	a.apply(func(_ *account.Settings, s *Settings) { s.ExternalURL = "http://localhost:9999" })
	k = a.do("GET /authorize?provider=github", nil).Cookies()[0]
	if !strings.HasPrefix(k.Name, "gatehouse-state-") || k.Secure {
		t.Errorf("%+v", k)
	}
	b = a.authorize("provider=github")
	a.callback(b.back, b.cookies...).in()
	// Nor would a client bring a Secure cookie back.
	k = a.do("GET /authorize?provider=apple", nil).Cookies()[0]
	if k.SameSite != 0 || k.Secure {
		t.Errorf("%+v", k)
	}
	a.apply(func(_ *account.Settings, s *Settings) { s.ExternalURL = externalURL })
	// For clients without cookies.
	b = a.authorize("provider=github")
	a.settings(func(s *account.Settings) { s.External.StateCookie = false })
	a.callback(b.back).astray("bad_oauth_state", other) // begun with one
	b = a.authorize("provider=github")
	if b.cookies != nil {
		t.Errorf("%v", b.cookies)
	}
	a.callback(b.back).in()
}

func TestAuthorize(t *testing.T) {
	a := openAbroad(t)
	f := func(query, msg string) {
		t.Helper()
		a.do("GET /authorize?"+query, nil).refused(400, "validation_failed", msg)
	}
	f("", "Unsupported provider: Provider  could not be found")
	f("provider=none", "Unsupported provider: Provider none could not be found")
	f("provider=github&code_challenge=x", "PKCE flow requires code_challenge_method and code_challenge")
	f("provider=github&code_challenge=x&code_challenge_method=s256", "code challenge has to be between 43 and 128 characters")
	f("provider=github&code_challenge="+strings.Repeat("!", 43)+"&code_challenge_method=s256", "code challenge can only contain alphanumeric characters, hyphens, periods, underscores and tildes")
	f("provider=github&code_challenge="+challenge+"&code_challenge_method=md5", "Invalid code_challenge_method")
	a.do("GET /authorize?provider=github&invite_token=x&code_challenge=x", nil).refused(404, "user_not_found", "User identified by token not found")
	a.client("github", func(c *provider.Client) { c.Enabled = false })
	f("provider=github", "Unsupported provider: provider is not enabled")
	a.client("google", func(c *provider.Client) { c.IDTokenOnly, c.Secret = true, "" })
	f("provider=google", "Unsupported provider: missing OAuth secret")
	if got := a.do("HEAD /authorize?provider=gitlab", nil); got.StatusCode != 405 {
		t.Errorf("HEAD: %d", got.StatusCode)
	}
	a.do("GET /authorize?provider=gitlab", nil, header{"X-JWT-AUD", "other"}).refused(400, "validation_failed", "*")

	// Twitter is asked first; that it can't be is told at once.
	a.idp.Behave("twitter", answers("/oauth/request_token", fakeidp.ServerError))
	a.do("GET /authorize?provider=twitter", nil).refused(500, "unexpected_failure", "*")

	// Only what is the provider's goes there, and a target that is not allowed is the site.
	u, err := url.Parse(a.do("GET /authorize?provider=gitlab&prompt=consent&redirect_to=https://evil.example/&scope=all&state=mine&client_id=x&scopes=a,b&nul=%00", nil).Header.Get("Location"))
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	if q.Get("prompt") != "consent" || q.Has("redirect_to") || q.Get("scope") != "read_user a b" || q.Get("client_id") != fakeidp.ClientID || len(q.Get("state")) != 36 {
		t.Errorf("%s", u)
	}
	if l := a.signIn("provider=gitlab&redirect_to=" + url.QueryEscape("https://evil.example/")).in(); l.to != siteURL {
		t.Errorf("led to %s", l.to)
	}
	if l := a.signIn("provider=gitlab&redirect_to=" + url.QueryEscape("https://other.example.org/"+strings.Repeat("x", 5000))).in(); l.to != siteURL {
		t.Errorf("led to %s", l.to)
	}
	if l := a.signIn("provider=gitlab", header{"Referer", "https://other.example.org/page"}).in(); l.to != "https://other.example.org/page" {
		t.Errorf("led to %s", l.to)
	}
	// An error is encoded once.
	a.idp.SetUser(person("1", ""))
	l := a.signIn("provider=gitlab&redirect_to=" + url.QueryEscape("https://other.example.org/in?x=y#z"))
	if l.out("server_error", "unexpected_failure", "*"); strings.Contains(l.Header.Get("Location"), "%25") || l.query.Get("x") != "y" {
		t.Errorf("%s", l.Header.Get("Location"))
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
		if to := got.Header.Get("Location"); strings.ContainsFunc(to, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			t.Errorf("%s with %s %.40q leads to %q", what, field, text, to)
		}
	}
	for i, text := range append(nasty, "\x00", "\xff\xfe", "https://other.example.org/\x00\xff\u00e9", "%00%ff") {
		for _, field := range []string{"provider", "scopes", "redirect_to", "code_challenge", "code_challenge_method", "invite_token", "login_hint", "state"} {
			q := url.Values{"provider": {"gitlab"}}
			q.Set(field, text[:min(len(text), 8000)])
			fine("GET /authorize", field, text, a.do("GET /authorize?"+q.Encode(), nil))
			fine("GET /user/identities/authorize", field, text, a.do("GET /user/identities/authorize?"+q.Encode(), nil, bearer(g.AccessToken)))
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
			fine("POST /token?grant_type=id_token", field, text, a.do("POST /token?grant_type=id_token", strings.ReplaceAll(jsonText(t, in), `\u0000`, ""), bearer(g.AccessToken)))
		}
		u := person(fmt.Sprint(7000+i), fmt.Sprintf("n%d@example.org", i))
		u.Name, u.Login, u.Picture = text[:min(len(text), 20000)], text[:min(len(text), 20000)], text[:min(len(text), 20000)]
		a.idp.SetUser(u)
		if got := a.user(a.signIn("provider=github")); got.Email != u.Email {
			t.Errorf("%+v", got)
		}
	}
}

func jsonText(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

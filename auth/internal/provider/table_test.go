package provider

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/oauth2"

	"gatehouse/shared/fakeidp"
	"gatehouse/shared/must"
)

const pic = "https://pictures.example.org/ann.png"

// spec is what docs/providers.md#providers says of a provider, as seen from outside: written down a second time.
type spec struct {
	name, mode string
	// The browser's redirect: path below the base, and the query without client_id, redirect_uri,
	// response_type and state. "*" stands for something unguessable.
	authorize string
	query     string
	// The code exchange: path, whether with HTTP Basic, and fields besides the standard ones.
	token string
	basic bool
	extra []string
	calls string // profile calls, in order
	// The profile of fakeidp.Ann: data as JSON with BASE for the base URL, and emails with + for verified
	// and ! for primary.
	data   string
	emails string
	noMore bool // no refresh token is given
}

var specs = []spec{
	{
		name: "apple", authorize: "/auth/authorize", query: "nonce=*&response_mode=form_post&scope=email name",
		token: "/auth/token", extra: []string{"secret"}, calls: "/.well-known/openid-configuration /auth/keys",
		data:   `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","custom_claims":{"is_private_email":true,"auth_time":"*"}}`,
		emails: "ann@example.org+!",
	},
	{
		name: "azure", authorize: "/oauth2/v2.0/authorize",
		query: "code_challenge=*&code_challenge_method=S256&nonce=*&scope=openid",
		token: "/oauth2/v2.0/token", extra: []string{"code_verifier"},
		calls: "/v2.0/.well-known/openid-configuration /discovery/v2.0/keys",
		data: `{"iss":"BASE/v2.0","sub":"1234567","provider_id":"1234567","full_name":"Ann Example","preferred_username":"ann",
			"custom_claims":{"email":"Ann@Example.org","family_name":"Example","given_name":"Ann","tid":"0f0e0d0c-0000-4000-8000-000000000001"}}`,
		emails: "ann@example.org!",
	},
	{
		name: "bitbucket", authorize: "/site/oauth2/authorize", query: "scope=account email",
		token: "/site/oauth2/access_token", basic: true, calls: "/2.0/user /2.0/user/emails",
		data:   `{"iss":"BASE/2.0","sub":"{1234567}","provider_id":"{1234567}","name":"Ann Example","full_name":"Ann Example","picture":"PIC","avatar_url":"PIC"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "discord", authorize: "/api/oauth2/authorize", query: "scope=email identify", token: "/api/oauth2/token",
		calls: "/api/users/@me",
		data: `{"iss":"BASE/api","sub":"1234567","provider_id":"1234567","name":"ann#0","full_name":"ann","custom_claims":{"global_name":"Ann Example"},
			"picture":"https://cdn.discordapp.com/avatars/1234567/a_0f0f.gif","avatar_url":"https://cdn.discordapp.com/avatars/1234567/a_0f0f.gif"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "facebook", authorize: "/dialog/oauth", query: "scope=email", token: "/oauth/access_token", calls: "/me",
		data: `{"iss":"BASE/me?fields=email,first_name,last_name,name,picture","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example",
			"nickname":"Ann Example","slug":"Ann Example","picture":"PIC","avatar_url":"PIC"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "figma", authorize: "/oauth", query: "scope=current_user:read", token: "/v1/oauth/token", basic: true,
		calls:  "/v1/me",
		data:   `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","avatar_url":"PIC"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "github", authorize: "/login/oauth/authorize",
		query: "code_challenge=*&code_challenge_method=S256&scope=user:email",
		token: "/login/oauth/access_token", extra: []string{"code_verifier"}, calls: "/api/v3/user /api/v3/user/emails",
		data: `{"iss":"BASE/api/v3","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","preferred_username":"ann","user_name":"ann",
			"avatar_url":"PIC"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "gitlab", authorize: "/oauth/authorize",
		query: "code_challenge=*&code_challenge_method=S256&scope=read_user",
		token: "/oauth/token", extra: []string{"code_verifier"}, calls: "/api/v4/user /api/v4/user/emails",
		data:   `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","picture":"PIC","avatar_url":"PIC"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "google", authorize: "/o/oauth2/v2/auth",
		query: "code_challenge=*&code_challenge_method=S256&nonce=*&scope=email profile",
		token: "/token", extra: []string{"code_verifier"}, calls: "/.well-known/openid-configuration /keys",
		data:   `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","picture":"PIC","avatar_url":"PIC"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "keycloak", authorize: "/protocol/openid-connect/auth",
		query: "code_challenge=*&code_challenge_method=S256&scope=openid profile email",
		token: "/protocol/openid-connect/token", extra: []string{"code_verifier"},
		calls: "/protocol/openid-connect/userinfo",
		data: `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example",
			"custom_claims":{"preferred_username":"ann"}}`,
		emails: "ann@example.org+!",
	},
	{
		name: "linkedin", authorize: "/oauth/v2/authorization", query: "scope=openid email profile",
		token: "/oauth/v2/accessToken", calls: "/oauth/.well-known/openid-configuration /oauth/openid/jwks",
		data: `{"iss":"BASE/oauth","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","given_name":"Ann","family_name":"Example",
			"locale":"en_US","picture":"PIC","avatar_url":"PIC"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "linkedin", mode: "legacy", authorize: "/oauth/v2/authorization",
		query: "scope=r_emailaddress r_liteprofile",
		token: "/oauth/v2/accessToken", calls: "/v2/me /v2/emailAddress",
		data:   `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","picture":"PIC","avatar_url":"PIC"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "notion", authorize: "/v1/oauth/authorize", token: "/v1/oauth/token", basic: true, calls: "/v1/users/me",
		data:   `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","picture":"PIC","avatar_url":"PIC"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "slack", authorize: "/openid/connect/authorize", query: "scope=profile email openid",
		token: "/api/openid.connect.token", calls: "/api/openid.connect.userInfo",
		data: `{"iss":"BASE/api","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","picture":"PIC","avatar_url":"PIC",
			"custom_claims":{"https://slack.com/team_id":"T0123"}}`,
		emails: "ann@example.org+!",
	},
	{
		name: "slack", mode: "legacy", authorize: "/oauth/authorize", query: "scope=profile email openid",
		token: "/api/oauth.access", calls: "/api/openid.connect.userInfo",
		data: `{"iss":"BASE/api","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","picture":"PIC","avatar_url":"PIC",
			"custom_claims":{"https://slack.com/team_id":"T0123"}}`,
		emails: "ann@example.org+!",
	},
	{
		name: "snapchat", authorize: "/accounts/oauth2/auth",
		query: "scope=https://auth.snapchat.com/oauth2/api/user.external_id " +
			"https://auth.snapchat.com/oauth2/api/user.display_name " +
			"https://auth.snapchat.com/oauth2/api/user.bitmoji.avatar",
		token: "/accounts/oauth2/token", calls: "/v1/me",
		data: `{"iss":"BASE/accounts/oauth2/token","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","slug":"Ann Example",
			"picture":"PIC","avatar_url":"PIC"}`,
		emails: "ann@example.org+!",
	},
	{
		name: "spotify", authorize: "/authorize", query: "scope=user-read-email", token: "/api/token", basic: true,
		calls:  "/me",
		data:   `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","picture":"PIC","avatar_url":"PIC"}`,
		emails: "ann@example.org!",
	},
	{
		name: "twitch", authorize: "/oauth2/authorize", query: "scope=user:read:email", token: "/oauth2/token",
		calls: "/helix/users",
		data: `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"ann","full_name":"ann","nickname":"Ann Example","slug":"Ann Example","picture":"PIC","avatar_url":"PIC",
			"custom_claims":{"broadcaster_type":"partner","description":"plays","offline_image_url":"PIC?off","view_count":7}}`,
		emails: "ann@example.org+!",
	},
	{
		name: "workos", authorize: "/sso/authorize", query: "connection=conn_1", token: "/sso/token",
		data: `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example",
			"custom_claims":{"connection_id":"conn_1","organization_id":"org_1"}}`,
		emails: "ann@example.org+!", noMore: true,
	},
	{
		name: "local", authorize: "/authorize",
		query: "code_challenge=*&code_challenge_method=S256&nonce=*&scope=openid email profile",
		token: "/token", basic: true, extra: []string{"code_verifier"},
		calls: "/.well-known/openid-configuration /keys",
		data: `{"iss":"BASE","sub":"1234567","provider_id":"1234567","name":"Ann Example","full_name":"Ann Example","given_name":"Ann","family_name":"Example",
			"preferred_username":"ann","picture":"PIC","avatar_url":"PIC","aud":"fake-client","iat":"*","exp":"*","custom_claims":{"groups":["staff"]}}`,
		emails: "ann@example.org+!",
	},
}

func (s spec) dialect() string {
	if s.name == "local" {
		return "oidc"
	}
	return s.name
}

// TestTable runs a sign-in with each provider and checks every request and every field.
func TestTable(t *testing.T) {
	for _, s := range specs {
		t.Run(s.name+s.mode, func(t *testing.T) {
			t.Parallel()
			f := start(t)
			settings := settingsOf(f)
			if c, ok := settings.Clients[s.name]; ok {
				c.Mode = s.mode
				settings.Clients[s.name] = c
			}
			set := setOf(t, settings)
			p, err := set.Lookup(strings.ToUpper(s.name))
			must.Succeed(t, err)
			d, err := flow(t, f, set, s.name, nil)
			must.Succeed(t, err)
			if c := f.Complaints(s.dialect()); c != nil {
				t.Errorf("the fake complains: %q", c)
			}
			s.checkAuthorize(t, f)
			s.checkExchange(t, f)
			var calls []string
			for _, r := range f.Requests(s.dialect(), "") {
				if r.Path != s.authorize && r.Path != s.token {
					calls = append(calls, r.Path)
				}
			}
			if got := strings.Join(calls, " "); got != s.calls {
				t.Errorf("calls %s, want %s", got, s.calls)
			}
			s.checkProfile(t, f, p, d)
		})
	}
}

func (s spec) checkAuthorize(t *testing.T, f *fakeidp.Server) {
	t.Helper()
	seen := f.Requests(s.dialect(), s.authorize)
	if len(seen) != 1 || seen[0].Path != s.authorize {
		t.Fatalf("the browser came %d times, want once to %s", len(seen), s.authorize)
	}
	want := url.Values{"client_id": {fakeidp.ClientID}, "redirect_uri": {callback}, "response_type": {"code"},
		"state": {"the state"}}
	for pair := range strings.SplitSeq(s.query, "&") {
		if name, value, _ := strings.Cut(pair, "="); name != "" {
			want.Set(name, value)
		}
	}
	got := seen[0].Query
	for name, values := range want {
		if values[0] == "*" && len(got.Get(name)) >= 43 {
			want[name] = got[name]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the query of the redirect (-want +got):\n%s", diff)
	}
}

func (s spec) checkExchange(t *testing.T, f *fakeidp.Server) {
	t.Helper()
	seen := f.Requests(s.dialect(), s.token)
	seen = slices.DeleteFunc(seen, func(r fakeidp.Request) bool { return r.Path != s.token })
	if len(seen) != 1 {
		t.Fatalf("the code was sent %d times, want once", len(seen))
	}
	r := seen[0]
	want := append([]string{"code", "grant_type", "redirect_uri"}, s.extra...)
	if !s.basic {
		want = append(want, "client_id", "client_secret")
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(r.Form)); !slices.Equal(got, want) {
		t.Errorf("fields of the code exchange: %q, want %q", got, want)
	}
	if got := strings.HasPrefix(r.Header.Get("Authorization"), "Basic "); got != s.basic || !s.basic &&
		r.Header.Get("Authorization") != "" {
		t.Errorf("the code exchange has the header Authorization: %v, want %v", got, s.basic)
	}
	if r.Header.Get("Accept") != "application/json" {
		t.Errorf("the code exchange accepts %q", r.Header.Get("Accept"))
	}
}

func (s spec) checkProfile(t *testing.T, f *fakeidp.Server, p *Provider, d Profile) {
	t.Helper()
	want := dataOf(t, strings.NewReplacer("BASE", f.Base(s.dialect()), "PIC", pic).Replace(s.data))
	text, err := json.Marshal(d.Data)
	must.Succeed(t, err)
	got := dataOf(t, string(text))
	anyTime(want, got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("data (-want +got):\n%s", diff)
	}
	if got := shown(d.Emails); got != s.emails {
		t.Errorf("emails %s, want %s", got, s.emails)
	}
	if d.Provider != s.name || d.Provider != p.Name() || d.Subject != d.Data["sub"] ||
		d.Token == "" || (d.RefreshToken == "") != s.noMore {
		t.Errorf("provider %q, subject %q, token %q, refresh token %q", d.Provider, d.Subject, d.Token, d.RefreshToken)
	}
}

func dataOf(t testing.TB, text string) (m map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return m
}

// anyTime lets "*" stand for any number.
func anyTime(want, got map[string]any) {
	for name, v := range want {
		if _, ok := got[name].(float64); ok && v == "*" {
			want[name] = got[name]
		}
		if in, ok := v.(map[string]any); ok {
			if other, ok := got[name].(map[string]any); ok {
				anyTime(in, other)
			}
		}
	}
}

func shown(emails []Email) string {
	var all []string
	for _, e := range emails {
		text := e.Address
		if e.Verified {
			text += "+"
		}
		if e.Primary {
			text += "!"
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

// TestPublicAddresses compares the table with the addresses of the real providers.
func TestPublicAddresses(t *testing.T) {
	settings := Settings{Clients: map[string]Client{}}
	for _, id := range Names() {
		settings.Clients[id] = Client{Enabled: true, ClientIDs: []string{"c"}, Secret: "s", RedirectURI: callback}
	}
	kc := settings.Clients["keycloak"]
	kc.URL = "https://kc.example.org/realms/main/"
	settings.Clients["keycloak"] = kc
	set := setOf(t, settings)
	f := func(name, authorize, tokenURL, me, issuer string) {
		t.Helper()
		p, err := set.Lookup(name)
		must.Succeed(t, err)
		at, err := p.endpoints(t.Context())
		must.Succeed(t, err)
		call := ""
		if p.row.profile != "" {
			call, _, _ = strings.Cut(p.apiURL()+p.row.profile, "?")
		}
		if at.authorize != authorize || at.token != tokenURL || call != me || p.trust().issuer != issuer {
			t.Errorf("%s: %s %s %s %s", name, at.authorize, at.token, call, p.trust().issuer)
		}
	}
	f("apple", "https://appleid.apple.com/auth/authorize", "https://appleid.apple.com/auth/token", "",
		"https://appleid.apple.com")
	f("azure", "https://login.microsoftonline.com/common/oauth2/v2.0/authorize",
		"https://login.microsoftonline.com/common/oauth2/v2.0/token", "", "")
	f("bitbucket", "https://bitbucket.org/site/oauth2/authorize", "https://bitbucket.org/site/oauth2/access_token",
		"https://api.bitbucket.org/2.0/user", "")
	f("discord", "https://discord.com/api/oauth2/authorize", "https://discord.com/api/oauth2/token",
		"https://discord.com/api/users/@me", "")
	f("facebook", "https://www.facebook.com/dialog/oauth", "https://graph.facebook.com/oauth/access_token",
		"https://graph.facebook.com/me", "https://www.facebook.com")
	f("figma", "https://www.figma.com/oauth", "https://api.figma.com/v1/oauth/token", "https://api.figma.com/v1/me", "")
	f("github", "https://github.com/login/oauth/authorize", "https://github.com/login/oauth/access_token",
		"https://api.github.com/user", "")
	f("gitlab", "https://gitlab.com/oauth/authorize", "https://gitlab.com/oauth/token",
		"https://gitlab.com/api/v4/user", "")
	f("google", "https://accounts.google.com/o/oauth2/v2/auth", "https://oauth2.googleapis.com/token",
		"https://www.googleapis.com/userinfo/v2/me", "https://accounts.google.com")
	f("keycloak", "https://kc.example.org/realms/main/protocol/openid-connect/auth",
		"https://kc.example.org/realms/main/protocol/openid-connect/token",
		"https://kc.example.org/realms/main/protocol/openid-connect/userinfo", "https://kc.example.org/realms/main")
	f("linkedin", "https://api.linkedin.com/oauth/v2/authorization", "https://api.linkedin.com/oauth/v2/accessToken",
		"https://api.linkedin.com/v2/userinfo", "https://www.linkedin.com/oauth")
	f("notion", "https://api.notion.com/v1/oauth/authorize", "https://api.notion.com/v1/oauth/token",
		"https://api.notion.com/v1/users/me", "")
	f("slack", "https://slack.com/openid/connect/authorize", "https://slack.com/api/openid.connect.token",
		"https://slack.com/api/openid.connect.userInfo", "")
	f("snapchat", "https://accounts.snapchat.com/accounts/oauth2/auth",
		"https://accounts.snapchat.com/accounts/oauth2/token", "https://kit.snapchat.com/v1/me",
		"https://accounts.snapchat.com/accounts/oauth2/token")
	f("spotify", "https://accounts.spotify.com/authorize", "https://accounts.spotify.com/api/token",
		"https://api.spotify.com/v1/me", "")
	f("twitch", "https://id.twitch.tv/oauth2/authorize", "https://id.twitch.tv/oauth2/token",
		"https://api.twitch.tv/helix/users", "")
	f("twitter", "https://api.twitter.com/oauth/authenticate", "https://api.twitter.com/oauth/access_token",
		"https://api.twitter.com/1.1/account/verify_credentials.json", "")
	f("workos", "https://api.workos.com/sso/authorize", "https://api.workos.com/sso/token", "", "")
	if got := strings.Join(set.Names(),
		" "); got !=
		"apple azure bitbucket discord facebook figma github gitlab google keycloak linkedin notion slack snapchat "+
			"spotify twitch twitter workos" {
		t.Errorf("the eighteen: %s", got)
	}
	for _, r := range table {
		if r.style == oauth2.AuthStyleAutoDetect && !r.oauth1 {
			t.Errorf("%s: the style of client authentication is not fixed", r.id)
		}
		for _, u := range []string{r.authorize, r.token, r.api, r.issuer} {
			if p, err := url.Parse(u); err != nil || p.RawQuery != "" || p.Scheme != "https" && p.Scheme != "" {
				t.Errorf("%s: %q is no address", r.id, u)
			}
		}
	}
}

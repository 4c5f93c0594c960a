package provider

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"
)

func good() Client {
	return Client{Enabled: true, ClientIDs: []string{"c"}, Secret: "s",
		RedirectURI: "https://auth.example.com/callback"}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	f := func(change func(s *Settings), want ...string) {
		t.Helper()
		s := Settings{Clients: map[string]Client{}, OIDC: map[string]Client{}}
		change(&s)
		var got []string
		for _, p := range s.Check() {
			text := p.Name + " " + p.Text
			if p.Warning {
				text = "warning: " + text
			}
			got = append(got, text)
		}
		if len(got) != len(want) {
			t.Fatalf("%d problems, want %d: %q", len(got), len(want), got)
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("problem %q, want %q", got[i], want[i])
			}
		}
	}
	one := func(id string, change func(c *Client)) func(s *Settings) {
		return func(s *Settings) { c := good(); change(&c); s.Clients[id] = c }
	}
	custom := func(name string, change func(c *Client)) func(s *Settings) {
		return func(s *Settings) {
			c := good()
			c.Issuer = "https://idp.example.com"
			change(&c)
			s.OIDC[name] = c
		}
	}
	keep := func(*Client) {}
	for _, id := range Names() {
		change := keep
		if id == "apple" {
			change = func(c *Client) { c.URL = "https://idp.example.com" } // for the secret, see TestAppleSecret
		}
		if id == "keycloak" {
			change = func(c *Client) { c.URL = "https://kc.example.com/realms/main" }
		}
		f(one(id, change))
		P := "AUTH_EXTERNAL_" + strings.ToUpper(id) + "_"
		f(one(id, func(c *Client) { *c = Client{Enabled: true, URL: "https://x.example"} }), P+"CLIENT_ID is required",
			P+"SECRET is required", P+"REDIRECT_URI is required")
		f(one(id, func(c *Client) { change(c); c.Secret, c.RedirectURI, c.IDTokenOnly = "", "", true }))
		f(one(id, func(c *Client) { *c = Client{} })) // off
	}
	f(one("keycloak", keep), "AUTH_EXTERNAL_KEYCLOAK_URL is required")
	f(one("myspace", keep), "AUTH_EXTERNAL_MYSPACE_ENABLED is not one of apple, azure")
	f(one("github", func(c *Client) { c.RedirectURI = "/callback" }),
		"AUTH_EXTERNAL_GITHUB_REDIRECT_URI is not an absolute URL")
	f(one("github", func(c *Client) { c.ClientIDs = []string{""} }), "AUTH_EXTERNAL_GITHUB_CLIENT_ID is required")
	for _, u := range []string{"github.example", "ftp://x.example", "https://", "https:x"} {
		f(one("github", func(c *Client) { c.URL = u }), "AUTH_EXTERNAL_GITHUB_URL is not an absolute URL")
	}
	for _, u := range []string{"https://u:p@x.example", "https://x.example?a=b", "https://x.example/?",
		"https://x.example#f", "https://x.example/#"} {
		f(one("github", func(c *Client) { c.URL = u }), "AUTH_EXTERNAL_GITHUB_URL has user, query or fragment")
	}
	f(one("github", func(c *Client) { c.URL = "http://x.example" }), "AUTH_EXTERNAL_GITHUB_URL begins with http://")
	for _, u := range []string{"http://127.0.0.1:9", "http://localhost:9/x", "http://[::1]/x", "http://idp.localhost"} {
		f(one("github", func(c *Client) { c.URL = u }))
	}
	f(func(s *Settings) {
		one("github", func(c *Client) { c.URL = "http://x.example" })(s)
		s.AllowInsecure = true
	}, "warning: AUTH_EXTERNAL_GITHUB_URL begins with http://")
	f(one("slack", func(c *Client) { c.Mode = "Legacy" }))
	f(one("linkedin", func(c *Client) { c.Mode = "oidc" }))
	f(one("linkedin", func(c *Client) {
		c.Mode = "new"
	}), `AUTH_EXTERNAL_LINKEDIN_MODE is "new", not one of oidc, legacy`)
	f(one("github", func(c *Client) { c.Mode = "oidc" }), "AUTH_EXTERNAL_GITHUB_MODE is for linkedin and slack only")
	domains := func(u string) func(s *Settings) {
		return func(s *Settings) {
			one("azure", func(c *Client) { c.URL = u })(s)
			s.AzureVerifiedDomains = []string{"example.com"}
		}
	}
	f(domains("https://login.microsoftonline.com/11111111-2222-4333-8444-555555555555"))
	for _, u := range []string{"", "https://login.microsoftonline.com/common/",
		"https://login.microsoftonline.com/organizations", "https://login.microsoftonline.com/consumers"} {
		f(domains(u), "AUTH_EXTERNAL_AZURE_VERIFIED_DOMAINS is only for one tenant")
	}
	f(custom("local", keep))
	f(custom("local", func(c *Client) { c.Issuer = "" }), "AUTH_EXTERNAL_OIDC_LOCAL_ISSUER is required")
	f(custom("local", func(c *Client) { c.Issuer = "http://idp.example" }),
		"AUTH_EXTERNAL_OIDC_LOCAL_ISSUER begins with http://")
	f(custom("local", func(c *Client) { c.Secret = "" }), "AUTH_EXTERNAL_OIDC_LOCAL_SECRET is required")
	for _, name := range []string{"github", "linkedin_oidc", "email", "phone"} {
		f(custom(name, keep), "AUTH_EXTERNAL_OIDC_"+strings.ToUpper(name)+"_ISSUER has a name that is taken")
	}
	f(custom("a b", keep), "AUTH_EXTERNAL_OIDC_A B_ISSUER has the name")
	f(func(s *Settings) { s.DiscoveryTTL, s.Timeout = -1, -1 }, "AUTH_EXTERNAL_OIDC_PROVIDER_CACHE_TTL",
		"AUTH_INTERNAL_HTTP_TIMEOUT")
	if _, err := New(Settings{Clients: map[string]Client{"github": {Enabled: true}}}); err == nil ||
		!strings.Contains(err.Error(), "AUTH_EXTERNAL_GITHUB_CLIENT_ID") {
		t.Errorf("New with wrong settings: %v", err)
	}
	s := Settings{Clients: map[string]Client{"github": good(), "gitlab": {URL: "https://off.example"}}}
	c := good()
	c.URL = "https://ghe.example.com"
	s.Clients["github"] = c
	if got := strings.Join(s.Overrides(), ";"); got != "github at https://ghe.example.com" {
		t.Errorf("overrides: %s", got)
	}
}

// TestAppleSecret: a secret that Apple would refuse is reported before a sign-in fails.
func TestAppleSecret(t *testing.T) {
	t.Parallel()
	f := func(secret, want string) {
		t.Helper()
		c := good()
		c.Secret = secret
		found := Settings{Clients: map[string]Client{"apple": c}, Now: func() time.Time {
			return time.Unix(1_800_000_000, 0)
		}}.Check()
		got := ""
		for _, p := range found {
			got += p.Name + " " + p.Text
			if !p.Warning || strings.Contains(p.Text, secret) {
				t.Errorf("%+v", p)
			}
		}
		if !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q, want %q", got, want)
		}
	}
	until := func(exp int64) string {
		return rawURL(`{"alg":"ES256","kid":"K"}`) + "." +
			rawURL(fmt.Sprintf(`{"iss":"TEAM","iat":1,"exp":%d,"aud":"https://appleid.apple.com","sub":"c"}`, exp)) +
			".AAAA"
	}
	f(until(1_800_000_000+15*86400), "")
	f(until(1_800_000_000+13*86400), "AUTH_EXTERNAL_APPLE_SECRET expires at 2027-01-28T08:00:00Z")
	f(until(1_800_000_000), "AUTH_EXTERNAL_APPLE_SECRET has expired at 2027-01-15T08:00:00Z")
	f(until(0), "AUTH_EXTERNAL_APPLE_SECRET has expired at 1970")
	f("not a JWT", "AUTH_EXTERNAL_APPLE_SECRET is no JWT")
}

func TestLookup(t *testing.T) {
	t.Parallel()
	s := Settings{Clients: map[string]Client{"github": good(), "apple": good(), "google": good(), "figma": good()},
		OIDC: map[string]Client{}}
	native := s.Clients["google"]
	native.Secret, native.IDTokenOnly = "", true
	s.Clients["google"] = native
	native.Secret, native.RedirectURI = "s", ""
	s.Clients["apple"] = native
	optional := good()
	optional.EmailOptional = true
	s.Clients["figma"] = optional
	custom := good()
	custom.Issuer = "https://idp.example.com"
	s.OIDC["corp"], s.OIDC["acme_shop_1"] = custom, custom
	set := setOf(t, s)
	if got := strings.Join(set.Names(), " "); got != "apple figma github google acme_shop_1 corp" {
		t.Errorf("names: %s", got)
	}
	for name, reason := range map[string]string{
		"gitlab": "provider is not enabled", "Nobody": "Provider nobody could not be found", "": "no provider is named",
		"google": "missing OAuth secret", "apple": "missing redirect URI",
		"custom:github": "Provider custom:github could not be found", "custom:": "Provider custom: could not be found",
	} {
		_, err := set.Lookup(name)
		wantError(t, err, http.StatusBadRequest, "validation_failed", "Unsupported provider: "+reason, "")
	}
	p, err := set.Lookup("GitHub")
	if err != nil || p.Name() != "github" || p.EmailOptional() || p.FormPost() {
		t.Errorf("%v %v", p, err)
	}
	if p, err := set.Lookup("Figma"); err != nil || !p.EmailOptional() {
		t.Errorf("EMAIL_OPTIONAL: %v", err)
	}
	for asked, name := range map[string]string{"corp": "corp", "custom:Corp": "corp", "custom:acme_shop_1": "acme_shop_1",
		"custom:acme-shop-1": "acme_shop_1", "custom:acme:shop_1": "acme_shop_1"} {
		if p, err := set.Lookup(asked); err != nil || p.Name() != name {
			t.Errorf("custom provider %s: %v", asked, err)
		}
	}
}

// TestSecretIsNotPrinted: logging settings or a provider doesn't log its secret.
func TestSecretIsNotPrinted(t *testing.T) {
	t.Parallel()
	c := good()
	c.Secret = "hush"
	s := Settings{Clients: map[string]Client{"github": c}}
	p, err := setOf(t, s).Lookup("github")
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "client", c, "provider", p, "settings", s)
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %s", c, c, c, c), fmt.Sprintf("%v %+v %#v %s", p, p, p, p),
		fmt.Sprintf("%v %+v", s, s), log.String()} {
		if strings.Contains(text, "hush") {
			t.Errorf("the secret stands in %s", text)
		}
	}
}

package config

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/auth/internal/provider"
	"gatehouse/shared/must"
)

// enabled are the variables of an enabled provider.
func enabled(name string) string {
	p := "AUTH_EXTERNAL_" + strings.ToUpper(name) + "_"
	return fmt.Sprintf("%sENABLED=true %sCLIENT_ID=id,second %sSECRET=s %sREDIRECT_URI=https://auth.test/callback "+
		"%sURL=https://idp.test/%s ", p, p, p, p, p, name)
}

// Every provider of the table has its field, and every field its provider.
func TestExternal_fields(t *testing.T) {
	fields := slices.Sorted(maps.Keys(new(externalConfig).clients()))
	if d := cmp.Diff(provider.Names(), fields); d != "" {
		t.Errorf("providers that lack their field in external.go (-), fields without a provider (+):\n%s", d)
	}
}

// Every provider gets to the set what its own variables say, and nothing of another's.
func TestConfig_external(t *testing.T) {
	for _, name := range provider.Names() {
		_, l, warnings, mistakes := loadSettings(t, strings.Fields(least+enabled(name))...)
		if len(mistakes) > 0 || len(warnings) > 0 {
			t.Fatal(name, mistakes, warnings)
		}
		mode := ""
		if name == "linkedin" || name == "slack" {
			mode = "oidc"
		}
		want := provider.Client{Enabled: true, ClientIDs: []string{"id", "second"}, Secret: "s",
			RedirectURI: "https://auth.test/callback",
			URL:         "https://idp.test/" + name, Mode: mode}
		if d := cmp.Diff(want, l.External.Clients[name]); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		set, err := provider.New(l.External)
		must.Succeed(t, err)
		if got := set.Names(); len(got) != 1 || got[0] != name || !slices.Equal(l.API.External, got) {
			t.Errorf("%s: on are %v, shown %v", name, got, l.API.External)
		}
		set.Close()
	}
	_, l, _, _ := loadSettings(t,
		strings.Fields(least+
			`AUTH_EXTERNAL_IOS_BUNDLE_ID=b AUTH_EXTERNAL_AZURE_VERIFIED_DOMAINS=d.test AUTH_EXTERNAL_OIDC_PROVIDER_CACHE_TTL=2s
		AUTH_INTERNAL_HTTP_TIMEOUT=3s AUTH_EXTERNAL_ALLOW_INSECURE_URLS=true AUTH_EXTERNAL_SLACK_MODE=legacy AUTH_EXTERNAL_GITHUB_EMAIL_OPTIONAL=1
		AUTH_EXTERNAL_GITHUB_SKIP_NONCE_CHECK=1 AUTH_EXTERNAL_GITHUB_ID_TOKEN_ONLY=1 AUTH_EXTERNAL_GITHUB_DISTRUST_EMAIL=1`)...)
	s := l.External
	if s.IOSBundleID != "b" || s.AzureVerifiedDomains[0] != "d.test" || s.DiscoveryTTL != 2*time.Second ||
		s.Timeout != 3*time.Second || !s.AllowInsecure || s.Clients["slack"].Mode != "legacy" {
		t.Errorf("%+v", s)
	}
	if g := s.Clients["github"]; !g.EmailOptional || !g.SkipNonceCheck || !g.IDTokenOnly || !g.DistrustEmail {
		t.Errorf("%+v", g)
	}
}

func TestConfig_externalMistakes(t *testing.T) {
	f := func(environ string, want ...string) {
		t.Helper()
		_, _, _, mistakes := loadSettings(t, strings.Fields(least+environ)...)
		if len(mistakes) != len(want) {
			t.Errorf("%s: %q", environ, mistakes)
			return
		}
		for i, m := range mistakes {
			if !strings.HasPrefix(m, want[i]) {
				t.Errorf("%s: %q, want %q", environ, m, want[i])
			}
		}
	}
	f("AUTH_EXTERNAL_GITHUB_ENABLED=true", "AUTH_EXTERNAL_GITHUB_CLIENT_ID is required",
		"AUTH_EXTERNAL_GITHUB_SECRET is required", "AUTH_EXTERNAL_GITHUB_REDIRECT_URI is required")
	f("AUTH_EXTERNAL_GITHUB_ENABLED=true AUTH_EXTERNAL_GITHUB_CLIENT_ID=x AUTH_EXTERNAL_GITHUB_ID_TOKEN_ONLY=true")
	f("AUTH_EXTERNAL_GITHUB_ENABLED=x", `AUTH_EXTERNAL_GITHUB_ENABLED="x": not a yes or no`)
	f("AUTH_EXTERNAL_SLACK_MODE=both", `AUTH_EXTERNAL_SLACK_MODE="both": `)
	f(enabled("github")+"AUTH_EXTERNAL_GITHUB_URL=http://idp.test", "AUTH_EXTERNAL_GITHUB_URL begins with http://")
	f("AUTH_MAILER_AUTOCONFIRM=true AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS=true",
		"AUTH_MAILER_AUTOCONFIRM and AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS cannot both be true")
	f("AUTH_EXTERNAL_OIDC_ACME_ISSUER=https://acme.test", "AUTH_EXTERNAL_OIDC_ACME_CLIENT_ID is required",
		"AUTH_EXTERNAL_OIDC_ACME_SECRET is required", "AUTH_EXTERNAL_OIDC_ACME_REDIRECT_URI is required")
	f("AUTH_EXTERNAL_OIDC_ACME_EMAIL_OPTIONAL=x AUTH_EXTERNAL_OIDC_ACME_ENABLED=false",
		`AUTH_EXTERNAL_OIDC_ACME_EMAIL_OPTIONAL="x": not a yes or no`)
	f("AUTH_EXTERNAL_OIDC_ACME_ISSUER=https://acme.test AUTH_EXTERNAL_OIDC_ACME_ENABLED=false")
}

func TestConfig_externalWarnings(t *testing.T) {
	f := func(environ string, want ...string) {
		t.Helper()
		_, _, got, mistakes := loadSettings(t, strings.Fields(least+environ)...)
		if d := cmp.Diff(want, got); d != "" || len(mistakes) > 0 {
			t.Errorf("%s: %v %s", environ, mistakes, d)
		}
	}
	const hosts = "leads to other.test, and AUTH_API_EXTERNAL_URL is at auth.test: a browser brings the cookie that " +
		"it got at one host to no other, and every sign-in fails; " +
		"give both the same host, or set AUTH_EXTERNAL_STATE_COOKIE=false"
	other := strings.Replace(enabled("google"), "https://auth.test/callback", "https://other.test/callback", 1)
	f(other, "AUTH_EXTERNAL_GOOGLE_REDIRECT_URI "+hosts)
	f(other + "AUTH_EXTERNAL_STATE_COOKIE=false")
	f(other + "AUTH_EXTERNAL_GOOGLE_ENABLED=false")
	acme := "AUTH_EXTERNAL_OIDC_ACME_ISSUER=https://acme.test AUTH_EXTERNAL_OIDC_ACME_CLIENT_ID=x " +
		"AUTH_EXTERNAL_OIDC_ACME_SECRET=y AUTH_EXTERNAL_OIDC_ACME_REDIRECT_URI=https://other.test/callback "
	f(acme, "AUTH_EXTERNAL_OIDC_ACME_REDIRECT_URI "+hosts)
	f(other+acme, "AUTH_EXTERNAL_GOOGLE_REDIRECT_URI leads to other.test, AUTH_EXTERNAL_OIDC_ACME_REDIRECT_URI "+
		strings.Replace(hosts, "give both", "give all", 1))
	f("AUTH_EXTERNAL_OIDC_ACME_ISSUR=https://acme.test",
		"AUTH_EXTERNAL_OIDC_ACME_ISSUR is no setting of this program and has no effect")
	f(enabled("google")+"AUTH_EXTERNAL_ALLOW_INSECURE_URLS=true AUTH_EXTERNAL_GOOGLE_URL=http://idp.test",
		"AUTH_EXTERNAL_GOOGLE_URL begins with http://: everybody on the way can read and change what the provider says")
	f("AUTH_EXTERNAL_REDIRECTURL=x",
		"no effect, settings of the replaced service that are not needed here: AUTH_EXTERNAL_REDIRECTURL")
	f("AUTH_EXTERNAL_ZOOM_ENABLED=true AUTH_EXTERNAL_ZOOM_SECRET=s AUTH_EXTERNAL_KAKAO_ENABLED=false",
		"AUTH_EXTERNAL_ZOOM_ENABLED has no effect: there is no provider zoom, and no sign-in with it is possible "+
			"(AUTH_EXTERNAL_OIDC_<NAME>_ISSUER adds one that speaks OpenID Connect)")
	f("GOTRUE_EXTERNAL_KAKAO_ENABLED=true GOTRUE_EXTERNAL_KAKAO_SECRET=s",
		"GOTRUE_EXTERNAL_KAKAO_ENABLED has no effect: there is no provider kakao, and no sign-in with it is possible "+
			"(AUTH_EXTERNAL_OIDC_<NAME>_ISSUER adds one that speaks OpenID Connect)")
	f("AUTH_EXTERNAL_SLACK_OIDC_ENABLED=false",
		"AUTH_EXTERNAL_SLACK_OIDC_ENABLED is an old name; it is called AUTH_EXTERNAL_SLACK_ENABLED now")
	f("GOTRUE_EXTERNAL_LINKEDIN_OIDC_CLIENT_ID=x",
		"GOTRUE_EXTERNAL_LINKEDIN_OIDC_CLIENT_ID is an old name; it is called AUTH_EXTERNAL_LINKEDIN_CLIENT_ID now")
}

// The replaced service's environments often have both, one of them off.
func TestConfig_unusedLegacyProvider(t *testing.T) {
	f := func(environ, want string, taken ...string) {
		t.Helper()
		rest, got := dropUnusedLegacy(strings.Fields(environ))
		if d := cmp.Diff(taken, got); d != "" || strings.Join(rest, " ") != want {
			t.Errorf("%s\nleaves %s, and takes %s", environ, rest, got)
		}
	}
	const off, on = "GOTRUE_EXTERNAL_LINKEDIN_ENABLED=false GOTRUE_EXTERNAL_LINKEDIN_CLIENT_ID=a",
		"GOTRUE_EXTERNAL_LINKEDIN_OIDC_ENABLED=true GOTRUE_EXTERNAL_LINKEDIN_OIDC_CLIENT_ID=b"
	f(off+" AUTH_EXTERNAL_LINKEDIN_MODE=oidc "+on, "AUTH_EXTERNAL_LINKEDIN_MODE=oidc "+on,
		"GOTRUE_EXTERNAL_LINKEDIN_CLIENT_ID", "GOTRUE_EXTERNAL_LINKEDIN_ENABLED")
	f("AUTH_EXTERNAL_SLACK_ENABLED=1 AUTH_EXTERNAL_SLACK_OIDC_ENABLED=0 AUTH_EXTERNAL_SLACK_OIDC_SECRET=s",
		"AUTH_EXTERNAL_SLACK_ENABLED=1", "AUTH_EXTERNAL_SLACK_OIDC_ENABLED", "AUTH_EXTERNAL_SLACK_OIDC_SECRET")
	for _, same := range []string{ // both off, both on, one without a word, another provider, an empty word
		off + " GOTRUE_EXTERNAL_LINKEDIN_OIDC_ENABLED=false GOTRUE_EXTERNAL_LINKEDIN_OIDC_CLIENT_ID=b",
		"AUTH_EXTERNAL_LINKEDIN_ENABLED=true " + on, "AUTH_EXTERNAL_LINKEDIN_CLIENT_ID=a " + on,
		"AUTH_EXTERNAL_SLACK_ENABLED=false " + on, "AUTH_EXTERNAL_LINKEDIN_ENABLED= " + on,
	} {
		f(same, same)
	}
	c, _, _, r, err := Load(strings.Fields(least+enabled("linkedin_oidc")+
		"AUTH_EXTERNAL_LINKEDIN_ENABLED=false AUTH_EXTERNAL_LINKEDIN_SECRET=t"), "", nil)
	said := "no effect, since the other one of the same provider is on: AUTH_EXTERNAL_LINKEDIN_ENABLED, " +
		"AUTH_EXTERNAL_LINKEDIN_SECRET"
	if err != nil || !c.External.LinkedIn.Enabled || c.External.LinkedIn.Secret != "s" ||
		!slices.Contains(r.Warnings, said) {
		t.Errorf("%v %q %v", c.External.LinkedIn.Enabled, r.Warnings, err)
	}
}

func TestConfig_customHidesSecrets(t *testing.T) {
	_, _, warnings, mistakes := loadSettings(t,
		strings.Fields(least+
			`AUTH_EXTERNAL_OIDC_ACME_ISSUER=nonsense AUTH_EXTERNAL_OIDC_ACME_SECRET=hunter2 AUTH_EXTERNAL_OIDC_ACME_SECRET_FILE=/none
		AUTH_EXTERNAL_OIDC_ACME_REDIRECT_URI=x AUTH_EXTERNAL_OIDC_ACME_ENABLED=hunter`)...)
	if text := strings.Join(append(warnings, mistakes...), "\n"); strings.Contains(text, "hunter2") ||
		!strings.Contains(text, "AUTH_EXTERNAL_OIDC_ACME_SECRET_FILE") || strings.Contains(text, "OIDC_NAME") {
		t.Error(text)
	}
}

func TestConfig_custom(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must.Succeed(t, os.WriteFile(secret, []byte("from the file\n"), 0o600))
	_, l, warnings, mistakes := loadSettings(t,
		strings.Fields(least+`AUTH_EXTERNAL_OIDC_ACME_ISSUER=https://acme.test AUTH_EXTERNAL_OIDC_ACME_CLIENT_ID=a,b
		AUTH_EXTERNAL_OIDC_ACME_SECRET_FILE=`+
			secret+` AUTH_EXTERNAL_OIDC_ACME_REDIRECT_URI=https://auth.test/callback AUTH_EXTERNAL_OIDC_ACME_SCOPES=openid,groups
		AUTH_EXTERNAL_OIDC_ACME_EMAIL_OPTIONAL=1 AUTH_EXTERNAL_OIDC_ACME_SKIP_NONCE_CHECK=1 AUTH_EXTERNAL_OIDC_ACME_ID_TOKEN_ONLY=1 AUTH_EXTERNAL_OIDC_ACME_DISTRUST_EMAIL=1
		AUTH_EXTERNAL_OIDC_TWO_WORDS_ISSUER=https://two.test AUTH_EXTERNAL_OIDC_TWO_WORDS_ENABLED=false`)...)
	if len(mistakes) > 0 || len(warnings) > 0 {
		t.Fatal(mistakes, warnings)
	}
	want := map[string]provider.Client{
		"acme": {Enabled: true, Issuer: "https://acme.test", ClientIDs: []string{"a", "b"}, Secret: "from the file",
			RedirectURI: "https://auth.test/callback",
			Scopes:      []string{"openid", "groups"}, EmailOptional: true, SkipNonceCheck: true, IDTokenOnly: true,
			DistrustEmail: true},
		"two_words": {Issuer: "https://two.test", Scopes: []string{"openid", "email", "profile"}},
	}
	if d := cmp.Diff(want, l.External.OIDC); d != "" || !slices.Equal(l.API.External, []string{"acme"}) {
		t.Errorf("%s %v", d, l.API.External)
	}
}

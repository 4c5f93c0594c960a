package test

import (
	"encoding/base32"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/totp"
)

// Sign-ins by a browser: which browser may finish one, when, by which interface of the provider, and which users may
// sign in.
func TestEffects_browsers(t *testing.T) {
	t.Parallel()
	idp, d := startIDP(t), startTuned(t)
	with := func(more ...string) {
		t.Helper()
		d.with(t, append(providersAt(idp, backHere), more...)...)
	}
	for setting, want := range map[string]string{"": "bad_oauth_state",
		"AUTH_EXTERNAL_STATE_COOKIE=true": "bad_oauth_state", "AUTH_EXTERNAL_STATE_COOKIE=false": ""} {
		with(setting)
		told := d.visit(t, idp, "github", d.someone(), true)
		if told.Get("error_code") != want || (told.Get("access_token") != "") != (want == "") {
			t.Errorf("%s, a browser without cookies: %v", setting, told)
		}
	}

	for setting, want := range map[string]int{"": 300, "AUTH_EXTERNAL_FLOW_STATE_EXPIRY_DURATION=10m": 600,
		"AUTH_EXTERNAL_FLOW_STATE_EXPIRY_DURATION=10s": 300} {
		with(setting)
		_, cookies := d.begin(t, "github")
		if len(cookies) != 1 || cookies[0].MaxAge != want {
			t.Errorf("%s: cookies %v, want one for %d s", setting, cookies, want)
		}
		life := rows[float64](t, d.database,
			`select extract(epoch from expires_at - created_at)::float8 from external_states order by created_at desc limit 1`)
		if len(life) != 1 || life[0] != float64(want) {
			t.Errorf("%s: a state lives %v s, want %d", setting, life, want)
		}
	}

	// The interfaces of before have no flag for the address: their addresses count as proven.
	for provider, way := range map[string]struct{ setting, oidc, legacy string }{
		"linkedin": {"AUTH_EXTERNAL_LINKEDIN_MODE=", "scope=openid+email+profile",
			"scope=r_emailaddress+r_liteprofile"},
		"slack": {"AUTH_EXTERNAL_SLACK_MODE=", idp.Base("slack") + "/openid/connect/authorize?",
			idp.Base("slack") + "/oauth/authorize?"},
	} {
		for mode, want := range map[string]struct{ begin, code string }{
			"":       {way.oidc, "provider_email_needs_verification"},
			"oidc":   {way.oidc, "provider_email_needs_verification"},
			"legacy": {way.legacy, ""},
		} {
			with(way.setting + mode)
			if at, _ := d.begin(t, provider); !strings.Contains(at.String(), want.begin) {
				t.Errorf("%s%s leads to %s, without %s", way.setting, mode, at, want.begin)
			}
			u := d.someone()
			u.Verified = false
			d.comes(t, idp, want.code, provider, u)
		}
	}

	for setting, want := range map[string]string{
		"": "provider_email_needs_verification",
		"AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS=false": "provider_email_needs_verification",
		"AUTH_MAILER_ALLOW_UNVERIFIED_EMAIL_SIGN_INS=true":  "",
	} {
		with(setting)
		u := d.someone()
		u.Verified = false
		d.comes(t, idp, want, "github", u)
	}

	for setting, want := range map[string]string{"": "provider_email_needs_verification",
		"AUTH_EXTERNAL_AZURE_VERIFIED_DOMAINS=example.com":             "provider_email_needs_verification",
		"AUTH_EXTERNAL_AZURE_VERIFIED_DOMAINS=example.com,example.org": ""} {
		with(setting)
		d.comes(t, idp, want, "azure", d.someone())
	}

	const elsewhere = "AUTH_EXTERNAL_GITHUB_URL=http://idp.example.org"
	d.mistaken(t, append(providersAt(idp, backHere), elsewhere), "AUTH_EXTERNAL_GITHUB_URL begins with http://")
	with(elsewhere, "AUTH_EXTERNAL_ALLOW_INSECURE_URLS=true")
	if at, _ := d.begin(t, "github"); at.Scheme != "http" || at.Host != "idp.example.org" {
		t.Errorf("with AUTH_EXTERNAL_ALLOW_INSECURE_URLS, to %s", at)
	}
}

// ID tokens that applications bring, and what links an identity to an account.
func TestEffects_idTokens(t *testing.T) {
	t.Parallel()
	idp, d := startIDP(t), startTuned(t)
	with := func(more ...string) {
		t.Helper()
		d.with(t, append(providersAt(idp, backHere), more...)...)
	}
	for setting, want := range map[string]int{"": 400, "AUTH_EXTERNAL_ID_TOKEN_SINGLE_USE=true": 400,
		"AUTH_EXTERNAL_ID_TOKEN_SINGLE_USE=false": 200} {
		with(setting)
		token := idp.IDToken("google", d.someone(), nil)
		if a := d.native(t, "google", token); a.status != 200 {
			t.Errorf("%s: %d %s", setting, a.status, a.text)
		}
		if a := d.native(t, "google", token); a.status != want {
			t.Errorf("%s, once more: %d %s", setting, a.status, a.text)
		}
	}
	for setting, want := range map[string]int{"": 400, "AUTH_EXTERNAL_IOS_BUNDLE_ID=org.example.other": 400,
		"AUTH_EXTERNAL_IOS_BUNDLE_ID=org.example.app": 200} {
		with(setting)
		if a := d.native(t, "apple", idp.IDToken("apple", d.someone(),
			map[string]any{"aud": "org.example.app"})); a.status != want {
			t.Errorf("%s: %d %s", setting, a.status, a.text)
		}
	}

	const auto = "AUTH_MAILER_AUTOCONFIRM=true"
	with(auto)
	email := d.unusedAddress()
	access := d.want(t, 200, "POST", "/signup", "", credentials(email, horse)).str("access_token")
	factor := d.want(t, 200, "POST", "/factors", access, `{"factor_type":"totp"}`)
	shared, _ := factor.body["totp"].(map[string]any)
	secret, _ := shared["secret"].(string)
	key, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(secret)
	if err != nil {
		t.Fatal(err)
	}
	challenge := d.want(t, 200, "POST", "/factors/"+factor.str("id")+"/challenge", access, "").str("id")
	strong := d.want(t, 200, "POST", "/factors/"+factor.str("id")+"/verify", access,
		`{"challenge_id":"`+challenge+`","code":"`+totp.Code(key, totp.Step(time.Now()))+`"}`).str("access_token")
	weak := d.want(t, 200, "POST", "/token?grant_type=password", "", credentials(email, horse)).str("access_token")
	const implicit = "/user/identities/authorize?provider=github&skip_http_redirect=true"
	linking := implicit + "&code_challenge_method=plain&code_challenge=" + strings.Repeat("c", 43)
	d.refuses(t, "validation_failed", "GET", implicit, strong, "")
	d.want(t, 200, "GET", linking, strong, "")
	d.refuses(t, "insufficient_aal", "GET", linking, weak, "")
	with(auto, "AUTH_SECURITY_LINKING_REQUIRE_AAL2=false")
	d.want(t, 200, "GET", linking, weak, "")
	with(auto, "AUTH_SECURITY_LINKING_REQUIRE_PKCE=false")
	d.want(t, 200, "GET", implicit, strong, "")
}

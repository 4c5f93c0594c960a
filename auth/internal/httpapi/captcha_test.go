package httpapi

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/captcha"
	"gatehouse/auth/internal/captcha/captchatest"
)

// guarded is an API that demands captchas.
func guarded(t *testing.T, change func(*captcha.Options), changes ...change) (*api, *captchatest.Server) {
	t.Helper()
	s := captchatest.Start(t)
	o := captcha.Options{Settings: captcha.Settings{Provider: "hcaptcha", Secret: captchatest.Secret, URL: s.URL(),
		Timeout: 20 * time.Second}}
	if change != nil {
		change(&o)
	}
	v, err := captcha.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return open(t, append(changes, func(_ *flow.Settings, s *Settings) { s.Captcha = v })...), s
}

// with is a body with a solved captcha as the client library sends it.
func with(body map[string]any) map[string]any {
	body["gotrue_meta_security"] = map[string]any{"captcha_token": captchatest.Solved}
	return body
}

const noToken = "captcha protection: request disallowed (no captcha_token found)"

// Where captchas are demanded, and where not.
func TestCaptcha_where(t *testing.T) {
	type m = map[string]any
	a, s := guarded(t, nil, passkeysOn)
	var g grantJSON
	a.do("POST /signup", with(m{"email": "mia@example.org", "password": sesame})).is(200, "*")
	a.do("POST /verify", m{"type": "signup", "token_hash": a.newest("mia@example.org").Hash}).json(&g)
	asked := len(s.Asked())
	for _, demanded := range []struct {
		route string
		body  m
	}{
		{"POST /signup", m{"email": "new@example.org", "password": sesame}},
		{"POST /signup", m{"phone": "4915112345678", "password": sesame}},
		{"POST /signup", m{}},
		{"POST /token?grant_type=password", m{"email": "mia@example.org", "password": sesame}},
		{"POST /passkeys/authentication/options", m{}},
		{"POST /otp", m{"email": "otp@example.org"}},
		{"POST /otp", m{"phone": "4915112345679"}},
		{"POST /magiclink", m{"email": "link@example.org"}},
		{"POST /recover", m{"email": "mia@example.org"}},
		{"POST /resend", m{"email": "new@example.org", "type": "signup"}},
	} {
		a.pass(time.Hour)
		// The anon key is what the library's every request brings; a user's own token is no way around either.
		a.do(demanded.route, demanded.body, bearer(a.serviceToken("anon", time.Hour))).refused(400, "captcha_failed",
			noToken)
		a.do(demanded.route, demanded.body, bearer(g.AccessToken)).refused(400, "captcha_failed", noToken)
		a.do(demanded.route, demanded.body, bearer("forged")).refused(400, "captcha_failed", noToken)
		if n := len(s.Asked()); n != asked {
			t.Errorf("%s: the provider was asked about nothing", demanded.route)
		}
		a.do(demanded.route, with(demanded.body)).is(200, "*")
		if asked++; len(s.Asked()) != asked {
			t.Errorf("%s: the provider was asked %d times, want %d", demanded.route, len(s.Asked()), asked)
		}
		// Administrators need none.
		a.pass(time.Hour)
		delete(demanded.body, "gotrue_meta_security")
		a.do(demanded.route, demanded.body, a.service()).is(200, "*")
	}
	a.do("POST /passkeys/authentication/options", nil).refused(400, "captcha_failed", noToken) // its body is optional
	// Unknown grants and none, and what is left out: the captcha comes first.
	for _, grant := range []string{"?grant_type=x", ""} {
		a.do("POST /token"+grant, m{}).refused(400, "captcha_failed", noToken)
		a.do("POST /token"+grant, with(m{})).refused(400, "invalid_credentials", "unsupported_grant_type")
	}
	a.do("POST /token?grant_type=web3", m{}).refused(400, "captcha_failed", noToken)
	a.do("POST /token?grant_type=web3", with(m{})).refused(422, "web3_provider_disabled", "*")
	a.do("POST /sso", "{").refused(404, "saml_provider_disabled", "*") // what is disabled requires none
	asked += 3
	var again grantJSON
	a.do("POST /token?grant_type=password", with(m{"email": "mia@example.org", "password": sesame})).json(&again)
	asked++
	a.do("POST /token?grant_type=refresh_token", m{"refresh_token": again.RefreshToken}).is(200, "*")
	a.do("POST /token?grant_type=pkce", m{"auth_code": "x", "code_verifier": "y"}).refused(404, "flow_state_not_found",
		"*")
	a.do("POST /token?grant_type=id_token", m{"id_token": "x"}).is(400, `{"error":*`)
	a.do("POST /verify", m{"type": "signup", "token_hash": strings.Repeat("0", 64)}).refused(403, "otp_expired", "*")
	a.do("PUT /user", m{"data": m{"a": 1}}, bearer(again.AccessToken)).is(200, "*")
	a.do("GET /reauthenticate", nil, bearer(again.AccessToken)).is(200, "*")
	a.do("POST /invite", m{"email": "invited@example.org"}, a.service()).is(200, "*")
	a.do("POST /logout?scope=local", nil, bearer(again.AccessToken)).is(204, "")
	if n := len(s.Asked()); n != asked {
		t.Errorf("asked %d times, want %d", n, asked)
	}
	// An administrator's session that is over is none.
	a.do("POST /signup", with(m{"email": "boss@example.org", "password": sesame})).is(200, "*")
	a.do("POST /verify", m{"type": "signup", "token_hash": a.newest("boss@example.org").Hash}).json(&g)
	a.do("PUT /admin/users/"+g.User.ID, m{"role": "supabase_admin"}, a.service()).is(200, "*")
	a.do("POST /token?grant_type=password", with(m{"email": "boss@example.org", "password": sesame})).json(&g)
	a.do("POST /recover", m{"email": "x@example.org"}, bearer(g.AccessToken)).is(200, "{}")
	a.do("POST /logout?scope=global", nil, bearer(g.AccessToken)).is(204, "")
	a.do("POST /recover", m{"email": "x@example.org"}, bearer(g.AccessToken)).refused(400, "captcha_failed", noToken)
}

// Both places of the token, the nested one first, without white space; and whose address goes along.
func TestCaptcha_token(t *testing.T) {
	type m = map[string]any
	a, s := guarded(t, nil, func(_ *flow.Settings, s *Settings) {
		s.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	f := func(body any, want string) {
		t.Helper()
		n := len(s.Asked())
		a.do("POST /recover", body, header{"X-Forwarded-For", "198.51.100.1, 203.0.113.7"}).is(200, "{}")
		if d := cmp.Diff([]captchatest.Question{{Token: want, IP: "203.0.113.7"}}, s.Asked()[n:]); d != "" {
			t.Errorf("%v: %s", body, d)
		}
	}
	s.Say(&captchatest.Answer{Body: `{"success":true}`})
	f(m{"email": "a@example.org", "captcha_token": "top"}, "top")
	f(m{"email": "b@example.org", "captcha_token": "top", "gotrue_meta_security": m{"captcha_token": " nested\n"}},
		"nested")
	f(m{"email": "c@example.org", "captcha_token": "\ttop ", "gotrue_meta_security": m{"captcha_token": "  "}}, "top")
	f(m{"email": "d@example.org", "captcha_token": "top", "gotrue_meta_security": nil}, "top")
	for _, none := range []any{m{}, m{"captcha_token": nil}, m{"gotrue_meta_security": m{}},
		m{"captcha_token": " ", "gotrue_meta_security": m{"captcha_token": nil}}} {
		a.do("POST /recover", none).refused(400, "captcha_failed", noToken)
	}
	for _, broken := range []any{"", "{", "[]", `{"captcha_token":7}`, `{"gotrue_meta_security":"x"}`,
		`{"captcha_token":"\u0000"}`} {
		a.do("POST /recover", broken).refused(400, "bad_json", "Could not parse request body as JSON: *")
	}
	a.do("POST /signup", `{"x":"`+strings.Repeat("x", maxBody)+`"}`).refused(413, "request_entity_too_large", "*")
}

// The answers when a captcha is not solved, or cannot be verified.
func TestCaptcha_errors(t *testing.T) {
	type m = map[string]any
	a, s := guarded(t, nil)
	guess := func() answer {
		return a.do("POST /recover", m{"email": "mia@example.org", "captcha_token": "guess-hush"})
	}
	guess().refused(400, "captcha_failed",
		"captcha protection: request disallowed (invalid-input-response, timeout-or-duplicate)")
	a.do("POST /recover", m{"captcha_token": "x"}, header{"X-Supabase-Api-Version", "2024-01-01"}).
		is(400, `{"code":"captcha_failed","message":"captcha protection: request disallowed (invalid-input-response, timeout-or-duplicate)"}`)
	s.Say(&captchatest.Answer{Body: `{"success":false,"error-codes":["invalid-input-secret"]}`})
	guess().refused(400, "captcha_failed", "captcha protection: request disallowed (invalid-input-secret)")
	if !strings.Contains(a.log.String(), "AUTH_SECURITY_CAPTCHA_SECRET") {
		t.Error("nobody is told of the wrong secret")
	}
	for _, bad := range []captchatest.Answer{{Body: "<html>"}, {Status: 500}, {Drop: true}} {
		s.Say(&bad)
		guess().refused(500, "unexpected_failure", "captcha verification process failed")
	}
	a2, s2 := guarded(t, func(o *captcha.Options) { o.Timeout = 50 * time.Millisecond })
	s2.Say(&captchatest.Answer{Hang: true})
	a2.do("POST /token?grant_type=password", m{"captcha_token": "x"}).refused(500, "unexpected_failure",
		"captcha verification process failed")
	for _, hidden := range []string{"guess-hush", captchatest.Secret,
		base64.StdEncoding.EncodeToString([]byte(captchatest.Secret))} {
		if strings.Contains(a.log.String(), hidden) {
			t.Errorf("the log holds %q", hidden)
		}
	}
	// The database cannot say which user administers: no request passes, and none is refused for good.
	boss := a.administrator(t, s)
	a.db.Close()
	a.do("POST /recover", m{"captcha_token": "x"}, bearer(boss)).refused(503, "unexpected_failure", "*")
}

// administrator is the access token of an administrator, signed up where captchas are required.
func (a *api) administrator(t *testing.T, s *captchatest.Server) string {
	t.Helper()
	s.Say(nil)
	var g grantJSON
	a.do("POST /signup", with(map[string]any{"email": "boss@example.org", "password": sesame})).is(200, "*")
	a.do("POST /verify", map[string]any{"type": "signup", "token_hash": a.newest("boss@example.org").Hash}).json(&g)
	a.do("PUT /admin/users/"+g.User.ID, map[string]any{"role": "supabase_admin"}, a.service()).is(200, "*")
	a.do("POST /token?grant_type=password",
		with(map[string]any{"email": "boss@example.org", "password": sesame})).json(&g)
	return g.AccessToken
}

// The address's own limit: before the captcha where something is sent, behind it for /signup and /token.
func TestCaptcha_limits(t *testing.T) {
	type m = map[string]any
	a, s := guarded(t, nil, func(_ *flow.Settings, s *Settings) {
		s.LimitByPeer, s.Limits = true, Limits{OTP: 1, Verify: 1, Token: 1, Anonymous: 1}
	})
	for _, route := range []string{"/otp", "/magiclink", "/recover", "/resend"} {
		a.do("POST "+route, m{}).refused(400, "captcha_failed", noToken)
		a.do("POST "+route, m{}).refused(429, "over_request_rate_limit", "*")
	}
	for i := range 3 {
		a.do("POST /signup", m{"email": fmt.Sprint(i, "@example.org"), "password": sesame}).refused(400,
			"captcha_failed", noToken)
		a.do("POST /token?grant_type=password", m{}).refused(400, "captcha_failed", noToken)
	}
	a.do("POST /signup", with(m{"email": "mia@example.org", "password": sesame})).is(200, "*")
	a.do("POST /signup", with(m{"email": "mia@example.org", "password": sesame})).refused(429,
		"over_request_rate_limit", "*")
	a.do("POST /token?grant_type=password", with(m{"email": "x@example.org", "password": sesame})).refused(400,
		"invalid_credentials", "*")
	a.do("POST /token?grant_type=password", with(m{"email": "x@example.org", "password": sesame})).refused(429,
		"over_request_rate_limit", "*")
	if n := len(s.Asked()); n != 4 {
		t.Errorf("asked %d times", n)
	}
}

package httpapi

import (
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
)

func TestToken_password(t *testing.T) {
	a := open(t)
	a.member("mia@example.org")
	f := func(status int, code, msg string, pairs ...string) {
		t.Helper()
		in := map[string]any{}
		for i := 0; i < len(pairs); i += 2 {
			in[pairs[i]] = pairs[i+1]
		}
		a.do("POST /token?grant_type=password", in).refused(status, code, msg)
	}
	var g grantJSON
	got := a.do("POST /token?grant_type=password",
		map[string]any{"email": "MIA@example.org", "password": sesame, "gotrue_meta_security": map[string]any{}}).json(
		&g)
	got.is(200,
		`{"access_token":"*","token_type":"bearer","expires_in":3600,"expires_at":*,"refresh_token":"*","user":{"id":"*"*}}`)
	claims := claimsOf(t, g.AccessToken)
	if claims["sub"] != g.User.ID || claims["aud"] != "authenticated" || claims["iss"] != externalURL ||
		claims["aal"] != "aal1" {
		t.Errorf("claims %v", claims)
	}
	f(400, "validation_failed", "Only an email address or phone number should be provided on login.", "email", "a@b",
		"phone", "4915112345678", "password", "x")
	f(400, "validation_failed", "missing email or phone", "password", "x")
	f(400, "invalid_credentials", "Invalid login credentials", "email", "nobody@example.org", "password", "x")
	f(400, "invalid_credentials", "Invalid login credentials", "email", "mia@example.org", "password", "x")
	f(400, "invalid_credentials", "Invalid login credentials", "email", "not an address", "password", "x")
	f(400, "invalid_credentials", "Invalid login credentials", "email", "mia@example.org")
	a.do("POST /token?grant_type=password", map[string]any{"email": "mia@example.org", "password": sesame},
		header{"X-JWT-AUD", "other"}).refused(400, "invalid_credentials", "*")

	a.do("POST /signup", map[string]any{"email": "tom@example.org", "password": sesame}).is(200, "*")
	f(400, "email_not_confirmed", "Email not confirmed", "email", "tom@example.org", "password", sesame)
	f(400, "invalid_credentials", "*", "email", "tom@example.org", "password", "x")
	a.do("POST /signup", map[string]any{"phone": "4915112345678", "password": sesame}).is(200, "*")
	f(400, "phone_not_confirmed", "Phone not confirmed", "phone", "+49 151 12345678", "password", sesame)

	a.do("PUT /admin/users/"+g.User.ID, map[string]any{"ban_duration": "1h"}, a.service()).is(200, "*")
	f(400, "user_banned", "User is banned", "email", "mia@example.org", "password", sesame)
	f(400, "invalid_credentials", "*", "email", "mia@example.org", "password", "x")
	a.do("PUT /admin/users/"+g.User.ID, map[string]any{"ban_duration": "none"}, a.service()).is(200, "*")

	a.apply(func(s *flow.Settings, _ *Settings) { s.Email.Enabled, s.Phone.Enabled = false, false })
	f(422, "email_provider_disabled", "Email logins are disabled", "email", "mia@example.org", "password", "x")
	f(422, "phone_provider_disabled", "Phone logins are disabled", "phone", "4915112345678", "password", "x")

	a.do("POST /token", "{}").is(400, `{"code":400,"error_code":"invalid_credentials","msg":"unsupported_grant_type"}`)
	a.do("POST /token?grant_type=device_code", "{}").refused(400, "invalid_credentials", "unsupported_grant_type")
	a.do("POST /token?grant_type=password", "").refused(400, "bad_json", "*")
}

// After 20 wrong guesses an address waits, whether it has an account or not.
func TestToken_passwordTries(t *testing.T) {
	a := open(t)
	a.member("mia@example.org")
	for _, email := range []string{"mia@example.org", "nobody@example.org"} {
		in := map[string]any{"email": email, "password": "guess"}
		for range 20 {
			a.do("POST /token?grant_type=password", in).refused(400, "invalid_credentials", "*")
		}
		got := a.do("POST /token?grant_type=password", in).refused(429, "over_request_rate_limit",
			"Too many wrong passwords for this address. Wait, or sign in with a link or a code.")
		if got.Header.Get("Retry-After") != "60" {
			t.Errorf("Retry-After %q", got.Header.Get("Retry-After"))
		}
	}
}

// Where limits know the client, a stranger's guesses don't keep the owner out at a place of an earlier sign-in.
func TestToken_knownPlace(t *testing.T) {
	a := open(t, func(u *flow.Settings, s *Settings) {
		u.KnownPlaces, s.LimitHeader, s.Limits.Token = true, "X-Real-Ip", 1000
	})
	a.member("mia@example.org")
	home, away := header{"X-Real-Ip", "192.0.2.7"}, header{"X-Real-Ip", "198.51.100.7"}
	right, guess := map[string]any{"email": "mia@example.org", "password": sesame},
		map[string]any{"email": "mia@example.org", "password": "guess"}
	a.do("POST /token?grant_type=password", right, home).is(200, "*")
	for range 20 {
		a.do("POST /token?grant_type=password", guess, away).refused(400, "invalid_credentials", "*")
	}
	a.do("POST /token?grant_type=password", right, away).refused(429, "over_request_rate_limit", "*")
	a.do("POST /token?grant_type=password", right).refused(429, "over_request_rate_limit", "*")
	a.do("POST /token?grant_type=password", right, header{"X-Real-Ip", "192.0.2.8"}).is(200, "*")
}

func TestToken_refresh(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	refresh := func(text string) answer {
		t.Helper()
		return a.do("POST /token?grant_type=refresh_token", map[string]any{"refresh_token": text})
	}
	var next grantJSON
	refresh(g.RefreshToken).json(&next)
	if next.RefreshToken == g.RefreshToken || next.User.Email != "mia@example.org" {
		t.Errorf("refreshed %+v", next)
	}
	for _, bad := range []string{"", "x", strings.Repeat("x", 76), strings.Repeat("x", 5000)} {
		refresh(bad).refused(400, "validation_failed", "Refresh token is not valid")
	}
	forged := next.RefreshToken[:75] + "A"
	if forged == next.RefreshToken {
		forged = next.RefreshToken[:75] + "B"
	}
	refresh(forged).refused(400, "refresh_token_not_found", "*")
	a.do("POST /token?grant_type=refresh_token", "{").refused(400, "bad_json", "*")

	// The previous token again, within the interval: the same child. An older token, or after the interval: the end.
	var child grantJSON
	refresh(g.RefreshToken).json(&child)
	if child.RefreshToken != next.RefreshToken {
		t.Error("the previous token gives another child")
	}
	a.pass(time.Minute)
	refresh(g.RefreshToken).refused(400, "refresh_token_already_used", "Invalid Refresh Token: Already Used")
	refresh(next.RefreshToken).refused(400, "refresh_token_not_found", "Invalid Refresh Token: Refresh Token Not Found")
	a.do("GET /user", nil, bearer(next.AccessToken)).refused(403, "session_not_found",
		"Session from session_id claim in JWT does not exist")

	h := a.member("tom@example.org")
	a.do("PUT /admin/users/"+h.User.ID, map[string]any{"ban_duration": "1h"}, a.service()).is(200, "*")
	refresh(h.RefreshToken).refused(400, "user_banned", "Invalid Refresh Token: User Banned")
	a.do("PUT /admin/users/"+h.User.ID, map[string]any{"ban_duration": "none"}, a.service()).is(200, "*")
	a.pass(time.Minute)
	a.apply(func(s *flow.Settings, _ *Settings) { s.Sessions.Timebox = time.Second })
	refresh(h.RefreshToken).refused(400, "session_expired", "Invalid Refresh Token: Session Expired")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Sessions.Timebox, s.Sessions.Inactivity = 0, time.Second })
	refresh(h.RefreshToken).refused(400, "session_expired", "Invalid Refresh Token: Session Expired (Inactivity)")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Sessions.Inactivity = 0 })

	// With the database unreachable: 503 and nothing else, and the token remains valid.
	a.db.Close()
	got := refresh(h.RefreshToken).refused(503, "unexpected_failure", "*")
	if got.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", got.Header.Get("Retry-After"))
	}
}

// begin is a PKCE flow as a client begins it.
func begin() (verifier string, fields map[string]any) {
	verifier = strings.ReplaceAll(uuid.NewString()+uuid.NewString(), "-", "")
	sum := sha256.Sum256([]byte(verifier))
	return verifier, map[string]any{"code_challenge": base64.RawURLEncoding.EncodeToString(sum[:]),
		"code_challenge_method": "s256"}
}

func TestToken_pkce(t *testing.T) {
	a := open(t)
	verifier, in := begin()
	in["email"], in["password"] = "mia@example.org", sesame
	a.do("POST /signup", in).is(200, "*")
	l := a.newest("mia@example.org")
	if !strings.HasPrefix(l.Hash, "pkce_") {
		t.Fatalf("hash %q", l.Hash)
	}
	open := func(hash string) url.Values {
		t.Helper()
		got := a.do("GET /verify?type=signup&redirect_to=https%3A%2F%2Fother.example.org%2Fcb%3Fa%3Db%23top&token="+
			hash,
			nil).is(303, "*")
		to, err := url.Parse(got.Header.Get("Location"))
		if err != nil || to.Host != "other.example.org" {
			t.Fatalf("Location %q", got.Header.Get("Location"))
		}
		if to.Query().Get("a") != "b" {
			t.Errorf("the target's own query is lost: %s", to)
		}
		return to.Query()
	}
	code := open(l.Hash).Get("code")
	exchange := func(code, verifier string) answer {
		t.Helper()
		return a.do("POST /token?grant_type=pkce", map[string]any{"auth_code": code, "code_verifier": verifier})
	}
	exchange("", verifier).refused(400, "validation_failed",
		"invalid request: both auth code and code verifier should be non-empty")
	exchange(uuid.NewString(), verifier).refused(404, "flow_state_not_found",
		"invalid flow state, no valid flow state found")
	exchange("nonsense", verifier).refused(404, "flow_state_not_found", "*")
	var g grantJSON
	exchange(code, verifier).json(&g)
	if g.User.Email != "mia@example.org" || g.User.ConfirmedAt == "" {
		t.Errorf("user %+v", g.User)
	}
	exchange(code, verifier).refused(404, "flow_state_not_found", "*")

	// A wrong verifier uses the code up.
	_, in = begin()
	in["email"] = "mia@example.org"
	a.pass(time.Hour)
	a.do("POST /recover", in).is(200, "{}")
	got := a.do("GET /verify?type=recovery&token="+a.newest("mia@example.org").Hash, nil).is(303, "*")
	to, _ := url.Parse(got.Header.Get("Location"))
	exchange(to.Query().Get("code"), verifier).refused(400, "bad_code_verifier",
		"code challenge does not match previously saved code verifier")
	exchange(to.Query().Get("code"), verifier).refused(404, "flow_state_not_found", "*")

	// A code that lay about for more than five minutes.
	verifier, in = begin()
	in["email"] = "mia@example.org"
	a.pass(time.Hour)
	a.do("POST /recover", in).is(200, "{}")
	got = a.do("GET /verify?type=recovery&token="+a.newest("mia@example.org").Hash, nil).is(303, "*")
	to, _ = url.Parse(got.Header.Get("Location"))
	a.pass(301 * time.Second)
	exchange(to.Query().Get("code"), verifier).refused(422, "flow_state_expired",
		"invalid flow state, flow state has expired")

	// The link once more: an error in query and fragment.
	if q := open(l.Hash); q.Get("error_code") != "otp_expired" ||
		q.Get("error_description") != "Email link is invalid or has expired" || q.Get("error") != "access_denied" {
		t.Errorf("query %v", q)
	}
}

package httpapi

import (
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
)

func TestUser(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	get := func(headers ...header) answer { t.Helper(); return a.do("GET /user", nil, headers...) }
	first := get(bearer(g.AccessToken)).is(200,
		`{"id":"`+
			g.User.ID+
			`","aud":"authenticated","role":"authenticated","email":"mia@example.org","email_confirmed_at":"*","phone":"","confirmation_sent_at":"*","confirmed_at":"*","last_sign_in_at":"*","app_metadata":{*},"user_metadata":{*},"identities":[{"identity_id":"*"*}],"created_at":"*","updated_at":"*","is_anonymous":false}`)
	if again := get(bearer(g.AccessToken)); again.body != first.body {
		t.Error("two reads differ")
	}
	get(header{"Authorization", "bEaReR " + g.AccessToken}).is(200, "*")
	get(bearer(g.AccessToken), header{"X-JWT-AUD", "authenticated"}).is(200, "*")
	get(bearer(g.AccessToken), header{"X-JWT-AUD", "other"}).refused(400, "validation_failed",
		"Token audience doesn't match request audience")
	for _, h := range []string{"", "Bearer", "Bearer ", "Basic " + g.AccessToken, g.AccessToken, "Bearer a b",
		"Bearer  " + g.AccessToken, "Bearer" + g.AccessToken} {
		get(header{"Authorization", h}).refused(401, "no_authorization", "This endpoint requires a valid Bearer token")
	}
	get(bearer("x")).refused(403, "bad_jwt", "invalid JWT: unable to parse or verify signature, *")
	get(bearer(a.serviceToken("service_role", time.Hour))).refused(403, "bad_jwt", "invalid claim: missing sub claim")
	get(header{"Cookie", "sb-access-token=" + g.AccessToken}).refused(401, "no_authorization", "*")

	a.do("DELETE /admin/users/"+g.User.ID, nil, a.service()).is(200, "{}")
	get(bearer(g.AccessToken)).refused(403, "user_not_found", "User from sub claim in JWT does not exist")
}

func TestPutUser(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	a.member("tom@example.org")
	me := bearer(g.AccessToken)
	put := func(in any) answer { t.Helper(); return a.do("PUT /user", in, me) }
	var u userJSON
	put(map[string]any{"data": map[string]any{"nick": nil, "color": "blue"}, "code_challenge": nil}).json(&u)
	if u.UserMetadata["color"] != "blue" || u.UserMetadata["nick"] != nil {
		t.Errorf("user_metadata %v", u.UserMetadata)
	}
	put("{}").is(200, "*")
	put("").refused(400, "bad_json", "*")
	put(map[string]any{"email": "x"}).refused(400, "validation_failed", "*invalid format")
	put(map[string]any{"phone": "x"}).refused(400, "validation_failed", "Invalid phone number format (E.164 required)")
	put(map[string]any{"phone": "4915112345678", "channel": "pigeon"}).refused(400, "validation_failed",
		"Invalid channel*")
	put(map[string]any{"password": ""}).refused(422, "weak_password", "*")
	put(map[string]any{"password": strings.Repeat("x", 73)}).refused(400, "validation_failed",
		"Password cannot be longer than 72 characters")
	put(map[string]any{"app_metadata": map[string]any{"role": "king"}}).refused(403, "not_admin",
		"Updating app_metadata requires admin privileges")
	put(map[string]any{"email": "tom@example.org"}).refused(422, "email_exists",
		"A user with this email address has already been registered")
	put(map[string]any{"password": sesame}).refused(422, "same_password",
		"New password should be different from the old password.")

	put(map[string]any{"email": "new@example.org", "code_challenge": strings.Repeat("a", 50),
		"code_challenge_method": "plain"}).json(&u)
	if u.Email != "mia@example.org" || u.NewEmail != "new@example.org" {
		t.Errorf("user %+v", u)
	}
	put(map[string]any{"phone": "+49 151 12345678"}).json(&u)
	a.do("POST /verify", map[string]any{"type": "phone_change", "phone": "4915112345678",
		"token": a.newest("4915112345678").Code}).is(200, `*"type":"phone_change"}`)
	put(map[string]any{"password": "another one 2", "current_password": nil}).is(200, "*")
	a.do("POST /token?grant_type=password",
		map[string]any{"email": "mia@example.org", "password": "another one 2"}).is(200, "*")

	a.apply(func(s *flow.Settings, _ *Settings) { s.Passwords.RequireNonce = true })
	put(map[string]any{"password": "a third one 3"}).refused(400, "reauthentication_needed",
		"Password update requires reauthentication")
	put(map[string]any{"password": "a third one 3", "nonce": "nonsense"}).refused(422, "reauthentication_not_valid",
		"Nonce has expired or is invalid")
	a.pass(time.Second)
	got := a.do("GET /reauthenticate", nil, me).is(200, "{}")
	if got.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", got.Header)
	}
	put(map[string]any{"password": "a third one 3", "nonce": a.newest("mia@example.org").Code}).is(200, "*")
	a.apply(func(s *flow.Settings, _ *Settings) {
		s.Passwords.RequireNonce, s.Passwords.RequireCurrent = false, true
	})
	h := map[string]any{"password": "a fourth one 4"}
	var w grantJSON
	a.do("POST /token?grant_type=password",
		map[string]any{"email": "mia@example.org", "password": "a third one 3"}).json(&w)
	me = bearer(w.AccessToken)
	put(h).refused(400, "current_password_required", "Current password required when setting new password.")
	h["current_password"] = "wrong"
	put(h).refused(400, "current_password_invalid", "Current password required when setting new password.")
	h["current_password"] = "a third one 3"
	put(h).is(200, "*")

	var anon grantJSON
	a.do("POST /signup", map[string]any{}).json(&anon)
	a.do("PUT /user", map[string]any{"password": sesame}, bearer(anon.AccessToken)).refused(422, "validation_failed",
		"Updating password of an anonymous user without an email or phone is not allowed")
	a.do("GET /reauthenticate", nil, bearer(anon.AccessToken)).refused(400, "validation_failed",
		"Reauthentication requires the user to have an email or a phone number")
	a.do("HEAD /reauthenticate", nil, me).is(405, "")
}

func TestSessions(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	other := a.member("tom@example.org")
	var h grantJSON
	a.do("POST /token?grant_type=password", map[string]any{"email": "mia@example.org", "password": sesame},
		header{"User-Agent", "phone\xff"}).json(&h)
	type session struct {
		ID, IP, AAL string
		UserAgent   string `json:"user_agent"`
		Current     bool
		EndedAt     string `json:"ended_at"`
		EndedReason string `json:"ended_reason"`
		AMR         []struct{ Method string }
	}
	var list []session
	a.do("GET /user/sessions", nil, bearer(h.AccessToken)).json(&list)
	if len(list) != 2 || !list[0].Current || list[1].Current || list[0].ID != sessionOf(t, h.AccessToken) ||
		list[0].UserAgent != "phone\ufffd" ||
		list[0].IP != "127.0.0.1" || list[0].AAL != "aal1" || list[0].AMR[0].Method != "password" ||
		list[1].AMR[0].Method != "otp" {
		t.Errorf("sessions %+v", list)
	}
	me := bearer(h.AccessToken)
	a.do("DELETE /user/sessions/"+sessionOf(t, other.AccessToken), nil, me).refused(404, "session_not_found", "*")
	a.do("DELETE /user/sessions/nonsense", nil, me).refused(404, "validation_failed", "id must be an UUID")
	a.do("DELETE /user/sessions/"+sessionOf(t, g.AccessToken), nil, me).is(204, "")
	a.do("GET /user", nil, bearer(g.AccessToken)).refused(403, "session_not_found", "*")
	a.do("GET /admin/users/"+g.User.ID+"/sessions", nil, a.service()).json(&list)
	if len(list) != 2 || list[1].EndedAt == "" || list[1].EndedReason == "" || list[0].Current {
		t.Errorf("sessions %+v", list)
	}
	a.do("GET /admin/users/"+strings.Replace(g.User.ID, g.User.ID[:8], "00000000", 1)+"/sessions", nil,
		a.service()).refused(404, "user_not_found", "*")
	a.do("GET /admin/users/x/sessions", nil, a.service()).refused(404, "validation_failed", "user_id must be an UUID")
}

func TestLogout(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	signIn := func() (g grantJSON) {
		t.Helper()
		a.do("POST /token?grant_type=password", map[string]any{"email": "mia@example.org", "password": sesame}).json(&g)
		return g
	}
	out := func(query string, g grantJSON) answer {
		t.Helper()
		return a.do("POST /logout"+query, nil, bearer(g.AccessToken),
			header{"Content-Type", "application/json;charset=UTF-8"})
	}
	alive := func(g grantJSON, user, sessions int) {
		t.Helper()
		if got := a.do("GET /user", nil, bearer(g.AccessToken)); got.StatusCode != user {
			t.Errorf("GET /user: %d %s", got.StatusCode, got.body)
		}
		if got := a.do("GET /user/sessions", nil, bearer(g.AccessToken)); got.StatusCode != sessions {
			t.Errorf("GET /user/sessions: %d %s", got.StatusCode, got.body)
		}
	}
	out("?scope=all", g).refused(400, "validation_failed", `Unsupported logout scope "all"`)
	a.do("POST /logout", nil).refused(401, "no_authorization", "*")

	h := signIn()
	out("?scope=local", g).is(204, "")
	alive(g, 403, 403)
	alive(h, 200, 200)
	out("?scope=local", g).is(204, "") // a second time: out is out
	g = signIn()
	out("?scope=others", g).is(204, "")
	alive(g, 200, 200)
	alive(h, 403, 403)
	h = signIn()
	out("?scope=global", g).is(204, "")
	alive(g, 403, 403)
	alive(h, 403, 403)

	// Without a scope the refresh tokens go; the access token still reads the user, and nothing else.
	g = signIn()
	out("", g).is(204, "")
	alive(g, 200, 403)
	a.do("POST /token?grant_type=refresh_token", map[string]any{"refresh_token": g.RefreshToken}).refused(400,
		"refresh_token_not_found", "*")
	// The client library sends the word "global" for its default; an empty scope is one too.
	g = signIn()
	out("?scope=", g).is(204, "")
	alive(g, 403, 403)
}

// The audience of the header must be the token's wherever a user's token is taken, except for the sign-out, which
// always works.
func TestAudience_everywhere(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	const id = "7b0cc5b2-2b7f-46f4-83d7-d3aac9da6c76"
	other := []header{bearer(g.AccessToken), {"X-JWT-AUD", "other"}}
	for _, route := range []string{
		"GET /user", "PUT /user", "GET /reauthenticate", "GET /user/sessions", "DELETE /user/sessions/" + id,
		"GET /user/identities/authorize?provider=github",
		"POST /factors", "POST /factors/" + id + "/challenge", "POST /factors/" + id + "/verify",
		"DELETE /factors/" + id,
		"GET /factors/recovery-codes", "POST /factors/recovery-codes", "DELETE /factors/recovery-codes",
		"POST /factors/recovery-codes/verify", "POST /factors/recovery-codes/regenerate",
	} {
		a.do(route, map[string]any{}, other...).refused(400, "validation_failed",
			"Token audience doesn't match request audience")
	}
	a.do("GET /admin/users", nil, a.service(), header{"X-JWT-AUD", "other"}).is(200, "*")
	a.do("POST /logout?scope=local", nil, other...).is(204, "")
}

package httpapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/auth/internal/account/flow"
)

func TestSignup(t *testing.T) {
	a := open(t)
	got := a.do("POST /signup", map[string]any{"email": "Mia@Example.org", "password": sesame,
		"data":                 map[string]any{"nick": "mi"},
		"gotrue_meta_security": map[string]any{}, "code_challenge": nil, "code_challenge_method": nil})
	got.is(200,
		`{"id":"*","aud":"authenticated","role":"authenticated","email":"mia@example.org","phone":"","confirmation_sent_at":"*","app_metadata":{"provider":"email","providers":["email"]},"user_metadata":{*},"identities":[{"identity_id":"*"*}],"created_at":"*","updated_at":"*","is_anonymous":false}`)
	if got.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", got.Header)
	}
	var u userJSON
	got.json(&u)
	if u.UserMetadata["sub"] != u.ID || u.UserMetadata["email"] != "mia@example.org" ||
		u.UserMetadata["nick"] != "mi" || u.UserMetadata["email_verified"] != false {
		t.Errorf("user_metadata %v", u.UserMetadata)
	}
	l := a.newest("mia@example.org")
	if !strings.HasPrefix(l.Link, externalURL+"/verify?token="+l.Hash+"&type=signup&redirect_to="+siteURL) {
		t.Errorf("link %s", l.Link)
	}
	a.do("POST /signup?redirect_to=https%3A%2F%2Fother.example.org%2Fa",
		map[string]any{"email": "tom@example.org", "password": sesame}).is(200, "*")
	if l := a.newest("tom@example.org"); !strings.HasSuffix(l.Link, "&redirect_to=https://other.example.org/a") {
		t.Errorf("link %s", l.Link)
	}
	a.do("POST /signup?redirect_to=https%3A%2F%2Fevil.example%2Fa",
		map[string]any{"email": "eve@example.org", "password": sesame},
		header{"Referer", "https://other.example.org/page"}, header{"X-Forwarded-Host", "evil.example"}).is(200, "*")
	if l := a.newest("eve@example.org"); !strings.HasPrefix(l.Link, externalURL) ||
		!strings.HasSuffix(l.Link, "&redirect_to=https://other.example.org/page") {
		t.Errorf("link %s", l.Link)
	}
}

func TestSignup_refusals(t *testing.T) {
	a := open(t)
	f := func(status int, code, msg string, body any) {
		t.Helper()
		a.do("POST /signup", body).refused(status, code, msg)
	}
	in := func(pairs ...any) map[string]any {
		m := map[string]any{"email": "x@example.org", "password": sesame}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i].(string)] = pairs[i+1]
		}
		return m
	}
	challenge := strings.Repeat("a", 43)
	f(400, "bad_json", "*", "")
	f(400, "bad_json", "*", `{"email":5}`)
	f(400, "validation_failed", "Signup requires a valid password", in("password", ""))
	f(400, "validation_failed", "Password cannot be longer than 72 characters", in("password", strings.Repeat("x", 73)))
	f(422, "weak_password", "Password should be at least 6 characters.", in("password", "x"))
	f(400, "validation_failed", "Only an email address or phone number should be provided on signup.",
		in("phone", "4915112345678"))
	f(400, "validation_failed", "Unable to validate email address: invalid format", in("email", "x"))
	f(400, "validation_failed", "An email address is too long", in("email", strings.Repeat("x", 250)+"@example.org"))
	f(400, "validation_failed", "Invalid phone number format (E.164 required)", in("email", "", "phone", "x"))
	f(400, "validation_failed", "Invalid channel*", in("email", "", "phone", "4915112345678", "channel", "pigeon"))
	f(400, "validation_failed", "PKCE not supported for phone signups",
		in("email", "", "phone", "4915112345678", "code_challenge", challenge, "code_challenge_method", "s256"))
	f(400, "validation_failed", "PKCE flow requires code_challenge_method and code_challenge",
		in("code_challenge", challenge))
	f(400, "validation_failed", "code challenge has to be between 43 and 128 characters",
		in("code_challenge", "a", "code_challenge_method", "s256"))
	f(400, "validation_failed", "code challenge can only contain*",
		in("code_challenge", challenge+"!", "code_challenge_method", "s256"))
	f(400, "validation_failed", "*", in("code_challenge", challenge, "code_challenge_method", "s512"))

	a.do("POST /signup", in("password", "x")).is(422,
		`{"code":422,"error_code":"weak_password","msg":"Password should be at least 6 characters.","weak_password":{"reasons":["length"]}}`)
	a.do("POST /signup", in("password", "x"), header{"X-Supabase-Api-Version", "2024-01-01"}).is(422,
		`{"code":"weak_password","message":"Password should be at least 6 characters.","weak_password":{"reasons":["length"]}}`)

	a.do("POST /signup", in(), header{"X-JWT-AUD", "chosen-by-me"}).refused(400, "validation_failed", "*audience*")
	a.do("POST /signup", in("email", "aud@example.org"), header{"X-JWT-AUD", "authenticated"}).is(200, "*")

	a.apply(func(s *flow.Settings, _ *Settings) {
		s.Email.Enabled, s.Phone.Enabled, s.Anonymous = false, false, false
	})
	f(400, "email_provider_disabled", "Email signups are disabled", in())
	f(400, "phone_provider_disabled", "Phone signups are disabled", in("email", "", "phone", "4915112345678"))
	f(422, "anonymous_provider_disabled", "Anonymous sign-ins are disabled", in("email", ""))
	a.apply(func(s *flow.Settings, _ *Settings) { s.DisableSignup, s.Anonymous = true, true })
	f(422, "signup_disabled", "Signups not allowed for this instance", in())
	f(422, "signup_disabled", "Signups not allowed for this instance", map[string]any{})
}

func TestSignup_autoconfirm(t *testing.T) {
	a := open(t, func(s *flow.Settings, _ *Settings) { s.Email.Autoconfirm, s.Phone.Autoconfirm = true, true })
	f := func(who map[string]any) {
		t.Helper()
		who["password"] = sesame
		var g grantJSON
		got := a.do("POST /signup", who).json(&g)
		got.is(200,
			`{"access_token":"*","token_type":"bearer","expires_in":3600,"expires_at":*,"refresh_token":"*","user":{*}}`)
		if g.ExpiresAt != a.clock().Add(time.Hour).Unix() || g.User.ConfirmedAt == "" {
			t.Errorf("session %+v", g)
		}
		a.do("GET /user", nil, bearer(g.AccessToken)).is(200, "*")
		a.do("POST /signup", who).is(400,
			`{"code":400,"error_code":"user_already_exists","msg":"User already registered"}`)
	}
	f(map[string]any{"email": "mia@example.org"})
	f(map[string]any{"phone": "+49 151 12345678"})
}

func TestSignup_anonymous(t *testing.T) {
	a := open(t)
	var g grantJSON
	a.do("POST /signup", map[string]any{"data": map[string]any{"theme": "dark"}, "password": "ignored"}).json(&g)
	if u := g.User; !u.IsAnonymous || u.Email != "" || u.Phone != "" || len(u.Identities) != 0 ||
		len(u.AppMetadata) != 0 || u.UserMetadata["theme"] != "dark" {
		t.Errorf("user %+v", u)
	}
	if claims := claimsOf(t, g.AccessToken); claims["is_anonymous"] != true {
		t.Errorf("claims %v", claims)
	}
}

// An address that is taken, pending or free: the answer doesn't show which.
func TestSignup_doesNotReveal(t *testing.T) {
	a := open(t)
	a.member("known@example.org")
	a.do("POST /signup", map[string]any{"email": "pending@example.org", "password": sesame}).is(200, "*")
	a.pass(time.Hour)
	shape := func(email string) (keys []string, headers []string) {
		t.Helper()
		got := a.do("POST /signup", map[string]any{"email": email, "password": "another one 2",
			"data": map[string]any{"a": 1}})
		var u map[string]any
		got.json(&u)
		if i := u["identities"].([]any); len(i) != 1 || i[0].(map[string]any)["id"] != u["id"] {
			t.Errorf("%s: identities %v", email, i)
		}
		if len(got.body) != len(a.do("POST /signup",
			map[string]any{"email": email, "password": "another one 2", "data": map[string]any{"a": 1}}).body) {
			t.Errorf("%s: the second answer is of another length", email)
		}
		for key, v := range u {
			keys = append(keys, fmt.Sprintf("%s %T", key, v))
		}
		slices.Sort(keys)
		return keys, slices.Sorted(maps.Keys(got.Header))
	}
	keys, headers := shape("fresh@example.org")
	for _, email := range []string{"known@example.org", "pending@example.org"} {
		k, h := shape(email)
		if d := cmp.Diff(keys, k); d != "" {
			t.Errorf("%s differs from a fresh one:\n%s", email, d)
		}
		if d := cmp.Diff(headers, h); d != "" {
			t.Errorf("%s differs from a fresh one in headers:\n%s", email, d)
		}
	}
}

package httpapi

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
)

func TestVerify(t *testing.T) {
	a := open(t)
	post := func(pairs ...string) answer {
		t.Helper()
		in := map[string]any{"gotrue_meta_security": map[string]any{}, "options": map[string]any{"redirectTo": "x"}}
		for i := 0; i < len(pairs); i += 2 {
			in[pairs[i]] = pairs[i+1]
		}
		return a.do("POST /verify", in)
	}
	post().refused(400, "validation_failed", "Verify requires a verification type")
	post("type", "signup").refused(400, "validation_failed", "Verify requires either a token or a token hash")
	post("type", "signup", "token", "1", "token_hash", "2").refused(400, "validation_failed",
		"Verify requires either a token or a token hash")
	post("type", "sms", "token", "123456", "phone", "x").refused(400, "validation_failed",
		"Invalid phone number format (E.164 required)")
	post("type", "signup", "token", "123456", "email", "x").refused(422, "validation_failed", "Invalid email format")
	post("type", "signup", "token", "123456", "email", "a@b", "phone", "4915112345678").refused(400,
		"validation_failed", "Only an email address or phone number should be provided on verify")
	post("type", "signup", "token_hash", "x", "email", "a@b").refused(400, "validation_failed",
		"Only the token_hash and type should be provided")
	post("type", "signup", "token_hash", "x", "redirect_to", "a@b").refused(400, "validation_failed",
		"Only the token_hash and type should be provided")
	post("type", "nonsense", "token_hash", strings.Repeat("0", 64)).refused(400, "validation_failed",
		"Invalid email verification type")
	post("type", "signup", "token_hash", strings.Repeat("0", 64)).refused(403, "otp_expired",
		"Email link is invalid or has expired")
	post("type", "signup", "token", "123456", "email", "nobody@example.org").refused(403, "otp_expired",
		"Token has expired or is invalid")
	post("type", "sms", "token", "123456", "phone", "4915112345678").refused(403, "otp_expired",
		"Token has expired or is invalid")

	// Digits, once; the session says what was verified.
	a.do("POST /signup", map[string]any{"email": "mia@example.org", "password": sesame}).is(200, "*")
	l := a.newest("mia@example.org")
	var g grantJSON
	post("type", "email", "token", l.Code, "email", "Mia@example.org").json(&g)
	if g.Type != "signup" || g.User.ConfirmedAt == "" || g.User.UserMetadata["email_verified"] != true {
		t.Errorf("session %+v", g)
	}
	post("type", "signup", "token", l.Code, "email", "mia@example.org").refused(403, "otp_expired", "*")
	post("type", "signup", "token_hash", l.Hash).refused(403, "otp_expired", "*")

	// A token without an address is the link's.
	a.pass(time.Hour)
	a.do("POST /recover", map[string]any{"email": "mia@example.org"}).is(200, "{}")
	l = a.newest("mia@example.org")
	post("type", "magiclink", "token_hash", l.Hash).refused(403, "otp_expired", "*")
	post("type", "recovery", "token", l.Hash).json(&g)
	if g.Type != "recovery" {
		t.Errorf("type %q", g.Type)
	}

	// Five wrong guesses void the digits, not the link.
	a.pass(time.Hour)
	a.do("POST /recover", map[string]any{"email": "mia@example.org"}).is(200, "{}")
	l = a.newest("mia@example.org")
	wrong := "000000"
	if l.Code == wrong {
		wrong = "000001"
	}
	for range 5 {
		post("type", "recovery", "token", wrong, "email", "mia@example.org").refused(403, "otp_expired", "*")
	}
	post("type", "recovery", "token", l.Code, "email", "mia@example.org").refused(403, "otp_expired", "*")
	post("type", "recovery", "token_hash", l.Hash).json(&g)

	a.pass(time.Hour)
	a.do("POST /recover", map[string]any{"email": "mia@example.org"}).is(200, "{}")
	a.do("PUT /admin/users/"+g.User.ID, map[string]any{"ban_duration": "1h"}, a.service()).is(200, "*")
	post("type", "recovery", "token_hash", a.newest("mia@example.org").Hash).refused(403, "user_banned",
		"User is banned")

	// By phone.
	a.do("POST /signup", map[string]any{"phone": "4915112345678", "password": sesame}).is(200, "*")
	post("type", "sms", "token", a.newest("4915112345678").Code, "phone", "+49 151 12345678").json(&g)
	if g.Type != "sms" || g.User.Phone != "4915112345678" {
		t.Errorf("session %+v", g)
	}
}

func TestVerify_emailChange(t *testing.T) {
	a := open(t)
	g := a.member("old@example.org")
	a.do("PUT /user", map[string]any{"email": "new@example.org"}, bearer(g.AccessToken)).is(200, "*")
	half := `{"code":"200","msg":"Confirmation link accepted. Please proceed to confirm link sent to the other email"}`
	old, fresh := a.newest("old@example.org"), a.newest("new@example.org")
	a.do("POST /verify", map[string]any{"type": "email_change", "token_hash": old.Hash}).is(200, half)
	a.do("POST /verify", map[string]any{"type": "email_change", "token_hash": old.Hash}).refused(403,
		"otp_expired", "*")
	var h grantJSON
	a.do("POST /verify",
		map[string]any{"type": "email_change", "token": fresh.Code, "email": "new@example.org"}).json(&h)
	if h.User.Email != "new@example.org" || h.User.NewEmail != "" || h.Type != "email_change" {
		t.Errorf("%+v", h)
	}

	// The same by links: the first half is a message in the fragment.
	a.pass(time.Hour / 2)
	a.do("PUT /user", map[string]any{"email": "third@example.org"}, bearer(h.AccessToken)).is(200, "*")
	got := a.do("GET /verify?type=email_change&token="+a.newest("third@example.org").Hash, nil).is(303, "*")
	want := siteURL + "#message=Confirmation+link+accepted.+Please+proceed+to+confirm+link+sent+to+the+other+email&sb="
	if to := got.Header.Get("Location"); to != want {
		t.Errorf("Location %q", to)
	}
	got = a.do("GET /verify?type=email_change&token="+a.newest("new@example.org").Hash, nil).is(303, "*")
	if to := got.Header.Get("Location"); !like(to, siteURL+"#access_token=*&type=email_change") {
		t.Errorf("Location %q", to)
	}

	// Another user took the address meanwhile.
	a.pass(time.Hour)
	g = a.member("fourth@example.org")
	a.do("PUT /user", map[string]any{"email": "wanted@example.org"}, bearer(g.AccessToken)).is(200, "*")
	link := a.newest("wanted@example.org")
	a.do("POST /admin/users", map[string]any{"email": "wanted@example.org", "email_confirm": true},
		a.service()).is(200, "*")
	a.do("POST /verify",
		map[string]any{"type": "email_change", "token_hash": a.newest("fourth@example.org").Hash}).is(200, half)
	a.do("POST /verify", map[string]any{"type": "email_change", "token_hash": link.Hash}).refused(422,
		"email_exists", "*")
}

// The link that is sent again while sign-ups are contested signs in, and says recovery, so that applications ask for a
// password.
func TestGetVerify_contested(t *testing.T) {
	a := open(t)
	for _, pass := range []string{sesame, "another one 2"} {
		a.do("POST /signup", map[string]any{"email": "mia@example.org", "password": pass}).is(200, "*")
		a.pass(time.Second)
	}
	a.do("POST /resend", map[string]any{"type": "signup", "email": "mia@example.org"}).is(200, "*")
	where := a.do("GET /verify?type=signup&token="+a.newest("mia@example.org").Hash, nil).is(303, "*").
		Header.Get("Location")
	if !strings.Contains(where, "access_token=") || !strings.Contains(where, "&type=recovery") {
		t.Errorf("leads to %s, want a session of type recovery", where)
	}
}

func TestGetVerify(t *testing.T) {
	a := open(t)
	a.do("GET /verify", nil).refused(400, "validation_failed", "Verify requires a verification type")
	a.do("GET /verify?type=signup", nil).refused(400, "validation_failed", "Verify requires a token or a token hash")
	where := func(query string, headers ...header) string {
		t.Helper()
		got := a.do("GET /verify?"+query, nil, headers...).is(303, "*")
		if got.Header.Get("Cache-Control") != "no-store" || got.Header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("headers %v", got.Header)
		}
		return got.Header.Get("Location")
	}
	expired := "#error=access_denied&error_code=otp_expired&error_description=Email+link+is+invalid+or+has+expired&sb="
	f := func(query, want string, headers ...header) {
		t.Helper()
		if to := where(query, headers...); to != want {
			t.Errorf("%s\nleads to %q, want\n         %q", query, to, want)
		}
	}
	dead := "type=signup&token=" + strings.Repeat("0", 64)
	f(dead, siteURL+expired)
	f(dead+"&redirect_to=https%3A%2F%2Fother.example.org%2Fa%3Fb%3Dc%23d", "https://other.example.org/a?b=c"+expired)
	f(dead+"&redirect_to=https%3A%2F%2Fevil.example%2F", siteURL+expired)
	f(dead+"&redirect_to=https%3A%2F%2Fevil.example%2F", "https://other.example.org/ref"+expired,
		header{"Referer", "https://other.example.org/ref"})
	f(dead, siteURL+expired, header{"Redirect_to", "https://other.example.org/"})
	f(dead+"&redirect_to=https%3A%2F%2Fother.example.org%2F%C3%A4%20b", "https://other.example.org/%C3%A4%20b"+expired)
	f(dead+"&redirect_to=https%3A%2F%2Fother.example.org%2F%0D%0ASet-Cookie:x", siteURL+expired)
	f(dead+"&redirect_to=myapp%3A%2F%2Fcallback", "myapp://callback"+expired)
	f("type=signup&token=x%00", siteURL+expired)
	f("type=sms&token=1",
		siteURL+
			"#error=invalid_request&error_code=validation_failed&error_description=Invalid+email+verification+type&sb=")
	pkce := strings.TrimPrefix(expired[:len(expired)-len("&sb=")], "#")
	f("type=signup&token=pkce_"+strings.Repeat("0", 64), siteURL+"?"+pkce+expired)
	f("type=email&token=pkce_"+strings.Repeat("0", 64)+"&redirect_to=https%3A%2F%2Fother.example.org%2Fa%3Fb%3Dc",
		"https://other.example.org/a?b=c&"+pkce+expired)

	a.do("POST /signup", map[string]any{"email": "mia@example.org", "password": sesame}).is(200, "*")
	hash := a.newest("mia@example.org").Hash
	// A request that only inspects consumes nothing.
	for _, h := range []header{{"Purpose", "prefetch"}, {"X-Purpose", "preview"}, {"Sec-Purpose", "prefetch;prerender"},
		{"Sec-Purpose", "Prefetch"}, {"X-Moz", "prefetch"}} {
		got := a.do("GET /verify?type=signup&token="+hash, nil, h).is(204, "")
		if got.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("headers %v", got.Header)
		}
	}
	a.do("HEAD /verify?type=signup&token="+hash, nil).is(204, "")
	to := where("type=signup&token=" + hash + "&redirect_to=https%3A%2F%2Fother.example.org%2Fa%23b")
	base, fragment, _ := strings.Cut(to, "#")
	v, err := url.ParseQuery(fragment)
	if err != nil || base != "https://other.example.org/a" ||
		!like(fragment,
			"access_token=*&expires_at=*&expires_in=3600&refresh_token=*&sb=&token_type=bearer&type=signup") {
		t.Errorf("Location %q", to)
	}
	a.do("GET /user", nil, bearer(v.Get("access_token"))).is(200, "*")
	a.do("POST /token?grant_type=refresh_token", map[string]any{"refresh_token": v.Get("refresh_token")}).is(200, "*")
	f("type=signup&token="+hash, siteURL+expired)

	a.apply(func(s *flow.Settings, _ *Settings) { s.Email.OTPLife = time.Minute })
	a.pass(time.Hour)
	a.do("POST /recover", map[string]any{"email": "mia@example.org"}).is(200, "{}")
	hash = a.newest("mia@example.org").Hash
	a.db.Close()
	if to := where("type=recovery&token=" + hash); !like(to,
		siteURL+"#error=temporarily_unavailable&error_code=unexpected_failure&error_description=*&sb=") {
		t.Errorf("without a database: %q", to)
	}
}

func TestRedirectTargets(t *testing.T) {
	f := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	f(withQuery("https://a.test", url.Values{"code": {"x y"}}), "https://a.test?code=x+y")
	f(withQuery("https://a.test/?code=old&z=1&a=2#f", url.Values{"code": {"new"}}),
		"https://a.test/?a=2&code=new&z=1#f")
	f(withQuery("https://a.test/?#f?g", url.Values{"code": {"1"}}), "https://a.test/?code=1#f?g")
	f(withQuery("myapp://cb", url.Values{"code": {"1"}}), "myapp://cb?code=1")
	f(withFragment("https://a.test/#x#y", url.Values{"k": {"a:b c"}}), "https://a.test/#k=a%3Ab+c")
	f(failed("https://a.test/", newProblem(429, "over", ""), false),
		"https://a.test/#error_code=over&error_description=over&sb=")
	f(encodeHeader("https://a.test/ä b\r\n"), "https://a.test/%C3%A4%20b%0D%0A")
}

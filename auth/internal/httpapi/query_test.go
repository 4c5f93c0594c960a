package httpapi

import (
	"net/url"
	"strings"
	"testing"
)

// No parameter vanishes silently: a query that package url reads in part only is refused.
func TestQuery_malformed(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	me := bearer(g.AccessToken)
	const msg = "The query cannot be parsed: *"
	for _, query := range []string{"scope=loc;al", "scope=local&x=%zz", "scope=local&x=%", "%=1&scope=local"} {
		a.do("POST /logout?"+query, nil, me).refused(400, "validation_failed", msg)
	}
	a.do("GET /user", nil, me).is(200, "*") // no user was signed out
	a.do("GET /user?x=a;b", nil, me).refused(400, "validation_failed", msg)
	a.do("GET /admin/users?page=1';--", nil, a.service()).refused(400, "validation_failed", msg)
	a.do("POST /token?grant_type=password;", map[string]any{}).refused(400, "validation_failed", msg)
	a.do("GET /authorize?provider=github;", nil).refused(400, "validation_failed", msg)
	a.do("POST /signup?redirect_to=%zz", map[string]any{"email": "tom@example.org", "password": sesame}).refused(400,
		"validation_failed", msg)

	got := a.do("GET /verify?type=signup&token=x&redirect_to=https://app.example.org/a;b", nil)
	to, _ := url.Parse(got.Header.Get("Location"))
	if v, _ := url.ParseQuery(to.Fragment); got.StatusCode != 303 || v.Get("error_code") != "validation_failed" ||
		v.Get("error") != "invalid_request" {
		t.Errorf("GET /verify: %d %s", got.StatusCode, to)
	}
	for _, method := range []string{"GET", "POST"} { // what a provider adds breaks nothing
		if got := a.do(method+" /callback?hd=a;b", nil); got.StatusCode != 303 ||
			got.Header.Get("X-Sb-Error-Code") != "bad_oauth_callback" {
			t.Errorf("%s /callback: %d %s", method, got.StatusCode, got.Header)
		}
	}
	a.do("GET /health?a;b", nil).is(200, "*")
	a.do("GET /authorize?provider=git%00hub", nil).refused(400, "validation_failed", "provider contains a NUL byte")
	a.do("GET /user/identities/authorize?provider=github%00", nil, me).refused(400, "validation_failed",
		"provider contains a NUL byte")
}

// A filter that is misspelled would list everybody.
func TestQuery_adminUsers(t *testing.T) {
	a := open(t)
	users := func(query string) answer { t.Helper(); return a.do("GET /admin/users?"+query, nil, a.service()) }
	users("emial=mia@example.org&aud=x").refused(400, "validation_failed",
		`Unknown query parameters: "aud", "emial"; known are page, per_page, limit, cursor, sort, filter, email, phone, id`)
	users(strings.Repeat("x", 100)+"=1").refused(400, "validation_failed", "Unknown query parameters: *")
	users("page=&per_page=&apikey=k&_=17&_cache=no").is(200, "*")
	users("email=mia@example.org&sort=created_at").is(200, "*")
}

// A redirect_to that is refused is logged with the reason, and cannot flood the log.
func TestRefusedTargets(t *testing.T) {
	a := open(t)
	ask := func(redirectTo string) {
		t.Helper()
		a.do("POST /recover?redirect_to="+url.QueryEscape(redirectTo),
			map[string]any{"email": "nobody@example.org"}).is(200, "*")
	}
	lines := func() int { return strings.Count(a.log.String(), "redirect_to is refused") }
	ask("https://app.example.org/allowed")
	if n := lines(); n != 0 {
		t.Errorf("%d lines about an allowed target", n)
	}
	ask("https://evil.test/\r\n\"x\"")
	ask("https://evil.test/\r\n\"x\"")
	if text := a.log.String(); lines() != 1 || !strings.Contains(text, `https://evil.test/\\r\\n`) ||
		!strings.Contains(text, "control character") {
		t.Errorf("%d lines: %s", lines(), text)
	}
	long := "https://evil.test/" + strings.Repeat("y", 1000)
	ask(long)
	if text := a.log.String(); strings.Contains(text, long[:201]) || !strings.Contains(text, long[:200]) {
		t.Error("a long value is not cut at 200 bytes")
	}
	for n := range 20 {
		ask("https://evil.test/" + strings.Repeat("z", n))
	}
	if n := lines(); n != 10 {
		t.Errorf("%d lines in a minute, want 10", n)
	}
	a.pass(refusedEvery)
	ask(long)
	if n := lines(); n != 11 {
		t.Errorf("%d lines, want another one a minute later", n)
	}
	a.do("POST /recover", map[string]any{"email": "nobody@example.org"},
		header{"Referer", "https://search.test/"}).is(200, "*")
	if strings.Contains(a.log.String(), "search.test") {
		t.Error("a Referer is logged, which asks for nothing")
	}
}

// Above 2,048 bytes a redirect_to counts as refused: states of unknown clients stay small.
func TestAuthorize_longTarget(t *testing.T) {
	a := openAbroad(t)
	target := func(n int) string {
		const begin = "https://app.example.org/"
		return begin + strings.Repeat("x", n-len(begin))
	}
	for n, want := range map[int]string{2048: target(2048), 2049: siteURL} {
		if to := a.signIn("provider=github&redirect_to=" + target(n)).to; to != want {
			t.Errorf("of %d bytes: the browser ends at %d bytes, %.40s", n, len(to), to)
		}
	}
}

// No answer is taken for another type than it says, errors of ServeMux and preflights included.
func TestNoSniff(t *testing.T) {
	a := open(t)
	for _, what := range []string{"GET /health", "GET /nowhere", "DELETE /health", "GET /user",
		"GET /verify?type=signup&token=x", "OPTIONS /user", "GET /.well-known/jwks.json", "POST /callback"} {
		if got := a.do(what, nil, header{"Origin", "https://a.test"},
			header{"Access-Control-Request-Method", "GET"}); got.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", what, got.Header)
		}
	}
}

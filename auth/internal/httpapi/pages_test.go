package httpapi

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/pages"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

var formType = header{"Content-Type", "application/x-www-form-urlencoded"}

// TestConfirmPage: what opens a link uses nothing up; the page's form does, once.
func TestConfirmPage(t *testing.T) {
	db, trips := storetest.Counting(t)
	a := openOn(t, db, func(_ *flow.Settings, s *Settings) { s.ConfirmPage, s.LimitByPeer = true, true })
	a.do("POST /signup", map[string]any{"email": "mia@example.org", "password": sesame}).is(200, "*")
	hash := a.newest("mia@example.org").Hash
	link := "/verify?token=" + hash + "&type=signup&redirect_to=" + url.QueryEscape("myapp://callback")
	look := func() { // far oftener than the limit of /verify
		await.Together(100, func(int) {
			got := a.do("GET "+link, nil, header{"Accept", "application/json"}).is(200, "<!DOCTYPE html>*")
			if strings.Contains(got.body, "mia@") {
				t.Error("the page names the address")
			}
			a.do("HEAD "+link, nil).is(204, "")
			a.do("GET "+link, nil, header{"Sec-Purpose", "prefetch"}).is(204, "")
		})
	}
	if n := trips.During(look); n != 0 {
		t.Errorf("%d round trips for pages", n)
	}
	got := a.do("GET "+link, nil)
	for name, want := range map[string]string{"Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
		"X-Robots-Tag": "noindex", "Content-Language": "en", "Content-Type": "text/html; charset=utf-8"} {
		if got.Header.Get(name) != want {
			t.Errorf("%s: %s", name, got.Header.Get(name))
		}
	}
	form := formOf(got.body)
	if got.Header.Get("X-Frame-Options") != "" || form.Get("redirect_to") != "myapp://callback" ||
		!strings.Contains(got.body, `action="verify/confirm"`) || len(got.body) > 8<<10 {
		t.Errorf("%v in %s", form, got.body)
	}
	if slash := a.do("GET "+strings.Replace(link, "?", "/?", 1), nil); !strings.Contains(slash.body, `action="confirm"`) {
		t.Error(slash.body)
	}
	a.do("POST /verify/confirm", form.Encode(), formType).is(303, "*").leads(t, "myapp://callback#access_token=")
	a.do("POST /verify/confirm", form.Encode(), formType).is(303, "*").leads(t, "myapp://callback#error=access_denied")
	form.Set("redirect_to", "https://evil.example.net/")
	a.do("POST /verify/confirm/", form.Encode(), formType).is(303, "*").leads(t, siteURL+"#error=access_denied")
	a.do("POST /verify/confirm", "{}").refused(400, "validation_failed", "The body must be a form*")
	a.do("POST /verify/confirm", strings.Repeat("a", mostForm+1), formType).refused(400, "validation_failed", "*16 KiB*")
	a.do("POST /verify/confirm", "token=%", formType).refused(400, "validation_failed", "*parsed*")
	a.do("POST /verify/confirm", "token=x", formType).refused(400, "validation_failed", "*type")
	for range 30 {
		a.do("POST /verify/confirm", "", formType)
	}
	a.do("POST /verify/confirm", "", formType).refused(429, "over_request_rate_limit", "*")
	form.Set("redirect_to", "https://other.example.org/welcome")
	a.do("POST /verify/confirm", form.Encode(), formType, header{"Accept", "text/html"}).
		is(429, `*href="https://other.example.org/welcome"*`)
	if strings.Contains(a.log.String(), hash) {
		t.Error("the log has the token")
	}
	a.apply(func(_ *flow.Settings, s *Settings) { s.ConfirmPage = false })
	a.do("POST /verify/confirm", form.Encode(), formType).refused(404, "not_found", "There is nothing at this path")
}

// leads checks where a redirect leads to.
func (a answer) leads(t *testing.T, to string) {
	t.Helper()
	if at := a.Header.Get("Location"); !strings.HasPrefix(at, to) {
		t.Errorf("leads to %s, want %s", at, to)
	}
}

var hidden = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// formOf are the hidden fields of a page.
func formOf(page string) url.Values {
	form := url.Values{}
	for _, m := range hidden.FindAllStringSubmatch(page, -1) {
		form.Set(m[1], strings.NewReplacer("&amp;", "&", "&#43;", "+").Replace(m[2]))
	}
	return form
}

// TestConfirmPage_types: each type of a link has its page, and other requests are answered as without pages.
func TestConfirmPage_types(t *testing.T) {
	srv := offline(t)
	set := srv.live.Load().Settings
	languages, err := locale.New([]string{"en", "de", "fr", "es"}, nil)
	must.Succeed(t, err)
	set.ConfirmPage, set.Look = true, pages.NewLook(mail.Site{Name: "Acme <b>", Color: "#fc0",
		LogoURL: "https://cdn.example.org/l.png", Support: "help@example.org"}, languages)
	srv.Apply(set)
	f := func(query, language string, holds ...string) {
		t.Helper()
		w := get(srv, "/verify?"+query, header{"Accept-Language", language})
		for _, text := range holds {
			if w.Code != 200 || !strings.Contains(w.Body.String(), text) {
				t.Errorf("%s %s: %d, no %q in %s", query, language, w.Code, text, w.Body)
			}
		}
		if csp := w.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "img-src https://cdn.example.org;") ||
			strings.Contains(csp, "unsafe") || strings.Contains(csp, "form-action") {
			t.Error(csp)
		}
	}
	f("token=x&type=signup", "en", "<h1>Confirm your email address</h1>", "<button>Confirm my address</button>",
		"<title>Confirm your email address - Acme &lt;b&gt;</title>", `href="mailto:help@example.org"`)
	f("token=x&type=invite", "de-AT", `<html lang="de"`, "Sie wurden", "Noch ein Schritt")
	f("token=x&type=recovery", "fr", "Choisir un nouveau mot de passe")
	f("token=x&type=magiclink", "es", "<button>Iniciar sesión</button>")
	f("token=x&type=email", "", "<button>Sign in</button>")
	f("token=x&type=email_change", "", "<h1>Confirm the change of your email address</h1>")
	f("token=pkce_x&type=recovery", "", "Open the link in the browser where you asked for it.")
	f("token=%22%3E%3Cscript%3E&type=signup&redirect_to=javascript:alert(1)", "", `value="&#34;&gt;&lt;script&gt;"`,
		`name="redirect_to" value="`+siteURL+`"`)
	for _, query := range []string{"token=x", "type=signup", ""} {
		if w := get(srv, "/verify?"+query); w.Code != 400 {
			t.Errorf("%s: %d", query, w.Code)
		}
	}
	if w := get(srv, "/verify?token=x&type=signup&a=%"); w.Code != 303 {
		t.Errorf("a bad query: %d", w.Code)
	}
}

func get(srv *Server, target string, headers ...header) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	for _, h := range headers {
		r.Header.Add(h.name, h.value)
	}
	w := httptest.NewRecorder()
	srv.ServeHTTP(w, r)
	return w
}

func TestPrefersHTML(t *testing.T) {
	f := func(want bool, accept ...string) {
		t.Helper()
		if prefersHTML(accept) != want {
			t.Errorf("%q: %v", accept, !want)
		}
	}
	f(false)
	f(false, "")
	f(false, "*/*")
	f(false, "text/*")
	f(true, "text/html")
	f(true, "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8")
	f(true, "application/json;q=0.9", "TEXT/HTML")
	f(false, "text/html, application/json")
	f(false, "text/html;q=0")
	f(true, "text/html;q=0.001")
	f(false, "text/html;q=0.5, application/json")
	f(true, "text/html;level=1;Q=0.5, application/json;q=0.4")
	f(false, "text/html;q=x", "text/html;q=NaN", "text/html;q=2")
}

// TestErrorPage: browsers get a page where programs get JSON, with the same status and headers.
func TestErrorPage(t *testing.T) {
	a := open(t, func(_ *flow.Settings, s *Settings) { s.LimitByPeer, s.ConfirmPage = true, true })
	browser := header{"Accept", "text/html,*/*;q=0.8"}
	f := func(what string, status int, code, sentence string, headers ...header) {
		t.Helper()
		program := a.do(what, nil, headers...)
		if program.StatusCode != status || program.Header.Get("Content-Type") != "application/json" ||
			program.Header.Get("X-Sb-Error-Code") != code || program.Header.Get("Vary") != "Origin" {
			t.Errorf("%s: %d %s %v", what, program.StatusCode, program.body, program.Header)
		}
		got := a.do(what, nil, append(headers, browser)...)
		if got.StatusCode != status || got.Header.Get("X-Sb-Error-Code") != code ||
			(got.Header.Get("Retry-After") == "") != (program.Header.Get("Retry-After") == "") ||
			!strings.Contains(got.body, sentence) || !strings.Contains(got.body, "Error "+code+", request ") ||
			!strings.Contains(strings.Join(got.Header.Values("Vary"), ", "), "Accept, Accept-Language") {
			t.Errorf("%s: %d %s %v", what, got.StatusCode, got.body, got.Header)
		}
		if strings.Contains(got.body, "evil") {
			t.Errorf("%s repeats a parameter: %s", what, got.body)
		}
	}
	const incomplete = "This sign-in link is incomplete, or this way of signing in isn&#39;t available."
	f("GET /authorize?provider=evil", 400, "validation_failed", incomplete)
	f("GET /verify", 400, "validation_failed", "Go back and try another way.")
	f("POST /verify/confirm", 400, "validation_failed", incomplete)
	f("GET /verify?redirect_to="+url.QueryEscape("https://evil.example.net/"), 400, "validation_failed",
		`href="`+siteURL+`"`, header{"Referer", "https://evil.example.net/"})
	if got := a.do("GET /verify?redirect_to="+url.QueryEscape("https://other.example.org/x"), nil,
		browser); !strings.Contains(got.body, `href="https://other.example.org/x"`) {
		t.Error(got.body)
	}
	if got := a.do("GET /verify?redirect_to=myapp://callback", nil, browser); !strings.Contains(got.body, `href="`+siteURL+`"`) {
		t.Error(got.body)
	}
	if got := a.do("POST /token", nil, browser); got.Header.Get("Content-Type") != "application/json" {
		t.Errorf("an API route: %v", got.Header)
	}
	for _, what := range []string{"GET /callback", "POST /callback", "GET /authorize", "GET /verify?type=signup&token"} {
		for range 31 {
			a.do(what, nil)
		}
		f(what, 429, "over_request_rate_limit", "Too many attempts.")
	}
	if got := a.do("GET /authorize", nil, browser); !strings.Contains(got.body, "Try again in 1 minute.") {
		t.Error(got.body)
	}
}

// TestPrefix: a request below AUTH_API_PREFIX is served as if the prefix were not there, in one spelling.
func TestPrefix(t *testing.T) {
	srv := offline(t)
	f := func(target string, status int, holds string) {
		t.Helper()
		if w := get(srv, target); w.Code != status || !strings.Contains(w.Body.String(), holds) {
			t.Errorf("%s: %d %s, want %d %s", target, w.Code, w.Body, status, holds)
		}
	}
	f("/auth/v1/health", 404, "set AUTH_API_PREFIX=/auth/v1, or have the proxy strip it")
	f("/", 404, "/openapi.json")
	f("/nothing", 404, `"There is nothing at this path"`)
	set := srv.live.Load().Settings
	set.Prefix = "/auth/v1"
	srv.Apply(set)
	for _, target := range []string{"/health", "/auth/v1/health", "/auth/v1/health/", "/health/"} {
		f(target, 200, "Gatehouse")
	}
	f("/auth/v1/user/sessions", 401, "no_authorization")
	f("/auth/v1/admin/users/a%2Fb", 401, "no_authorization")
	for _, target := range []string{"/auth/v1/auth/v1/health", "//auth/v1/health", "/auth%2Fv1/health", "/%61uth/v1/health",
		"/auth/v1", "/auth/v1/", "/auth/v1//health", "/auth/v1x/health", "/AUTH/v1/health", "/auth/v1/../health",
		"/x/auth/v1/health", "/%61uth/v1/admin/users/a%2Fb"} {
		f(target, 404, "not_found")
	}
	f("/auth/v1/", 404, "/openapi.json")
	r := httptest.NewRequest(http.MethodOptions, "/auth/v1/user", nil)
	r.Header.Set("Origin", "https://app.example.org")
	r.Header.Set("Access-Control-Request-Method", "GET")
	w := httptest.NewRecorder()
	srv.ServeHTTP(w, r)
	if w.Code != 204 || w.Header().Get("Access-Control-Allow-Origin") != "*" {
		t.Errorf("a preflight: %d %v", w.Code, w.Header())
	}
}

func TestCheckPrefix(t *testing.T) {
	for _, good := range []string{"", "/auth/v1", "/a", "/A-b_1/x", "/users"} {
		if err := CheckPrefix(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"/", "auth", "/auth/", "//auth", "/a//b", "/a b", "/ä", "/a%2Fb", "/a.b", "/verify",
		"/user/x", "/" + strings.Repeat("a", 64)} {
		if CheckPrefix(bad) == nil {
			t.Errorf("%q is a prefix", bad)
		}
	}
	for _, route := range served(t) { // no list of patterns can be read from a ServeMux
		_, path, _ := strings.Cut(route, " /")
		if first, _, _ := strings.Cut(path, "/"); !strings.Contains(" "+strings.Join(firstSegments, " ")+" ", " "+first+" ") {
			t.Errorf("firstSegments lacks %s of %s", first, route)
		}
	}
}

func TestDiscovery(t *testing.T) {
	srv := offline(t)
	got := get(srv, "/.well-known/openid-configuration")
	want := `{"issuer":"` + externalURL + `","jwks_uri":"` + externalURL + `/.well-known/jwks.json",` +
		`"id_token_signing_alg_values_supported":["ES256"],"subject_types_supported":["public"]}`
	if got.Code != 200 || got.Body.String() != want || got.Header().Get("Cache-Control") != "public, max-age=600" {
		t.Errorf("%d %s %v", got.Code, got.Body, got.Header())
	}
	etag := header{"If-None-Match", got.Header().Get("Etag")}
	if again := get(srv, "/.well-known/openid-configuration", etag); again.Code != 304 {
		t.Errorf("%d %s", again.Code, again.Body)
	}
	f := func(want string, c token.SetConfig) {
		t.Helper()
		set, err := token.NewSet(c)
		must.Succeed(t, err)
		srv.core.Keys.Store(set)
		if got := get(srv, "/.well-known/openid-configuration", etag); !strings.Contains(got.Body.String(), want) {
			t.Errorf("%d %s, want %s", got.Code, got.Body, want)
		}
	}
	key := func(a token.Algorithm, s token.State) token.Entry {
		k, err := token.Generate(a)
		must.Succeed(t, err)
		return token.Entry{Key: k, State: s}
	}
	old := key(token.ES256, token.Previous)
	f(`["RS256","ES256"]`, token.SetConfig{Keys: []token.Entry{old, key(token.RS256, token.Current),
		key(token.EdDSA, token.Revoked), key(token.ES256, token.Next)}})
	secret, err := token.NewSecret("", []byte("a shared secret of at least 32 bytes"))
	must.Succeed(t, err)
	f(`["HS256"]`, token.SetConfig{Keys: []token.Entry{old}, Secret: secret, AcceptSecret: true, SignWithSecret: true})
}

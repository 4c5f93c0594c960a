package httpapi

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/password"
)

func TestErrors_forms(t *testing.T) {
	a := open(t)
	old := `{"code":401,"error_code":"no_authorization","msg":"This endpoint requires a valid Bearer token"}`
	dated := `{"code":"no_authorization","message":"This endpoint requires a valid Bearer token"}`
	f := func(version, body, echo string) {
		t.Helper()
		got := a.do("GET /user", nil, header{"X-Supabase-Api-Version", version}).is(401, body)
		if e := got.Header.Get("X-Supabase-Api-Version"); e != echo {
			t.Errorf("version %q is echoed as %q, want %q", version, e, echo)
		}
		if got.Header.Get("X-Sb-Error-Code") != "no_authorization" ||
			got.Header.Get("Content-Type") != "application/json" ||
			got.Header.Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("headers %v", got.Header)
		}
	}
	f("", old, "")
	f("2024-01-01", dated, "2024-01-01")
	f("2031-12-31", dated, "2024-01-01")
	f("2023-12-31", old, "")
	f("2024-13-01", old, "")
	f("latest", old, "")
	f("9999", old, "")
	page := a.do("GET /authorize?provider=nope", nil, header{"Accept", "text/html"},
		header{"X-Supabase-Api-Version", "2024-01-01"}).is(400, "<!*")
	if e := page.Header.Get("X-Supabase-Api-Version"); e != "2024-01-01" {
		t.Errorf("a page echoes the version as %q", e)
	}

	// 5xx carry the request's id in the old form, so that it can be found in the log.
	a.db.Close()
	in := map[string]any{"email": "mia@example.org", "password": "x"}
	got := a.do("POST /token?grant_type=password",
		in).is(503, `{"code":503,"error_code":"unexpected_failure","msg":"*","error_id":"*"}`)
	if got.Header.Get("Retry-After") != "1" {
		t.Errorf("headers %v", got.Header)
	}
	a.do("POST /token?grant_type=password", in, header{"X-Supabase-Api-Version", "2024-01-01"}).is(503,
		`{"code":"unexpected_failure","message":"*"}`)
}

func TestErrors_ofTheRouter(t *testing.T) {
	a := open(t)
	a.do("GET /nothing", nil).refused(404, "not_found", "*")
	a.do("GET /", nil).refused(404, "not_found", "*")
	a.do("GET /admin//users", nil).refused(404, "not_found", "*")
	a.do("GET /user/../health", nil).refused(404, "not_found", "*")
	a.do("GET /settings/x", nil, header{"X-Supabase-Api-Version", "2024-01-01"}).is(404,
		`{"code":"not_found","message":"*"}`)
	got := a.do("DELETE /settings", nil).refused(405, "method_not_allowed", "*DELETE*")
	if allow := got.Header.Get("Allow"); allow != "GET, HEAD" {
		t.Errorf("Allow: %q", allow)
	}
	got = a.do("PUT /signup", "{}", header{"X-Supabase-Api-Version", "2024-01-01"}).is(405,
		`{"code":"method_not_allowed",*`)
	if allow := got.Header.Get("Allow"); allow != "POST" {
		t.Errorf("Allow: %q", allow)
	}
	a.do("OPTIONS /settings", nil).refused(405, "method_not_allowed", "*")

	// One slash at the end is tolerated, everywhere.
	a.do("GET /settings/", nil).is(200, "*")
	a.do("POST /signup/", "{").refused(400, "bad_json", "*")
	a.do("GET /admin/users/", nil).refused(401, "no_authorization", "*")
	a.do("GET /settings//", nil).refused(404, "not_found", "*")
	// HEAD is GET without a body.
	a.do("HEAD /settings", nil).is(200, "")
	a.do("HEAD /user", nil).is(401, "")
	a.do("HEAD /nothing", nil).is(404, "")
}

func TestErrors_panicAndTimeout(t *testing.T) {
	a := open(t)
	a.server.mux.Handle("GET /panic", handler(func(*call) error { panic("at the disco") }))
	a.server.mux.Handle("GET /half", handler(func(c *call) error { c.json(200, []byte(`{"a`)); panic("late") }))
	a.server.mux.Handle("GET /abort", handler(func(*call) error { panic(http.ErrAbortHandler) }))
	a.server.mux.Handle("GET /slow", handler(func(c *call) error { <-c.ctx().Done(); return c.ctx().Err() }))
	a.server.mux.Handle("GET /slowdb", handler(func(c *call) error {
		<-c.ctx().Done()
		return &refusal.Refusal{Kind: refusal.KindUnavailable, Code: refusal.CodeUnexpectedFailure, Msg: "away",
			RetryAfter: time.Second}
	}))
	a.server.mux.Handle("GET /slowhash", handler(func(c *call) error {
		<-c.ctx().Done()
		return &refusal.Refusal{Kind: refusal.KindUnavailable, Code: refusal.CodeUnexpectedFailure, Msg: "busy",
			RetryAfter: time.Second, Err: &password.Busy{RetryAfter: time.Second}}
	}))
	a.do("GET /panic", nil).is(500,
		`{"code":500,"error_code":"unexpected_failure","msg":"Internal Server Error","error_id":"*"}`)
	a.do("GET /panic", nil, header{"X-Supabase-Api-Version", "2024-01-01"}).is(500,
		`{"code":"unexpected_failure","message":"Internal Server Error"}`)
	if log := a.log.String(); !strings.Contains(log, "at the disco") || !strings.Contains(log, "error_test.go") {
		t.Errorf("no stack in the log: %s", log)
	}
	for _, path := range []string{"/half", "/abort"} {
		resp, err := a.http.Client().Get(a.http.URL + path)
		if err == nil {
			resp.Body.Close()
			if path == "/abort" {
				t.Errorf("%s: %s", path, resp.Status)
			}
		}
	}

	refresh := a.member("late@example.org").RefreshToken
	a.apply(func(_ *flow.Settings, s *Settings) { s.MaxDuration = 20 * time.Millisecond })
	a.do("GET /slow", nil).is(504,
		`{"code":504,"error_code":"request_timeout","msg":"Processing this request timed out, please retry after a moment.","error_id":"*"}`)
	a.do("GET /slowdb", nil).refused(504, "request_timeout", "*")
	// A request that waited for a hashing worker gets the answer of a full queue.
	a.do("GET /slowhash", nil).refused(503, "unexpected_failure", "busy")
	for _, path := range []string{"GET /slow", "GET /slowdb", "GET /slowhash"} {
		if got := a.do(path, nil).Header.Get("Retry-After"); got != "1" {
			t.Errorf("%s: Retry-After %q", path, got)
		}
	}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for query, in := range map[string]struct {
		body string
		want int
	}{
		"password":      {`{"email": "a@example.org", "password": "a password"}`, 504},
		"refresh_token": {`{"refresh_token": "` + refresh + `"}`, 503},
	} {
		got := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(late, "POST", "/token?grant_type="+query, strings.NewReader(in.body))
		a.server.ServeHTTP(got, r)
		if got.Code != in.want || got.Header().Get("Retry-After") != "1" {
			t.Errorf("%s at the deadline: %d %s, want %d", query, got.Code, got.Body, in.want)
		}
	}
	a.apply(func(_ *flow.Settings, s *Settings) { s.MaxDuration = 0 })
	a.do("GET /settings", nil).is(200, "*")
	a.do("GET /settings/", nil).is(200, "*")
}

// A client that hangs up gets no answer, and causes no alarm: neither an error in the log nor a line for each.
func TestErrors_clientGone(t *testing.T) {
	a := open(t)
	const clients = 20
	arrived, gone := make(chan bool), make(chan int, clients)
	a.server.mux.Handle("GET /wait", handler(func(c *call) error {
		arrived <- true
		<-c.ctx().Done()
		defer func() { gone <- c.problemOf(c.ctx().Err()).status }()
		return c.ctx().Err()
	}))
	for range clients {
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, "GET", a.http.URL+"/wait", nil)
		go func() {
			<-arrived
			cancel()
		}()
		if resp, err := a.http.Client().Do(r); err == nil {
			resp.Body.Close()
			t.Error("an answer came")
		}
		if status := <-gone; status >= 500 {
			t.Errorf("status %d", status)
		}
	}
	a.http.Close() // waits for the handlers
	log := a.log.String()
	if n := strings.Count(log, "error_code=client_gone"); n == 0 || n == clients || strings.Contains(log, "level=ERROR") ||
		!strings.Contains(log, "level=INFO") || !strings.Contains(log, " status=499 ") ||
		!strings.Contains(log, " count=1 ") {
		t.Errorf("%d lines for %d clients: %s", n, clients, log)
	}
}

// The lines about clients that hung up count them all.
func TestHangUps(t *testing.T) {
	var h hangUps
	now := time.Unix(1e9, 0)
	f := func(after time.Duration, want int64) {
		t.Helper()
		now = now.Add(after)
		if n := h.add(now); n != want {
			t.Errorf("%d, want %d", n, want)
		}
	}
	f(0, 1)
	f(time.Millisecond, 0)
	f(time.Millisecond, 0)
	f(time.Second, 3)
	f(time.Second, 1)
}

func TestProblem_oauthForm(t *testing.T) {
	a := open(t)
	a.server.mux.Handle("GET /oauth", handler(func(*call) error {
		return &problem{status: 500, code: "invalid_request", msg: `say "please"`, oauth: true}
	}))
	got := a.do("GET /oauth", nil, header{"X-Supabase-Api-Version", "2024-01-01"}).is(400,
		`{"error":"invalid_request","error_description":"say \"please\""}`)
	if e := got.Header.Get("X-Supabase-Api-Version"); e != "2024-01-01" {
		t.Errorf("the version is echoed as %q", e)
	}
}

// Each code of the API can be written, and kinds have the statuses that the contract gives them.
func TestErrors_kinds(t *testing.T) {
	a := open(t)
	var answer *refusal.Refusal
	a.server.mux.Handle("GET /refuse", handler(func(*call) error { return answer }))
	f := func(kind refusal.Kind, status int) {
		t.Helper()
		answer = &refusal.Refusal{Kind: kind, Code: "some_code", Msg: "Some words",
			RetryAfter: 1500 * time.Millisecond}
		got := a.do("GET /refuse", nil).refused(status, "some_code", "Some words")
		if after := got.Header.Get("Retry-After"); after != "2" {
			t.Errorf("Retry-After: %q", after)
		}
	}
	f(refusal.KindInvalid, 400)
	f(refusal.KindUnauthenticated, 401)
	f(refusal.KindDenied, 403)
	f(refusal.KindMissing, 404)
	f(refusal.KindUnprocessable, 422)
	f(refusal.KindLimited, 429)
	f(refusal.KindFailed, 500)
	f(refusal.KindUnavailable, 503)
	f(0, 500)
	f(99, 500)
}

func TestLog_oneLineWithoutSecrets(t *testing.T) {
	a := open(t, func(_ *flow.Settings, s *Settings) { s.RequestIDHeader = "X-Trace" })
	g := a.member("mia@example.org")
	before := a.log.String()
	got := a.do("GET /user?password=hunter2", nil, bearer(g.AccessToken), header{"X-Trace", "trace-1"}).is(200, "*")
	if id := got.Header.Get("X-Trace"); id != "trace-1" {
		t.Errorf("the request id comes back as %q", id)
	}
	line := strings.TrimPrefix(a.log.String(), before)
	if strings.Count(line, "\n") != 1 {
		t.Errorf("not one line: %q", line)
	}
	for _, want := range []string{"method=GET", "route=/user", "status=200", "request_id=trace-1", "ip=127.0.0.1",
		"user=" + g.User.ID, "duration="} {
		if !strings.Contains(line, want) {
			t.Errorf("%q is missing in %q", want, line)
		}
	}
	w := httptest.NewRecorder() // the console's page reads X-Request-Id
	a.server.ServeConsole(w, httptest.NewRequest("GET", "/", nil), func(ConsoleCall) error { return NotFound() })
	if id := w.Header().Get("X-Request-Id"); id == "" || id != w.Header().Get("X-Trace") {
		t.Errorf("the console's request id is %q, in the log %q", id, w.Header().Get("X-Trace"))
	}
	a.do("POST /token?grant_type=password",
		map[string]any{"email": "mia@example.org", "password": "wrong guess"}).refused(400, "invalid_credentials", "*")
	a.do("POST /token?grant_type=refresh_token", map[string]any{"refresh_token": g.RefreshToken}).is(200, "*")
	for _, secret := range []string{"hunter2", "wrong guess", sesame, g.AccessToken, g.RefreshToken,
		"mia@example.org"} {
		if strings.Contains(a.log.String(), secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
	before = a.log.String()
	a.do("GET /health", nil).is(200, "*")
	a.do("GET /livez", nil).is(200, "*")
	if log := a.log.String(); log != before {
		t.Errorf("health is logged: %s", log)
	}

	f := func(sent string, kept bool) {
		t.Helper()
		id := a.do("GET /settings", nil, header{"X-Trace", sent}).Header.Get("X-Trace")
		if (id == sent) != kept || id == "" {
			t.Errorf("request id %q comes back as %q", sent, id)
		}
	}
	f("a b/c:~", true)
	f(strings.Repeat("x", 128), true)
	f(strings.Repeat("x", 129), false)
	f("ümlaut", false)
	f("", false)
}

func TestCORS(t *testing.T) {
	a := open(t, func(_ *flow.Settings, s *Settings) { s.CORSHeaders = []string{"X-Own"} })
	preflight := func(method, headers string) http.Header {
		t.Helper()
		h := []header{{"Origin", "https://evil.example"}, {"Access-Control-Request-Method", method}}
		if headers != "" {
			h = append(h, header{"Access-Control-Request-Headers", headers})
		}
		return a.do("OPTIONS /user", nil, h...).is(204, "").Header
	}
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		h := preflight(method, "apikey,authorization,content-type,x-client-info,x-own,x-supabase-api-version")
		if h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Access-Control-Allow-Methods") != method ||
			h.Get("Access-Control-Allow-Headers") == "" || h.Get("Access-Control-Max-Age") != "600" {
			t.Errorf("preflight %s: %v", method, h)
		}
		if h.Get("Access-Control-Allow-Credentials") != "" {
			t.Error("credentials are allowed")
		}
	}
	// As an operator types them: curl does not sort.
	if h := preflight("POST",
		"Content-Type, Authorization, X-Client-Info, authorization"); h.Get(
		"Access-Control-Allow-Headers") != "authorization,content-type,x-client-info" {
		t.Errorf("headers in another order are refused: %v", h)
	}
	if h := preflight("GET", "x-foreign"); h.Get("Access-Control-Allow-Headers") != "" {
		t.Errorf("a foreign header is allowed: %v", h)
	}
	if h := preflight("GET", "Authorization, X-Foreign"); h.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a foreign header among others is allowed: %v", h)
	}
	h := a.do("GET /user", nil, header{"Origin", "https://app.example.org"}).is(401, "*").Header
	if h.Get("Access-Control-Allow-Origin") != "*" ||
		h.Get("Access-Control-Expose-Headers") !=
			"Retry-After, X-Request-Id, X-Sb-Error-Code, X-Total-Count, Link, X-Supabase-Api-Version" {
		t.Errorf("headers %v", h)
	}
}

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// The demo's server asks both daemons, passes on what auth says, answers under loopback names only, and lets its page
// call nothing but itself and the API.
func TestDemo(t *testing.T) {
	asked := ""
	daemons := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/json" {
			http.Error(w, "out of order", http.StatusInternalServerError)
			return
		}
		asked = r.Header.Get("Authorization")
		if asked != "Bearer good" {
			answer(w, http.StatusForbidden, problem{"bad_jwt", "no"})
			return
		}
		answer(w, http.StatusOK, map[string]string{"id": "7"})
	}))
	defer daemons.Close()
	d := &demo{auth: daemons.URL, ratelimit: daemons.URL, page: demoPage{API: daemons.URL + "/auth/v1", Rules: "r.yaml"}}
	handler := d.handler()
	f := func(method, target, host, bearer string, status int, holds string) http.Header {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
		r.Host = host
		r.Header.Set("Authorization", "Bearer "+bearer)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != status || !strings.Contains(w.Body.String(), holds) {
			t.Errorf("%s %s at %s: %d %s, want %d %s", method, target, host, w.Code, w.Body, status, holds)
		}
		return w.Header()
	}
	csp := f("GET", "/", "localhost:3000", "", 200, `<script src="/app.js" type="module">`).Get("Content-Security-Policy")
	if !strings.Contains(csp, "script-src 'self'; ") || !strings.Contains(csp, "connect-src 'self' "+daemons.URL+";") {
		t.Error(csp)
	}
	f("GET", "/config.json", "[::1]:3000", "", 200, `"rules":"r.yaml"`)
	f("GET", "/config.json", "127.0.0.1", "", 200, `/auth/v1"`)
	f("GET", "/nothing", "localhost", "", 404, "")
	for _, host := range []string{"evil.test:3000", "localhost.evil.test", "192.0.2.1:3000", ""} {
		f("GET", "/config.json", host, "", 403, "loopback names only")
	}
	f("POST", "/shop/order", "localhost:3000", "bad", 403, "bad_jwt")
	f("POST", "/shop/order", "localhost:3000", "good", 502, "ratelimit answers 500")
	daemons.Close()
	f("POST", "/shop/order", "localhost:3000", "good", 502, "auth_unavailable")
}

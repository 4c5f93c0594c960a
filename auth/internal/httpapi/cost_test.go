package httpapi

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store/storetest"
)

// Round trips to PostgreSQL of a whole request: the most that is allowed.
func TestStatements_perRequest(t *testing.T) {
	db, trips := storetest.Counting(t)
	a := openOn(t, db)
	g := a.member("mia@example.org")
	signIn := func(into *grantJSON) {
		a.do("POST /token?grant_type=password",
			map[string]any{"email": "mia@example.org", "password": sesame}).json(into)
	}
	e := a.enroll(g, "") // the user has identities and a factor
	g = a.verify(g, e)
	n := 0
	f := func(what string, want int64, request func()) {
		t.Helper()
		request() // prepares the statements
		if got := trips.During(request); got != want {
			t.Errorf("%s: %d round trips, want %d", what, got, want)
		}
	}
	f("GET /health", 0, func() { a.do("GET /health", nil) })
	f("GET /settings", 0, func() { a.do("GET /settings", nil) })
	f("GET /user", 1, func() { a.do("GET /user", nil, bearer(g.AccessToken)).is(200, "*") })
	f("GET /user without a good token", 0, func() { a.do("GET /user", nil, bearer("x")) })
	f("password", 2, func() { signIn(&g) })
	f("refresh", 1, func() {
		a.do("POST /token?grant_type=refresh_token", map[string]any{"refresh_token": g.RefreshToken}).json(&g)
	})
	a.apply(func(s *flow.Settings, _ *Settings) { s.Sessions.AllowLowAAL = time.Hour })
	f("refresh of a session that is bounded below aal2", 1, func() {
		a.do("POST /token?grant_type=refresh_token", map[string]any{"refresh_token": g.RefreshToken}).json(&g)
	})
	f("sign-up", 2, func() {
		n++
		a.do("POST /signup", map[string]any{"email": strings.Repeat("x", n) + "@example.org",
			"password": sesame}).is(200,
			"*")
	})
	f("sign-up of a known address", 2, func() {
		a.do("POST /signup", map[string]any{"email": "mia@example.org", "password": sesame}).is(200, "*")
	})
	sessions := make([]grantJSON, 2)
	signIn(&sessions[0])
	signIn(&sessions[1])
	f("logout", 1, func() {
		a.do("POST /logout?scope=local", nil, bearer(sessions[0].AccessToken)).is(204, "")
		sessions = sessions[1:]
	})
}

// discardWriter is a connection without a reader.
type discardWriter struct {
	h      http.Header
	status int
}

func (n *discardWriter) Header() http.Header         { return n.h }
func (n *discardWriter) Write(b []byte) (int, error) { return len(b), nil }
func (n *discardWriter) WriteHeader(status int)      { n.status = status }

// What a request costs without net/http's own reading and writing.
func BenchmarkServe(b *testing.B) {
	for name, path := range map[string]string{"health": "/health", "settings": "/settings",
		"jwks": "/.well-known/jwks.json", "refused": "/user", "notfound": "/x"} {
		b.Run(name, func(b *testing.B) {
			srv := benchServer(b)
			r := httptest.NewRequest("GET", path, nil)
			r.Header.Set("Origin", "https://app.example.org")
			b.ReportAllocs()
			for b.Loop() {
				w := &discardWriter{h: make(http.Header, 8)}
				req := *r
				srv.ServeHTTP(w, &req)
				if len(w.h["Content-Type"]) != 1 {
					b.Fatal("no answer")
				}
			}
		})
	}
}

func benchServer(b *testing.B) *Server {
	b.Helper()
	a := offline(b)
	a.log = slog.New(slog.NewJSONHandler(io.Discard, nil))
	return a
}

// GET /user with its statement, on a real PostgreSQL.
func BenchmarkGetUser(b *testing.B) {
	a := openOn(b, storetest.Open(b))
	g := a.member("mia@example.org")
	r := httptest.NewRequest("GET", "/user", nil)
	r.Header.Set("Authorization", "Bearer "+g.AccessToken)
	b.ReportAllocs()
	for b.Loop() {
		w := &discardWriter{h: make(http.Header, 8)}
		req := *r
		a.server.ServeHTTP(w, &req)
		if w.status != 200 {
			b.Fatal(w.status)
		}
	}
}

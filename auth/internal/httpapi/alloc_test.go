//go:build !race

package httpapi

import (
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"gatehouse/auth/internal/store/storetest"
)

// What a request allocates, without net/http's own reading and writing, with the log line: the most that is allowed.
// The race detector makes sync.Pool drop items on purpose, hence the build tag.
func TestServe_Alloc(t *testing.T) {
	offline := offline(t)
	offline.log = slog.New(slog.NewJSONHandler(io.Discard, nil))
	a := openOn(t, storetest.Open(t))
	g := a.member("mia@example.org")
	f := func(most float64, srv *Server, path, bearer string) {
		t.Helper()
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Authorization", "Bearer "+bearer)
		w := &discardWriter{}
		n := testing.AllocsPerRun(200, func() {
			w.h, w.status = make(http.Header, 8), 0
			req := *r
			srv.ServeHTTP(w, &req)
		})
		if w.status != 200 || n > most {
			t.Errorf("GET %s: %d, %.0f allocations, at most %.0f", path, w.status, n, most)
		}
	}
	f(8, offline, "/health", "")
	f(10, offline, "/settings", "")
	f(11, offline, "/.well-known/jwks.json", "")
	f(11, offline, "/.well-known/openid-configuration", "")
	set := offline.live.Load().Settings
	set.Prefix = "/auth/v1"
	offline.Apply(set)
	f(10, offline, "/auth/v1/health", "")
	f(75, a.server, "/user", g.AccessToken)
}

package httpapi

import (
	"context"
	"errors"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
)

func TestSettings(t *testing.T) {
	a := open(t)
	a.do("GET /settings", nil).is(200,
		`{"external":{"apple":false,*"email":true,"phone":true,"anonymous_users":true},"disable_signup":false,*}`)
	a.apply(func(f *flow.Settings, _ *Settings) { f.DisableSignup = true })
	a.do("GET /settings", nil).is(200, `*"disable_signup":true,*`)
	// The providers that are on: custom ones next to the built-in ones.
	a.apply(func(_ *flow.Settings, s *Settings) { s.External = []string{"github", "workos", "acme"} })
	a.do("GET /settings", nil).is(200,
		`{"external":{"apple":false,*"github":true,"gitlab":false,*"workos":true,"acme":true,"email":true,*}`)
}

func TestJWKS(t *testing.T) {
	a := open(t)
	got := a.do("GET /.well-known/jwks.json", nil).is(200, `{"keys":[{*"kty":"EC"*}]}`)
	if got.Header.Get("Cache-Control") != "public, max-age=600" || got.Header.Get("ETag") == "" {
		t.Errorf("headers %v", got.Header)
	}
	a.do("GET /.well-known/jwks.json", nil, header{"If-None-Match", got.Header.Get("ETag")}).is(304, "")
	a.do("GET /.well-known/jwks.json", nil, header{"If-None-Match", `"other"`}).is(200, "*")
}

func TestHealth(t *testing.T) {
	a := open(t)
	a.do("GET /health", nil).is(200, `{"version":"1.2.3","name":"Gatehouse","description":"*"}`)
	a.do("GET /livez", nil).is(200, `{"status":"ok"}`)
	a.do("GET /readyz", nil).is(200, `{"status":"ok"}`)
	a.db.Close() // liveness doesn't query the database
	a.do("GET /health", nil).is(200, "*")
	a.do("GET /livez", nil).is(200, "*")
}

func TestReadyz(t *testing.T) {
	a := open(t)
	var err error
	asked := 0
	a.server.ready.checks = []Check{
		{"drain", func(context.Context) error { return nil }},
		{"database", func(ctx context.Context) error {
			asked++
			if _, ok := ctx.Deadline(); !ok {
				t.Error("a check without a deadline")
			}
			return err
		}},
	}
	a.do("GET /readyz", nil).is(200, `{"status":"ok"}`)
	err = errors.New("dial tcp 10.0.0.1: refused")
	a.do("GET /readyz", nil).is(200, `{"status":"ok"}`) // the verdict of a moment ago
	if asked != 1 {
		t.Errorf("asked %d times", asked)
	}
	a.server.ready.mu.Lock()
	a.server.ready.at = time.Time{}
	a.server.ready.mu.Unlock()
	a.do("GET /readyz", nil).is(503, `{"status":"unavailable","failed":["database"]}`)
}

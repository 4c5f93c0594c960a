package test

import (
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/sfvtest"
	"gatehouse/shared/envoytest"
	"gatehouse/shared/must"
)

const envoyLimits = `domain: shop
descriptors:
  - key: user
    rate_limit: {unit: second, unit_multiplier: 4, requests_per_unit: 3, algorithm: sliding_window}
  - key: plan
    value: gold
    descriptors:
      - key: user
        rate_limits:
          - {unit: hour, requests_per_unit: 2, algorithm: token_bucket, burst: 3, name: burst}
          - {unit: year, requests_per_unit: 1000, name: yearly}
`

// get asks Envoy as a user. Its answer is from the upstream or, over the limit, 429.
func (g *gateway) get(t *testing.T, path, user string) (status int, h http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+g.Addr+path, nil)
	must.Succeed(t, err)
	req.Header.Set("X-User", user)
	resp, err := caller("127.0.0.1").Do(req)
	must.Succeed(t, err)
	defer resp.Body.Close()
	must.Succeed(t, must.ErrOf(io.Copy(io.Discard, resp.Body)))
	return resp.StatusCode, resp.Header
}

// A client of a sliding window that waits as long as Retry-After says passes again.
func TestEnvoy_slidingWindow(t *testing.T) {
	t.Parallel()
	envoytest.Program(t)
	p := start(t, envoyLimits, map[string]string{"BACKEND_TYPE": "memory", "LIMIT_RETRY_AFTER_ENABLED": "true"})
	g := startEnvoy(t, []string{p.grpc}, patient)
	for range 3 {
		for {
			status, h := g.get(t, "/api/x", "ann")
			if status == 200 {
				if h.Get("Retry-After") != "" {
					t.Errorf("Retry-After of a request that passed: %v", h)
				}
				continue
			}
			wait, err := strconv.Atoi(h.Get("Retry-After"))
			if status != 429 || err != nil || wait < 1 || wait > 8 {
				t.Fatalf("%d with Retry-After %q", status, h.Get("Retry-After"))
			}
			time.Sleep(time.Duration(wait) * time.Second)
			break
		}
		if status, _ := g.get(t, "/api/x", "ann"); status != 200 {
			t.Errorf("%d after the wait that Retry-After asked for", status)
		}
	}
}

// A list with a token bucket describes itself in the headers of the draft, on 200 and on 429.
func TestEnvoy_draftHeaders(t *testing.T) {
	t.Parallel()
	envoytest.Program(t)
	p := start(t, envoyLimits, map[string]string{"BACKEND_TYPE": "memory", "LIMIT_RETRY_AFTER_ENABLED": "true",
		"LIMIT_RESPONSE_HEADERS_ENABLED": "true", "LIMIT_RESPONSE_HEADERS_STYLE": "draft"})
	g := startEnvoy(t, []string{p.grpc}, patient)
	for i, want := range []int{200, 200, 200, 429} {
		status, h := g.get(t, "/gold/", "ann")
		if status != want {
			t.Errorf("request %d: %d, want %d", i, status, want)
		}
		if got := h.Get("RateLimit-Policy"); got != `"burst";q=2;w=3600;gatehouse-burst=3, "yearly";q=1000;w=31536000` {
			t.Errorf("request %d: policy %s", i, got)
		}
		members, err := sfvtest.ParseList(h.Get("RateLimit"))
		if err != nil || len(members) != 2 || members[0].Name != "burst" || members[1].Name != "yearly" {
			t.Fatalf("request %d: %v in %q", i, err, h.Get("RateLimit"))
		}
		burst, yearly := members[0].Params, members[1].Params
		if burst["r"] != int64(max(0, 2-i)) || yearly["r"] != int64(999-i) || burst["t"] < 1 || burst["t"] > 1800 {
			t.Errorf("request %d: %s", i, h.Get("RateLimit"))
		}
		wait, _ := strconv.ParseInt(h.Get("Retry-After"), 10, 64)
		if over := status == 429; over != (wait > 0) || over && wait < burst["t"] {
			t.Errorf("request %d: Retry-After %q with %s", i, h.Get("Retry-After"), h.Get("RateLimit"))
		}
	}
}

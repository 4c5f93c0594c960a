package test

import (
	"strings"
	"testing"
	"time"
)

// TestReady: the daemon says that it runs whatever LOG_LEVEL is, and where statistics go that nobody has pointed
// anywhere; that no statsd answers is a warning only for those who have.
func TestReady(t *testing.T) {
	t.Parallel()
	type ready struct {
		Level      string `json:"level"`
		Version    string `json:"version"`
		GRPC       string `json:"grpc"`
		Store      string `json:"store"`
		Rules      *int   `json:"rules"`
		Statistics string `json:"statistics"`
	}
	rules := `[{key: k, @1/y}, {key: l, rate_limits: [{unit: day, requests_per_unit: 1}, {unit: hour, requests_per_unit: 1}]},
  {key: free, value: a}, {key: m, rate_limit: {unlimited: true}}]`
	f := func(env map[string]string, statistics string) *process {
		t.Helper()
		p := launch(t, rules, env)
		var got ready
		p.log.await(t, `"ready"`, &got)
		if got.Level != "info" || got.Version == "" || got.GRPC == "" || got.Store != "memory" || got.Rules == nil ||
			*got.Rules != 4 || got.Statistics != statistics {
			t.Errorf("with %v: %+v\n%s", env, got, p.log.text())
		}
		return p
	}
	nobody := "localhost:8125 (statsd's default; DISABLE_STATS=true sends none)"
	for _, level := range []string{"PANIC", "WARN"} {
		p := f(map[string]string{"LOG_LEVEL": level, "DISABLE_STATS": ""}, nobody)
		p.Stop(time.Minute)
		if lines := strings.TrimSpace(p.log.text()); strings.Contains(lines, "\n") {
			t.Errorf("LOG_LEVEL=%s says more than that it is ready:\n%s", level, lines)
		}
	}
	f(map[string]string{"LOG_LEVEL": "ERROR"}, "") // DISABLE_STATS
	f(map[string]string{"DISABLE_STATS": "", "USE_PULLMETRICS": "true", "PULLMETRICS_ADDR": "127.0.0.1:0"}, "")
	p := f(map[string]string{"DISABLE_STATS": "", "STATSD_HOST": "127.0.77.1", "STATSD_PORT": freePort(t, "127.0.77.1")}, "")
	p.log.await(t, "statsd is not reachable", nil)
	p = launch(t, rules, map[string]string{"LOG_FORMAT": "text", "LOG_LEVEL": "error"})
	p.log.await(t, `level=info msg="ready" version=`, nil)
}

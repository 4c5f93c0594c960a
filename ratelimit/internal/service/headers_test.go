package service

import (
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/overlimit"
)

// headers are those of the answer, one on each line.
func (r *rig) headers(t testing.TB, c *Call) string {
	t.Helper()
	if err := r.Decide(t.Context(), c, r.Now()); err != nil {
		return err.Error()
	}
	var lines []string
	for _, h := range c.Response.Headers {
		lines = append(lines, h.Key+": "+h.Value)
	}
	return strings.Join(lines, "\n")
}

func (r *rig) wantHeaders(t testing.TB, c *Call, want ...string) {
	t.Helper()
	if got := r.headers(t, c); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

const headerRules = `
- {key: k, @2}
- {key: h, rate_limit: {unit: hour, requests_per_unit: 1, name: hourly}}
- {key: shadow, shadow_mode: true, @0}
- {key: quota, quota_mode: true, @1}
- {key: quotah, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: zero, @0}
- {key: free, rate_limit: {unlimited: true}}
- {key: a, rate_limit: {unit: minute, requests_per_unit: 1, name: a}}
- {key: b, rate_limit: {unit: minute, requests_per_unit: 1, replaces: [{name: a}]}}`

func TestHeaders_draft(t *testing.T) {
	r := newRig(t, headerRules, Options{DraftHeaders: true, Settings: Settings{RetryAfter: true}})
	r.wantHeaders(t, call("d", "(k,1)"), `RateLimit-Policy: "2-per-minute";q=2;w=60`,
		`RateLimit: "2-per-minute";r=1;t=40`)
	r.wantHeaders(t, call("d", "(k,2)|(none,x)|(h,1)|(free,1)|(shadow,1)|(k,3)"),
		`RateLimit-Policy: "2-per-minute";q=2;w=60, "hourly";q=1;w=3600, "2-per-minute#2";q=2;w=60`,
		`RateLimit: "2-per-minute";r=1;t=40, "hourly";r=0;t=2800, "2-per-minute#2";r=1;t=40`)
	// With OVER_LIMIT too, and with Retry-After.
	r.wantHeaders(t, call("d", "(k,2)|(h,1)"), `RateLimit-Policy: "2-per-minute";q=2;w=60, "hourly";q=1;w=3600`,
		`RateLimit: "2-per-minute";r=0;t=40, "hourly";r=0;t=2800`, `Retry-After: 2800`)
	// Shadow and unlimited limits, replaced ones, and no limit at all.
	r.wantHeaders(t, call("d", "(shadow,1)|(free,1)"))
	r.wantHeaders(t, call("d", "(a,1)|(b,1)"), `RateLimit-Policy: "1-per-minute";q=1;w=60`,
		`RateLimit: "1-per-minute";r=0;t=40`)
	r.wantHeaders(t, call("d", "(none,1)"))
	r.wantHeaders(t, call("elsewhere", "(k,1)"))
	// Of 20 limits, 16.
	if got := r.headers(t, call("d", strings.Repeat("(k,9)|", 19)+"(k,9)")); strings.Count(got,
		"q=2") != decide.MaxMembers {
		t.Error(got)
	}
}

func TestHeaders_retryAfter(t *testing.T) {
	over := func(r *rig, text string) *Call {
		for range 3 {
			r.decide(t, call("d", text))
		}
		return call("d", text)
	}
	r := newRig(t, headerRules, Options{Settings: Settings{RetryAfter: true}})
	r.wantHeaders(t, call("d", "(k,1)"))
	r.wantHeaders(t, over(r, "(k,2)|(h,2)|(shadow,2)"), "Retry-After: 2800")
	r.wantHeaders(t, over(r, "(quota,1)|(quotah,1)"), "Retry-After: 40")
	r.wantHeaders(t, over(r, "(quota,2)"), "Retry-After: 40")
	r.wantHeaders(t, over(r, "(quota,3)|(k,3)|(quotah,4)|(none,3)"), "Retry-After: 40")
	r.wantHeaders(t, call("d", "(quota,1)|(quotah,new)"))

	// Legacy headers stand before it.
	r = newRig(t, headerRules, Options{Settings: Settings{RetryAfter: true},
		Headers: &decide.HeaderNames{Limit: "L", Remaining: "R", Reset: "T"}})
	c := over(r, "(k,1)")
	r.wantHeaders(t, c, "L: 2", "R: 0", "T: 40", "Retry-After: 40")
	if h := c.HTTPHeaders(); len(h) != 1 || h[0].Key != "Retry-After" {
		t.Errorf("HTTPHeaders: %v", h)
	}

	r = newRig(t, headerRules, Options{Settings: Settings{RetryAfter: true, GlobalShadow: true}})
	r.wantHeaders(t, over(r, "(k,1)"))
	r = newRig(t, headerRules, Options{Settings: Settings{RetryAfter: true}, DenyUnknown: true})
	r.wantHeaders(t, call("elsewhere", "(k,1)"))
	r = newRig(t, headerRules, Options{Settings: Settings{RetryAfter: true}, OverLimit: overlimit.New(1 << 20)})
	r.wantHeaders(t, over(r, "(k,1)"), "Retry-After: 40") // known from the cache
}

// In failure modes limits without an answer have nothing remaining, and only what is known says when to come back.
func TestHeaders_failure(t *testing.T) {
	for mode, want := range map[limits.FailureMode][]string{
		limits.FailureError: {"rate limit store is unavailable"},
		limits.FailureAllow: {`RateLimit-Policy: "2-per-minute";q=2;w=60`, `RateLimit: "2-per-minute";r=0;t=40`},
		limits.FailureDeny:  {`RateLimit-Policy: "2-per-minute";q=2;w=60`, `RateLimit: "2-per-minute";r=0;t=40`},
	} {
		r := newRig(t, headerRules, Options{DraftHeaders: true, Settings: Settings{RetryAfter: true},
			OnStoreFailure: mode})
		r.store.err = counter.ErrOpen
		r.wantHeaders(t, call("d", "(k,1)"), want...)
		r.wantHeaders(t, call("d", "(h,1)|(zero,1)"), `RateLimit-Policy: "hourly";q=1;w=3600, "0-per-minute";q=0;w=60`,
			`RateLimit: "hourly";r=0;t=2800, "0-per-minute";r=0;t=40`, "Retry-After: 40")
		r.SetStore(someFail{r.store.Store})
		for range 2 {
			r.decide(t, call("d", "(h,over)"))
		}
		if got := r.headers(t, call("d", "(k,away)|(h,over)")); !strings.HasSuffix(got, "\nRetry-After: 2800") {
			t.Errorf("%v: %s", mode, got)
		}
	}
}

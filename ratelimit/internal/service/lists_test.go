package service

import (
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/rls"
)

// newTimedRig is newRig with a store that has the daemon's clock.
func newTimedRig(t testing.TB, yaml string, o Options) *rig {
	t.Helper()
	r := newRig(t, yaml, o)
	r.store.Store = memory.New(memory.Options{Clock: func() int64 { return r.now * 1_000_000 }})
	return r
}

const listRules = `
- {key: k, rate_limits: [{unit: second, requests_per_unit: 2, algorithm: token_bucket, burst: 4, name: burst}, {unit: minute, requests_per_unit: 5}]}
- {key: s, rate_limits: [{unit: minute, requests_per_unit: 1, shadow_mode: true}, {unit: hour, requests_per_unit: 3}]}
- {key: all, rate_limits: [{unit: minute, requests_per_unit: 1, shadow_mode: true}, {unit: hour, requests_per_unit: 0, shadow_mode: true}]}
- {key: r, rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: burst}]}}
- {key: one, rate_limits: [{unit: minute, requests_per_unit: 1, name: burst}]}
- {key: d, value_to_metric: true, rate_limits: [{unit: minute, requests_per_unit: 1}, {unit: hour, requests_per_unit: 1}]}
- {key: z, rate_limits: [{unit: minute, requests_per_unit: 7}, {unit: hour, requests_per_unit: 0, algorithm: sliding_window}]}`

// The tightest limit of a list gives the status and the statistics of the rule; each has statistics of its own.
func TestLists(t *testing.T) {
	r := newTimedRig(t, listRules, Options{})
	hits := func(text string, n uint32) *Call {
		c := call("d", text)
		c.Request.HitsAddend = n
		return c
	}
	r.expect(t, hits("(k,v)", 3), "OK: OK 1/2")
	r.expect(t, hits("(k,v)", 1), "OK: OK 0/2")
	r.expect(t, hits("(k,v)", 2), "OVER_LIMIT: OVER_LIMIT 0/5") // both, and the minute longer
	r.wantCounters(t, "ratelimit.service.rate_limit.d.k.", map[string]int64{
		"total_hits": 6, "within_limit": 4, "near_limit": 2, "over_limit": 1})
	r.wantCounters(t, "ratelimit.service.limit.d.k.", map[string]int64{
		"burst.near_limit": 1, "burst.over_limit": 2, "5_per_minute.near_limit": 1, "5_per_minute.over_limit": 1})

	r.expect(t, hits("(s,v)", 2), "OK: OK 1/3")
	r.expect(t, hits("(s,v)", 2), "OVER_LIMIT: OVER_LIMIT 0/3")
	r.expect(t, hits("(all,v)", 1), "OK: OK 0/0")
	r.wantCounters(t, "ratelimit.service.limit.d.all.", map[string]int64{
		"1_per_minute.near_limit": 1, "0_per_hour.over_limit": 1, "0_per_hour.shadow_mode": 1})

	// A replaced limit goes, the others of its list stay; of a list of one nothing does.
	r.expect(t, call("d", "(k,w)|(r,v)"), "OK: OK 4/5 OK 8/9")
	r.expect(t, call("d", "(one,v)|(r,v)"), "OK: OK OK 7/9")
	r.expect(t, call("d", "(one,v)"), "OK: OK 0/1")

	// Names with values of requests.
	r.expect(t, hits("(d,x)", 2), "OVER_LIMIT: OVER_LIMIT 0/1")
	r.wantCounters(t, "ratelimit.service.limit.d.d_x.", map[string]int64{
		"1_per_minute.over_limit": 1, "1_per_minute.near_limit": 1, "1_per_hour.over_limit": 1,
		"1_per_hour.near_limit": 1})

	// A caller's own limit wins over the whole list, and shares the counter of its first fixed window.
	own := call("d", "(k,v)")
	own.Request.Descriptors[0].HasLimit, own.Request.Descriptors[0].Limit = true,
		rls.Override{PerUnit: 10, Unit: rls.Minute}
	r.expect(t, own, "OK: OK 3/10")
}

// Limits that have an answer are judged; else the failure mode answers with the first that is not in shadow mode.
func TestLists_failure(t *testing.T) {
	for mode, want := range map[limits.FailureMode][3]string{
		limits.FailureError: {"rate limit store is unavailable", "rate limit store is unavailable",
			"OVER_LIMIT: OVER_LIMIT 0/0"},
		limits.FailureAllow: {"OK: OK 0/3", "OK: OK 0/1", "OVER_LIMIT: OVER_LIMIT 0/0"},
		limits.FailureDeny:  {"OVER_LIMIT: OVER_LIMIT 0/3", "OK: OK 0/1", "OVER_LIMIT: OVER_LIMIT 0/0"},
	} {
		r := newTimedRig(t, listRules, Options{OnStoreFailure: mode})
		r.store.err = counter.ErrOpen
		r.expect(t, call("d", "(s,v)"), want[0])
		r.expect(t, call("d", "(z,v)"), want[2]) // one of its limits needs no store
		if mode != limits.FailureError {
			c := call("d", "(k,v)")
			r.decide(t, c)
			if st := c.Response.Statuses[0]; st.Reset != 1 || st.PerUnit != 2 {
				t.Errorf("%v: %+v, want the bucket's whole window", mode, st)
			}
		}
	}
	r := newTimedRig(t, listRules, Options{OnStoreFailure: limits.FailureAllow})
	r.SetStore(someFail{r.store.Store})
	r.expect(t, call("d", "(k,away)|(k,x)"), "OK: OK 0/2 OK 3/2")
	// A limit that needs no store has no hit that could have failed.
	r.expect(t, call("d", "(z,away)|(k,away)"), "OVER_LIMIT: OVER_LIMIT 0/0 OK 0/2")
}

// A limit of 0 that counts what it admits asks no store, and with the stop option keeps others from counting.
func TestLimitOfZero(t *testing.T) {
	const rules = `
- {key: b, rate_limit: {unit: minute, requests_per_unit: 0, algorithm: token_bucket}}
- {key: sh, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0, algorithm: sliding_window}}
- {key: k, @2}`
	r := newTimedRig(t, rules, Options{})
	c := call("d", "(b,v)|(sh,v)")
	r.expect(t, c, "OVER_LIMIT: OVER_LIMIT 0/0 OK 0/0")
	if a, b := c.Response.Statuses[0].Reset, c.Response.Statuses[1].Reset; a != 60 || b != 3600 || r.store.calls != 0 {
		t.Errorf("resets %d and %d, %d calls of the store", a, b, r.store.calls)
	}
	for _, change := range []func(*rls.Descriptor){func(d *rls.Descriptor) { d.HasHits = true },
		func(d *rls.Descriptor) { d.Negative = true }} {
		c := call("d", "(b,v)")
		change(&c.Request.Descriptors[0])
		r.expect(t, c, "OK: OK 0/0")
	}
	r.wantCounters(t, "ratelimit.service.rate_limit.d.b.", map[string]int64{"total_hits": 1, "over_limit": 1})

	r = newTimedRig(t, rules, Options{Settings: Settings{StopWhenOver: true}})
	r.expect(t, call("d", "(b,v)|(k,v)"), "OVER_LIMIT: OVER_LIMIT 0/0 OK 2/2")
	r.expect(t, call("d", "(sh,v)|(k,v)"), "OK: OK 0/0 OK 1/2")
}

// Of sliding windows and token buckets the over-limit cache keeps how long not even one hit passes.
func TestOverLimitCache_wait(t *testing.T) {
	const rules = `[{key: k, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: token_bucket}}]`
	r := newTimedRig(t, rules, Options{OverLimit: overlimit.New(1 << 20)})
	ask := func(n uint64, want string, reset int64, asks bool) {
		t.Helper()
		c, calls := call("d", "(k,v)"), r.store.calls
		c.Request.Descriptors[0].HasHits, c.Request.Descriptors[0].Hits = true, n
		r.expect(t, c, want)
		if st := c.Response.Statuses[0]; st.Reset != reset || r.store.calls > calls != asks {
			t.Errorf("%d hits: reset %d, asked %v; want %d, %v", n, st.Reset, r.store.calls > calls, reset, asks)
		}
	}
	ask(10, "OK: OK 0/10", 60, true)
	ask(3, "OVER_LIMIT: OVER_LIMIT 0/10", 18, true)
	ask(3, "OVER_LIMIT: OVER_LIMIT 0/10", 6, false) // of one hit, whatever the request has
	r.now += 4
	ask(1, "OVER_LIMIT: OVER_LIMIT 0/10", 2, false)
	ask(0, "OK: OK 0/10", 56, true) // a peek
	r.now += 2
	ask(1, "OK: OK 0/10", 60, true)
	ask(11, "OVER_LIMIT: OVER_LIMIT 0/10", 60, true) // remembers 6 s
	ask(1, "OVER_LIMIT: OVER_LIMIT 0/10", 6, false)
	refund := call("d", "(k,v)")
	refund.Request.Descriptors[0].Negative = true
	r.expect(t, refund, "OK: OK 1/10")
	ask(2, "OVER_LIMIT: OVER_LIMIT 0/10", 6, true) // one would pass: nothing is remembered
	ask(1, "OK: OK 0/10", 60, true)
	ask(1, "OVER_LIMIT: OVER_LIMIT 0/10", 6, true)
	r.load(t, `[{key: k, rate_limit: {unit: minute, requests_per_unit: 20, algorithm: token_bucket}}]`)
	ask(1, "OVER_LIMIT: OVER_LIMIT 0/20", 3, true)
}

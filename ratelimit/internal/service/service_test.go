package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/must"
)

const testNow = 1700000000

// rig is a service over an in-process store, with its statistics.
type rig struct {
	*Service
	stats *stats.Registry
	store *failing
	now   int64
}

// failing is the in-process store until err is set.
type failing struct {
	*memory.Store
	err   error
	calls int

	peek       error // of Peek
	failResets int   // which Reset fails, counted down; 0: none
}

func (f *failing) Peek(ctx context.Context, h *counter.Hit) error {
	if f.peek != nil {
		return f.peek
	}
	return f.Store.Peek(ctx, h)
}

func (f *failing) Reset(ctx context.Context, h *counter.Hit) error {
	if f.failResets--; f.failResets == 0 {
		return counter.ErrUnavailable
	}
	return f.Store.Reset(ctx, h)
}

func (f *failing) Add(ctx context.Context, r *counter.Request) error {
	f.calls++
	if f.err != nil {
		return f.err
	}
	return f.Store.Add(ctx, r)
}

var rateLimit = regexp.MustCompile(`@(\d+)`)

// newRig loads one domain named d from flow YAML, in which @5 is a limit of 5 per minute.
func newRig(t testing.TB, yaml string, o Options) *rig {
	t.Helper()
	r := &rig{stats: stats.NewRegistry(stats.Options{}), store: &failing{Store: memory.New(memory.Options{})},
		now: testNow}
	o.Stats, o.Store = r.stats, r.store
	o.Clock = func() time.Time { return time.Unix(r.now, 0) }
	o.Caps = Caps{Descriptors: 256, Entries: 64, TextBytes: 64 << 10}
	r.Service = New(o)
	r.load(t, yaml)
	return r
}

// awaitStore makes the store one that may have to be waited for.
func (r *rig) awaitStore() { r.SetStore(struct{ counter.Store }{r.store}) }

func (r *rig) load(t testing.TB, yaml string) {
	t.Helper()
	r.loadWith(t, yaml, limits.Options{})
}

func (r *rig) loadWith(t testing.TB, yaml string, o limits.Options) {
	t.Helper()
	o.NearRatio, o.Stats = 0.8, r.stats
	yaml = rateLimit.ReplaceAllString(yaml, "rate_limit: {requests_per_unit: $1, unit: minute}")
	if !strings.Contains(yaml, "domain:") {
		yaml = "domain: d\ndescriptors: " + yaml
	}
	rules, _, err := rulefile.Load(context.Background(), []rulefile.File{{Name: "rules.yaml", Text: []byte(yaml)}},
		o)
	must.Succeed(t, err)
	r.SetRules(rules)
}

// call makes a request of its short form: "(k,v)(j,w)|(k,x)" are two descriptors.
func call(domain, descriptors string) *Call {
	c := &Call{}
	c.Request.Domain = domain
	for d := range strings.SplitSeq(descriptors, "|") {
		var out rls.Descriptor
		for e := range strings.SplitSeq(strings.Trim(d, "()"), ")(") {
			key, value, _ := strings.Cut(e, ",")
			out.Entries = append(out.Entries, rls.Entry{Key: key, Value: value})
		}
		c.Request.Descriptors = append(c.Request.Descriptors, out)
	}
	return c
}

// decide decides a request and renders the answer: the overall code, then each descriptor's code and what remains.
func (r *rig) decide(t testing.TB, c *Call) string {
	t.Helper()
	if err := r.Decide(t.Context(), c, r.Now()); err != nil {
		return err.Error()
	}
	out := c.Response.Overall.String() + ":"
	for _, s := range c.Response.Statuses {
		out += " " + s.Code.String()
		if s.HasLimit {
			out += fmt.Sprintf(" %d/%d", s.Remaining, s.PerUnit)
		}
	}
	return out
}

func (r *rig) expect(t testing.TB, c *Call, want string) {
	t.Helper()
	if got := r.decide(t, c); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func (r *rig) counters(prefix string) map[string]int64 {
	m := map[string]int64{}
	r.stats.Each(func(name string, kind stats.Kind, value int64) {
		if rest, ok := strings.CutPrefix(name, prefix); ok && value != 0 && kind == stats.KindCounter {
			m[rest] = value
		}
	})
	return m
}

func (r *rig) wantCounters(t testing.TB, prefix string, want map[string]int64) {
	t.Helper()
	if d := cmp.Diff(want, r.counters(prefix)); d != "" {
		t.Errorf("statistics below %s: want (-), got (+):\n%s", prefix, d)
	}
}

func TestCheck(t *testing.T) {
	r := newRig(t, `[{key: k, @1}]`, Options{})
	r.o.Caps = Caps{Descriptors: 2, Entries: 2, TextBytes: 4}
	f := func(change func(*rls.Request), want string) {
		t.Helper()
		c := call("d", "(k,v)")
		change(&c.Request)
		err := r.Decide(t.Context(), c, r.Now())
		refusal, ok := errors.AsType[*Refusal](err)
		if !ok || refusal.Kind != Invalid || refusal.Msg != want {
			t.Errorf("%v, want an Invalid refusal %q", err, want)
		}
	}
	f(func(r *rls.Request) { r.Domain = "" }, "rate limit domain must not be empty")
	f(func(r *rls.Request) { r.Domain, r.Descriptors = "", nil }, "rate limit domain must not be empty")
	f(func(r *rls.Request) { r.Descriptors = nil }, "rate limit descriptor list must not be empty")
	f(func(r *rls.Request) { r.Domain = "12345" }, "rate limit domain has 5 bytes, at most 4 are allowed")
	f(func(r *rls.Request) { r.Descriptors = make([]rls.Descriptor, 3) },
		"rate limit request has 3 descriptors, at most 2 are allowed")
	f(func(r *rls.Request) { r.Descriptors[0].Entries = make([]rls.Entry, 3) },
		"rate limit descriptor 0 has 3 entries, at most 2 are allowed")
	f(func(r *rls.Request) { r.Descriptors[0].Entries[0].Value = "12345" },
		"rate limit descriptor 0: entry 0 has a key of 1 and a value of 5 bytes, at most 4 each are allowed")
	f(func(r *rls.Request) { r.Descriptors[0].HasLimit = true },
		"rate limit descriptor 0: limit has unit 0, want 1 (SECOND) to 7 (WEEK)")
	f(func(r *rls.Request) { r.Descriptors[0].HasLimit, r.Descriptors[0].Limit.Unit = true, 8 },
		"rate limit descriptor 0: limit has unit 8, want 1 (SECOND) to 7 (WEEK)")
	f(func(r *rls.Request) { r.Descriptors[0].HasHits, r.Descriptors[0].Hits = true, 1<<63 },
		"rate limit descriptor 0: hits_addend is 9223372036854775808, at most 9223372036854775807 is allowed")
	if r.store.calls != 0 {
		t.Error("a refused request reached the store")
	}
	r.wantCounters(t, "ratelimit.service.call.should_rate_limit.", map[string]int64{
		"service_error": 10, "refused_no_domain": 2, "refused_no_descriptors": 1, "refused_domain_too_long": 1,
		"refused_too_many_descriptors": 1,
		"refused_too_many_entries":     1, "refused_text_too_long": 1, "refused_unknown_unit": 2,
		"refused_too_many_hits": 1,
	})
}

func TestDecide_withoutRules(t *testing.T) {
	s := New(Options{Store: memory.New(memory.Options{}), Stats: stats.NewRegistry(stats.Options{})})
	if err := s.Decide(t.Context(), call("d", "(k,v)"), s.Now()); err != ErrNoRules {
		t.Errorf("%v, want ErrNoRules", err)
	}
}

func TestDecide_hits(t *testing.T) {
	r := newRig(t, `[{key: k, @3}]`, Options{})
	huge := call("d", "(k,huge)")
	huge.Request.Descriptors[0].HasHits, huge.Request.Descriptors[0].Hits = true, math.MaxInt64
	r.expect(t, huge, "OVER_LIMIT: OVER_LIMIT 0/3")
	r.expect(t, huge, "OVER_LIMIT: OVER_LIMIT 0/3") // saturates, does not wrap

	r = newRig(t, `[{key: k, @3}]`, Options{})
	refund := call("d", "(k,v)")
	refund.Request.Descriptors[0].Negative = true
	r.expect(t, refund, "OK: OK 3/3") // floor 0
	for range 4 {
		r.decide(t, call("d", "(k,v)"))
	}
	r.expect(t, refund, "OK: OK 0/3")
	refund.Request.HitsAddend = 2
	r.expect(t, refund, "OK: OK 2/3")
	r.wantCounters(t, "ratelimit.service.rate_limit.d.k.total", map[string]int64{"_hits": 4}) // refunds are no hits
}

func TestDecide_windowAndMultiplier(t *testing.T) {
	r := newRig(t, `[{key: k, rate_limit: {requests_per_unit: 2, unit: minute, unit_multiplier: 5}}]`, Options{})
	c := call("d", "(k,v)")
	r.expect(t, c, "OK: OK 1/2")
	if st := c.Response.Statuses[0]; st.Reset != 300-testNow%300 || st.Unit != rls.Minute {
		t.Errorf("reset %d, unit %s", st.Reset, st.Unit)
	}
	r.expect(t, c, "OK: OK 0/2")
	r.now += 300 - testNow%300 - 1 // the window's last second
	r.expect(t, c, "OVER_LIMIT: OVER_LIMIT 0/2")
	if got := c.Response.Statuses[0].Reset; got != 1 {
		t.Errorf("reset %d in the last second, want 1", got)
	}
	r.now++
	r.expect(t, c, "OK: OK 1/2")
}

func TestDecide_unknownDomain(t *testing.T) {
	r := newRig(t, `[{key: k, @3}]`, Options{})
	r.expect(t, call("nobody", "(k,v)|(k,w)"), "OK: OK OK")
	r.wantCounters(t, "ratelimit.service.rate_limit.", map[string]int64{"nobody.domain_not_found": 2})

	r = newRig(t, `[{key: k, @3}]`, Options{DenyUnknown: true})
	c := call("nobody", "(k,v)|(k,w)")
	c.Request.Descriptors[1].HasLimit, c.Request.Descriptors[1].Limit = true, rls.Override{PerUnit: 5, Unit: rls.Day}
	r.expect(t, c, "OVER_LIMIT: OVER_LIMIT OVER_LIMIT")
	r.expect(t, call("d", "(x,v)"), "OK: OK") // a known domain without a matching rule stays open
	r.wantCounters(t, "ratelimit.service.rate_limit.", map[string]int64{"nobody.domain_not_found": 1})
}

// Unmatched descriptors of known domains are counted by domain, and only where that is configured.
func TestNoMatch(t *testing.T) {
	const rules = `[{key: k, value: a, @3}, {key: deep, descriptors: [{key: j, @3}]}, {key: open}]`
	c := call("d", "(k,a)|(k,b)|(x,y)|(deep,1)|(k,a)(j,1)|(open,1)|(own,1)")
	c.Request.Descriptors[6].HasLimit, c.Request.Descriptors[6].Limit = true, rls.Override{PerUnit: 5, Unit: rls.Day}
	c.Request.Descriptors = append(c.Request.Descriptors, rls.Descriptor{}) // without entries
	r := newRig(t, rules, Options{Settings: Settings{CountNoMatch: true}})
	r.expect(t, c, "OK: OK 2/3 OK OK OK OK OK OK 4/5 OK")
	r.expect(t, call("nobody", "(k,b)"), "OK: OK") // domain_not_found counts it
	r.wantCounters(t, stats.NoMatchPrefix, map[string]int64{"d": 5})
	r.store.err = errors.New("down")
	r.Decide(t.Context(), c, r.Now()) // the store has no part in it
	r.wantCounters(t, stats.NoMatchPrefix, map[string]int64{"d": 10})
	r.load(t, "domain: e.f\ndescriptors: [{key: k, @3}]")
	r.expect(t, call("e.f", "(x,y)"), "OK: OK")
	r.wantCounters(t, stats.NoMatchPrefix, map[string]int64{"d": 10, "e.f": 1})

	r = newRig(t, rules, Options{})
	r.expect(t, c, "OK: OK 2/3 OK OK OK OK OK OK 4/5 OK")
	r.wantCounters(t, stats.NoMatchPrefix, map[string]int64{})
}

// A descriptor beside entries that only exempt values is forgotten only if no rule decides another one of the request.
func TestNoMatch_exempt(t *testing.T) {
	f := func(rules, request string, want int64) {
		t.Helper()
		r := newRig(t, rules, Options{Settings: Settings{CountNoMatch: true}})
		r.decide(t, call("d", request))
		counts := map[string]int64{"d": want}
		if want == 0 {
			counts = map[string]int64{}
		}
		r.wantCounters(t, stats.NoMatchPrefix, counts)
	}
	const exempt = `[{key: net, cidr: [10.0.0.0/8], rate_limit: {unlimited: true}}, {key: net, value: vpn}, {key: k, @3}]`
	f(exempt, "(net,9.9.9.9)|(k,a)", 0)
	f(exempt, "(k,a)|(net,9.9.9.9)", 0)
	f(exempt, "(net,9.9.9.9)", 1)
	f(exempt, "(net,9.9.9.9)|(x,y)", 2)
	f(exempt, "(net,9.9.9.9)|(k,a)|(x,y)", 1)
	// An entry with a limit, or with nested entries, may be the one that was meant.
	f(`[{key: net, value: vpn}, {key: net, value: b, @3}, {key: k, @3}]`, "(net,9.9.9.9)|(k,a)", 1)
	f(`[{key: net, value: vpn, descriptors: [{key: j, @3}]}, {key: k, @3}]`, "(net,9.9.9.9)|(k,a)", 1)
}

// What the daemon's settings make of a verdict is reported next to it.
func TestExplain_modes(t *testing.T) {
	r := newRig(t, `[{key: k, @3}]`,
		Options{DenyUnknown: true, Settings: Settings{GlobalShadow: true, GlobalQuota: true}})
	x, err := r.Explain(t.Context(), "nobody", []rls.Entry{{Key: "k", Value: "v"}})
	must.Succeed(t, err)
	for _, part := range []string{"UNKNOWN_DOMAIN=deny", "SHADOW_MODE", "QUOTA_MODE"} {
		if !strings.Contains(x.Text(), part) {
			t.Errorf("no %s in\n%s", part, x.Text())
		}
	}
}

func TestOverLimitCache(t *testing.T) {
	r := newRig(t, `[{key: k, @2}, {key: s, @0, shadow_mode: true}]`, Options{OverLimit: overlimit.New(1 << 20)})
	for range 3 {
		r.decide(t, call("d", "(k,v)"))
	}
	calls := r.store.calls
	r.expect(t, call("d", "(k,v)"), "OVER_LIMIT: OVER_LIMIT 0/2")
	if r.store.calls != calls {
		t.Error("the store was asked about a counter known to be over its limit")
	}
	r.wantCounters(t, "ratelimit.service.rate_limit.d.k.", map[string]int64{
		"total_hits": 4, "within_limit": 2, "near_limit": 1, "over_limit": 2, "over_limit_with_local_cache": 1})

	look := call("d", "(k,v)")
	look.Request.Descriptors[0].HasHits = true
	r.expect(t, look, "OVER_LIMIT: OVER_LIMIT 0/2") // 3 > 2, known

	// An override shares the counter; what is known is judged against the limit it brings.
	wide := call("d", "(k,v)")
	wide.Request.Descriptors[0].HasLimit, wide.Request.Descriptors[0].Limit = true,
		rls.Override{PerUnit: 10, Unit: rls.Minute}
	r.expect(t, wide, "OK: OK 6/10")

	// A refund forgets.
	refund := call("d", "(k,v)")
	refund.Request.Descriptors[0].Negative, refund.Request.HitsAddend = true, 4
	r.expect(t, refund, "OK: OK 2/2")
	r.expect(t, call("d", "(k,v)"), "OK: OK 1/2")

	// A shadow rule enters it and stays OK.
	r.expect(t, call("d", "(s,v)"), "OK: OK 0/0")
	calls = r.store.calls
	r.expect(t, call("d", "(s,v)"), "OK: OK 0/0")
	if r.store.calls != calls {
		t.Error("the shadow rule's counter was not known")
	}

	// A reload with a higher limit shows at once.
	for range 3 {
		r.decide(t, call("d", "(k,v)"))
	}
	r.load(t, `[{key: k, @100}]`)
	r.expect(t, call("d", "(k,v)"), "OK: OK 96/100")
}

func TestOverLimitCache_endsWithTheWindow(t *testing.T) {
	r := newRig(t, `[{key: k, @0}]`, Options{OverLimit: overlimit.New(1 << 20)})
	r.expect(t, call("d", "(k,v)"), "OVER_LIMIT: OVER_LIMIT 0/0")
	r.now += 60
	calls := r.store.calls
	r.expect(t, call("d", "(k,v)"), "OVER_LIMIT: OVER_LIMIT 0/0")
	if r.store.calls == calls {
		t.Error("a new window was answered from the old one's counter")
	}
}

// h is limited to 2 an hour, n=v s to 1 a day.
const stopRules = `
- {key: h, rate_limit: {requests_per_unit: 2, unit: hour}}
- {key: n, value: v, descriptors: [{key: s, rate_limit: {requests_per_unit: 1, unit: day}}]}`

func TestStop(t *testing.T) {
	for _, cache := range []bool{false, true} {
		t.Run(fmt.Sprint("cache ", cache), func(t *testing.T) {
			o := Options{Settings: Settings{StopWhenOver: true}}
			if cache {
				o.OverLimit = overlimit.New(1 << 20)
			}
			r := newRig(t, "\n"+stopRules, o)
			const both = "(h,1)|(n,v)(s,1)"
			r.expect(t, call("d", both), "OK: OK 1/2 OK 0/1")
			for range 3 { // s is over; h is spared, and s itself does not grow
				r.expect(t, call("d", both), "OVER_LIMIT: OK 1/2 OVER_LIMIT 0/1")
			}
			for key, want := range map[string]int64{"d_h_1_1699999200": 1, "d_n_v_s_1_1699920000": 1} {
				if got, _ := countertest.Peek(t.Context(), r.store, key); got != want {
					t.Errorf("%s = %d, want %d", key, got, want)
				}
			}
			want := map[string]int64{"h.total_hits": 4, "h.within_limit": 4,
				"n_v.s.total_hits": 4, "n_v.s.within_limit": 1, "n_v.s.near_limit": 1, "n_v.s.over_limit": 3}
			if cache {
				want["n_v.s.over_limit_with_local_cache"] = 2
			}
			r.wantCounters(t, "ratelimit.service.rate_limit.d.", want)
		})
	}
}

func TestStop_cacheKnowsWhatIsStored(t *testing.T) {
	r := newRig(t, `[{key: k, @10}]`,
		Options{Settings: Settings{StopWhenOver: true}, OverLimit: overlimit.New(1 << 20)})
	many := call("d", "(k,v)")
	many.Request.HitsAddend = 8
	r.expect(t, many, "OK: OK 2/10")
	r.expect(t, many, "OVER_LIMIT: OVER_LIMIT 0/10") // 8 + 8: refused and not written
	r.expect(t, call("d", "(k,v)"), "OK: OK 1/10")   // so one more hit still fits

	twice := call("d", "(k,w)|(k,w)")
	twice.Request.HitsAddend = 6
	r.expect(t, twice, "OVER_LIMIT: OK 10/10 OVER_LIMIT 0/10") // the first is not written either
	once := call("d", "(k,w)")
	once.Request.HitsAddend = 6
	r.expect(t, once, "OK: OK 4/10")
}

// A limit of 0 holds the others back as a limit that is over does, refunds with them; a shadow limit never does.
func TestStop_limitOfZero(t *testing.T) {
	for _, zero := range []string{"fixed_window", "sliding_window", "token_bucket"} {
		r := newTimedRig(t, `[{key: z, rate_limit: {unit: day, requests_per_unit: 0, algorithm: `+zero+`}},
  {key: s, rate_limits: [{unit: day, requests_per_unit: 0, algorithm: `+zero+`, shadow_mode: true}]}, {key: k, @5}]`,
			Options{Settings: Settings{StopWhenOver: true}})
		r.expect(t, call("d", "(s,1)|(k,1)"), "OK: OK 0/0 OK 4/5")
		r.expect(t, call("d", "(z,1)|(k,1)"), "OVER_LIMIT: OVER_LIMIT 0/0 OK 4/5")
		back := call("d", "(z,1)|(k,1)")
		back.Request.Descriptors[1].Negative = true
		r.expect(t, back, "OVER_LIMIT: OVER_LIMIT 0/0 OK 4/5")
		three := call("d", "(z,1)|(k,1)|(k,1)")
		three.Request.HitsAddend = 3 // the first would fit, and the second not behind it
		r.expect(t, three, "OVER_LIMIT: OVER_LIMIT 0/0 OK 4/5 OVER_LIMIT 0/5")
		r.expect(t, call("d", "(k,1)"), "OK: OK 3/5")
	}
}

func TestStop_shadowRules(t *testing.T) {
	r := newRig(t, `[{key: s, @0, shadow_mode: true}, {key: k, @5}]`,
		Options{Settings: Settings{StopWhenOver: true}, OverLimit: overlimit.New(1 << 20)})
	r.expect(t, call("d", "(s,1)|(k,1)"), "OK: OK 0/0 OK 4/5")
	r.expect(t, call("d", "(s,1)|(k,1)"), "OK: OK 0/0 OK 3/5") // known to be over by now
}

func TestStoreFailure(t *testing.T) {
	down := fmt.Errorf("dial tcp 10.1.2.3: %w", counter.ErrUnavailable)
	const rules = `[{key: k, @5}, {key: z, @0}, {key: sh, @5, shadow_mode: true}, {key: u, rate_limit: {unlimited: true}}, {key: q, @0, quota_mode: true}]`
	f := func(mode limits.FailureMode, domain limits.FailureMode, err error, descriptors, want string) {
		t.Helper()
		yaml := rules
		if domain != limits.FailureUnset {
			yaml = "domain: d\non_store_failure: " + domain.String() + "\ndescriptors: " + rules
		}
		r := newRig(t, yaml, Options{OnStoreFailure: mode})
		r.store.err = err
		r.expect(t, call("d", descriptors), want)
	}
	const all = "(k,1)|(sh,1)|(u,1)|(x,1)"
	f(limits.FailureUnset, limits.FailureUnset, down, all, "rate limit store is unavailable")
	f(limits.FailureError, limits.FailureUnset, counter.ErrTimeout, all, "rate limit store did not answer in time")
	f(limits.FailureAllow, limits.FailureUnset, down, all, "OK: OK 0/5 OK 0/5 OK OK")
	f(limits.FailureDeny, limits.FailureUnset, down, all, "OVER_LIMIT: OVER_LIMIT 0/5 OK 0/5 OK OK")
	// The domain's own word wins.
	f(limits.FailureDeny, limits.FailureAllow, down, all, "OK: OK 0/5 OK 0/5 OK OK")
	f(limits.FailureAllow, limits.FailureError, down, all, "rate limit store is unavailable")
	// What needs no store is never an error.
	f(limits.FailureError, limits.FailureUnset, down, "(u,1)|(x,1)", "OK: OK OK")
	f(limits.FailureError, limits.FailureUnset, down, "(z,1)", "OVER_LIMIT: OVER_LIMIT 0/0")
	f(limits.FailureAllow, limits.FailureUnset, down, "(z,1)|(k,1)", "OVER_LIMIT: OVER_LIMIT 0/0 OK 0/5")
	// A quota rule at 0 settles nothing while another alternative is unknown.
	f(limits.FailureError, limits.FailureUnset, down, "(q,1)|(x,1)", "OVER_LIMIT: OVER_LIMIT 0/0 OK")
}

func TestStoreFailure_statistics(t *testing.T) {
	r := newRig(t, `[{key: k, @1}]`, Options{OnStoreFailure: limits.FailureAllow, OverLimit: overlimit.New(1 << 20)})
	for range 2 {
		r.decide(t, call("d", "(k,known)"))
	}
	for _, err := range []error{counter.ErrUnavailable, counter.ErrTimeout, counter.ErrBusy, counter.ErrFull,
		counter.ErrOpen, errors.New("anything")} {
		r.store.err = fmt.Errorf("kvstore: %w", err)
		// What the over-limit cache knows stays over, in every mode.
		r.expect(t, call("d", "(k,new)|(k,known)"), "OVER_LIMIT: OK 0/1 OVER_LIMIT 0/1")
	}
	r.wantCounters(t, "ratelimit.service.store_error.",
		map[string]int64{"unavailable": 2, "timeout": 1, "pool_empty": 1, "full": 1, "breaker_open": 1})
	r.wantCounters(t, "ratelimit.service.store_failure.", map[string]int64{"allow": 6})
	r.wantCounters(t, "ratelimit.service.call.should_rate_limit.", map[string]int64{"redis_error": 6})
	r.wantCounters(t, "ratelimit.service.rate_limit.d.k.", map[string]int64{
		"total_hits": 2 + 12, "within_limit": 1, "near_limit": 1, "over_limit": 1 + 6,
		"over_limit_with_local_cache": 6})
}

func TestGlobalShadow(t *testing.T) {
	r := newRig(t, `[{key: k, @0}]`, Options{Settings: Settings{GlobalShadow: true}})
	r.expect(t, call("d", "(k,v)"), "OK: OVER_LIMIT 0/0")
	r.wantCounters(t, "ratelimit.service.global_shadow", map[string]int64{"_mode": 1})
	r.wantCounters(t, "ratelimit.service.rate_limit.d.k.",
		map[string]int64{"total_hits": 1, "over_limit": 1, "shadow_mode": 1})
}

func TestRuntimeValuedStatistics(t *testing.T) {
	r := newRig(t, `[{key: k, detailed_metric: true, @5}]`, Options{})
	r.decide(t, call("d", "(k,10.0.0.1)"))
	override := call("d", "(who,ann)")
	override.Request.Descriptors[0].HasLimit, override.Request.Descriptors[0].Limit = true,
		rls.Override{PerUnit: 5, Unit: rls.Day}
	r.decide(t, override)
	r.wantCounters(t, "ratelimit.service.rate_limit.", map[string]int64{
		"d.k_10_0_0_1.total_hits": 1, "d.k_10_0_0_1.within_limit": 1,
		"d.who_ann.total_hits": 1, "d.who_ann.within_limit": 1})
}

// Bytes that are no UTF-8 are matched and counted as they are, and leave as \xNN in what must be UTF-8.
func TestBytes(t *testing.T) {
	r := newRig(t, "[{key: agent, @1, value_to_metric: true}, {key: valid, @1}]",
		Options{Settings: Settings{DynamicMetadata: true}})
	c := call("d", "(agent,bad\xffone)|(valid,x)")
	r.expect(t, c, "OK: OK 0/1 OK 0/1")
	r.expect(t, c, "OVER_LIMIT: OVER_LIMIT 0/1 OVER_LIMIT 0/1")
	r.expect(t, call("d", "(agent,bad\xfeone)"), "OK: OK 0/1") // another value
	entries := c.Response.Metadata.AsMap()["descriptors"].([]any)[0].(map[string]any)["entries"]
	if d := cmp.Diff([]any{`agent=bad\xffone`}, entries); d != "" {
		t.Errorf("metadata: want (-), got (+):\n%s", d)
	}
	if _, err := c.Response.Append(nil); err != nil {
		t.Errorf("the answer cannot be encoded: %v", err)
	}
	if got := r.counters("ratelimit.service.rate_limit.d.")[`agent_bad\xffone.over_limit`]; got != 1 {
		t.Errorf("over_limit of the value is %d, want 1: %v", got, r.counters("ratelimit.service.rate_limit.d."))
	}
	explained, err := r.Explain(t.Context(), "d", c.Request.Descriptors[0].Entries)
	must.Succeed(t, err)
	x := explained.Descriptors[0]
	text, err := json.Marshal(x)
	if err != nil || !bytes.Contains(text, []byte(`"value":"bad\\xffone"`)) ||
		!bytes.Contains(text, []byte(`"counter_key":"d_agent_bad\\xffone_1699999980"`)) {
		t.Errorf("explain: %v %s", err, text)
	}
	if !utf8.ValidString(x.Text()) {
		t.Errorf("explain's text is no UTF-8: %q", x.Text())
	}
	odd := call("no\xffdomain", "(a,1)")
	r.expect(t, odd, "OK: OK")
	if got := r.stats.Counter(`ratelimit.service.rate_limit.no\xffdomain.domain_not_found`).Value(); got != 1 {
		t.Errorf("domain_not_found is %d, want 1", got)
	}
}

// Each refused request is counted by its reason, and logged once a minute and reason.
func TestRefusals(t *testing.T) {
	var log bytes.Buffer
	r := newRig(t, "[{key: a, @1}]", Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	many := func(n int, with string) *Call { return call("d", strings.Repeat(with, n)+"(a,1)") }
	tooMany := call("d", "(a,1)")
	tooMany.Request.Descriptors[0].HasHits, tooMany.Request.Descriptors[0].Hits = true, math.MaxInt64+1
	unit := call("d", "(a,1)")
	unit.Request.Descriptors[0].HasLimit = true
	none := call("d", "(a,1)")
	none.Request.Descriptors = nil
	cut := call("d", "(a,1)") // within all settings, but not all of the request
	cut.Request.Cut = true
	for range 2 {
		for _, c := range []*Call{
			call("", "(a,1)"), none, call(strings.Repeat("d", 64<<10+1), "(a,1)"), many(256, "(a,1)|"),
			many(64, "(a,1)"), call("d", "(a,"+strings.Repeat("x", 64<<10+1)+")"), unit, tooMany, cut,
		} {
			if err := r.Decide(t.Context(), c, r.Now()); err == nil {
				t.Errorf("%.40v was not refused", c.Request)
			}
		}
	}
	r.NoteRefused(Malformed, errors.New("why"))
	for reason, want := range map[Reason]uint64{
		NoDomain: 2, NoDescriptors: 2, DomainTooLong: 2, TooManyDescriptors: 2, TooManyEntries: 4, TextTooLong: 2,
		UnknownUnit: 2, TooManyHits: 2, Malformed: 1, TooLong: 0,
	} {
		if got := r.stats.Counter(
			"ratelimit.service.call.should_rate_limit.refused_" + string(reason)).Value(); got != want {
			t.Errorf("refused_%s is %d, want %d", reason, got, want)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 9 {
		t.Errorf("%d lines, want one for each of 9 reasons:\n%s", n, &log)
	}
	r.now += 60
	r.NoteRefused(Malformed, errors.New("why"))
	if n := strings.Count(log.String(), "reason=malformed"); n != 2 {
		t.Errorf("%d lines of malformed requests after a minute, want 2", n)
	}
}

func TestMetadata(t *testing.T) {
	r := newRig(t, `
- {key: a, @1, metadata: {team: one, tags: {x: 1}, list: [1]}}
- {key: b, @5, metadata: {team: two, tags: {x: 2, y: 3}, list: [2]}}`,
		Options{Settings: Settings{DynamicMetadata: true}})
	c := call("d", "(a,1)|(b,1)")
	c.Request.HitsAddend = 1
	c.Request.Descriptors[1].HasHits, c.Request.Descriptors[1].Hits = true, 0
	for range 2 { // the second time shows that the first merge left the rules alone
		r.decide(t, c)
	}
	merged := map[string]any{"team": "two", "tags": map[string]any{"x": 2.0, "y": 3.0},
		"list": []any{2.0}} // a is over by now
	want := map[string]any{
		"domain": "d", "hitsAddend": 1.0,
		"descriptors": []any{
			map[string]any{"entries": []any{"a=1"}},
			map[string]any{"entries": []any{"b=1"}, "hitsAddend": 0.0},
		},
		"metadata": merged,
	}
	if d := cmp.Diff(want, c.Response.Metadata.AsMap()); d != "" {
		t.Errorf("want (-), got (+):\n%s", d)
	}
	r.now += 60
	r.decide(t, c)
	merged["team"], merged["tags"], merged["list"] = "one", map[string]any{"x": 1.0, "y": 3.0}, []any{1.0}
	if d := cmp.Diff(want, c.Response.Metadata.AsMap()); d != "" {
		t.Errorf("both pass: want (-), got (+):\n%s", d)
	}

	o := call("elsewhere", "(a,1)")
	o.Request.Descriptors[0].HasLimit, o.Request.Descriptors[0].Limit = true, rls.Override{PerUnit: 5, Unit: rls.Day}
	r.decide(t, o)
	want = map[string]any{"domain": "elsewhere",
		"descriptors": []any{map[string]any{"entries": []any{"a=1"}, "limit": "requests_per_unit:5 unit:DAY"}}}
	if d := cmp.Diff(want, o.Response.Metadata.AsMap()); d != "" {
		t.Errorf("override: want (-), got (+):\n%s", d)
	}
}

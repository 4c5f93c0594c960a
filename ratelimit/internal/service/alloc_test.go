//go:build !race

package service

import (
	"fmt"
	"strings"
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/rls"
	"gatehouse/shared/must"
)

// manyRules is n rules of two levels, one of them for (tenant,t<n/2>)(path,*).
func manyRules(n int) string {
	var b strings.Builder
	b.WriteString("[")
	for i := range n / 2 {
		fmt.Fprintf(&b,
			"{key: tenant, value: t%d, descriptors: [{key: path, @1000000}, {key: path, value: /admin, @10}]},", i)
	}
	return b.String() + "{key: k, @0}, {key: detailed, detailed_metric: true, @1000000}]"
}

func wire(t testing.TB, entries ...string) []byte {
	d := &ratelimitpb.RateLimitDescriptor{}
	for i := 0; i < len(entries); i += 2 {
		d.Entries = append(d.Entries, &ratelimitpb.RateLimitDescriptor_Entry{Key: entries[i], Value: entries[i+1]})
	}
	b, err := proto.Marshal(&pb.RateLimitRequest{Domain: "d", Descriptors: []*ratelimitpb.RateLimitDescriptor{d, d}})
	must.Succeed(t, err)
	return b
}

// TestAllocations: a decoded request to its encoded response allocates nothing once everything is warm.
func TestAllocations(t *testing.T) {
	testAllocations(t, Options{OverLimit: overlimit.New(1 << 20)})
}

// TestNoMatch_Allocations: nor does it with STATS_NO_MATCH.
func TestNoMatch_Allocations(t *testing.T) {
	testAllocations(t, Options{Settings: Settings{CountNoMatch: true}})
}

// TestObserve_Allocations: nor do requests that no tap takes, nor DEBUG_TOP_KEYS.
func TestObserve_Allocations(t *testing.T) {
	testAllocations(t, Options{Observe: observe.Settings{TopKeys: 10}}, observe.Filter{Domain: "e"},
		observe.Filter{Key: "absent"}, observe.Filter{Unmatched: true, Key: "absent"}, observe.Filter{Sample: 1e-18})
}

func testAllocations(t *testing.T, o Options, filters ...observe.Filter) {
	r := newRig(t, manyRules(1000), o)
	for _, f := range filters {
		must.Succeed(t, must.ErrOf(r.Observer().Listen(f)))
	}
	r.Service.clock = New(Options{Stats: r.stats}).clock // the real one: the rig's allocates
	var c Call
	out := make([]byte, 0, 1024)
	for name, b := range map[string][]byte{
		"counted":       wire(t, "tenant", "t250", "path", "/x"),
		"unmatched":     wire(t, "nothing", "here"),
		"known over":    wire(t, "k", "v"),
		"runtime value": wire(t, "detailed", "ann"),
	} {
		n := testing.AllocsPerRun(1000, func() {
			must.Succeed(t, c.Request.Unmarshal(b))
			must.Succeed(t, r.Decide(t.Context(), &c, r.Now()))
			var err error
			if out, err = c.Response.Append(out[:0]); err != nil || len(out) == 0 {
				t.Fatal(err)
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
}

// TestLimits_Allocations: nor do sliding windows, token buckets, lists, networks and calendars, passing or refused.
func TestLimits_Allocations(t *testing.T) {
	const rules = `
- {key: sliding, rate_limit: {unit: hour, requests_per_unit: 1000000, algorithm: sliding_window}}
- {key: bucket, rate_limit: {unit: hour, requests_per_unit: 1000000, algorithm: token_bucket}}
- {key: over, rate_limit: {unit: year, requests_per_unit: 1, algorithm: token_bucket}}
- {key: zero, rate_limit: {unit: hour, requests_per_unit: 0, algorithm: sliding_window}}
- {key: list, rate_limits: [{unit: hour, requests_per_unit: 1000000, algorithm: sliding_window}, {unit: day, requests_per_unit: 1000000}, {unit: day, requests_per_unit: 5, algorithm: token_bucket}]}
- {key: net, cidr: [10.0.0.0/8], prefix_length: {v4: 24}, rate_limit: {unit: hour, requests_per_unit: 1000000}}
- {key: calendar, rate_limit: {unit: month, requests_per_unit: 1000000, calendar: Europe/Berlin}}`
	for _, o := range []Options{{}, {OverLimit: overlimit.New(1 << 20)}, {Settings: Settings{StopWhenOver: true}}} {
		r := newRig(t, rules, o)
		r.Service.clock = New(Options{Stats: r.stats}).clock // the real one: the rig's allocates
		var c Call
		out := make([]byte, 0, 1024)
		for _, key := range []string{"sliding", "bucket", "over", "zero", "list", "net", "calendar"} {
			b := wire(t, key, "10.1.2.3")
			ask := func() {
				must.Succeed(t, c.Request.Unmarshal(b))
				if err := r.Decide(t.Context(), &c, r.Now()); err != nil || !c.Response.Statuses[0].HasLimit {
					t.Fatal(err, c.Response)
				}
				out, _ = c.Response.Append(out[:0])
			}
			if n := testing.AllocsPerRun(300, ask); n != 0 {
				t.Errorf("%s: %v allocations, want 0 (stop %v, cache %v)", key, n, o.StopWhenOver, o.OverLimit != nil)
			}
		}
	}
}

// BenchmarkMatchKeyDecide is the budget's "match + key + decide": two entries, no store, no decoding.
func BenchmarkMatchKeyDecide(b *testing.B) {
	for _, n := range []int{2, 10_000, 100_000} {
		b.Run(fmt.Sprint(n, " rules"), func(b *testing.B) {
			r := newRig(b, manyRules(n), Options{})
			r.SetStore(answers{})
			var c Call
			must.Succeed(b, c.Request.Unmarshal(wire(b, "tenant", fmt.Sprint("t", n/4), "path", "/x")))
			c.Request.Descriptors = c.Request.Descriptors[:1]
			rules := r.Rules()
			b.ReportAllocs()
			for b.Loop() {
				domain := rules.Domain("d")
				r.match(&c, rules, domain)
				r.planHits(&c, rules, testNow)
				r.judge(&c, testNow, nil)
				r.finish(&c)
				if c.Response.Overall != rls.OK || !c.Response.Statuses[0].HasLimit {
					b.Fatalf("%+v", c.Response)
				}
			}
		})
	}
}

// BenchmarkShow measures what observers cost a decision: none, a tap whose filter rejects it, a tap that takes it
// within its rate, and both lists.
func BenchmarkShow(b *testing.B) {
	taps := map[string][]observe.Filter{"refuses": {{Domain: "e"}}, "rate 100": {{Sample: 1, Rate: 100}}}
	for _, name := range []string{"nobody", "refuses", "rate 100", "recent and top"} {
		b.Run(name, func(b *testing.B) {
			var o Options
			if name == "recent and top" {
				o.Observe = observe.Settings{RecentSize: 1000, TopKeys: 1000}
			}
			r := newRig(b, manyRules(1000), o)
			for _, f := range taps[name] {
				must.Succeed(b, must.ErrOf(r.Observer().Listen(f)))
			}
			var c Call
			must.Succeed(b, c.Request.Unmarshal(wire(b, "tenant", "t250", "path", "/x")))
			must.Succeed(b, r.Decide(b.Context(), &c, r.Now()))
			b.ReportAllocs()
			for b.Loop() {
				if r.watched() {
					r.show(&c, nil)
				}
			}
		})
	}
}

// BenchmarkDecide is a request from the wire to the wire over the in-process store.
func BenchmarkDecide(b *testing.B) {
	r := newRig(b, manyRules(10_000), Options{OnStoreFailure: limits.FailureError})
	r.Service.clock = New(Options{Stats: r.stats}).clock
	in := wire(b, "tenant", "t250", "path", "/x")
	var c Call
	out := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		must.Succeed(b, c.Request.Unmarshal(in))
		if err := r.Decide(b.Context(), &c, r.Now()); err != nil || len(c.Response.Statuses) != 2 {
			b.Fatal(err)
		}
		out, _ = c.Response.Append(out[:0])
	}
}

// answers is a store that is not there: what it would cost is not what is measured.
type answers struct{ counter.Store }

package server

import (
	"fmt"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/service"
)

// TestVectors runs the cases of docs/statistics.md#what-a-hit-counts-as through a real gRPC server, on every store:
// a first request brings the counter to before, a second one is judged.
func TestVectors(t *testing.T) {
	type vector struct {
		limit, before, hits uint64
		code                string
		remaining           uint64
		over, near, within  int64
		ratio               float32
	}
	vectors := []vector{
		{10, 0, 1, "OK", 9, 0, 0, 1, 0.8},
		{10, 7, 1, "OK", 2, 0, 0, 1, 0.8},
		{10, 8, 1, "OK", 1, 0, 1, 1, 0.8},
		{10, 9, 1, "OK", 0, 0, 1, 1, 0.8},
		{10, 6, 3, "OK", 1, 0, 1, 3, 0.8},
		{10, 8, 2, "OK", 0, 0, 2, 2, 0.8},
		{10, 7, 5, "OVER_LIMIT", 0, 2, 2, 0, 0.8},
		{10, 9, 5, "OVER_LIMIT", 0, 4, 1, 0, 0.8},
		{10, 0, 20, "OVER_LIMIT", 0, 10, 2, 0, 0.8},
		{10, 10, 1, "OVER_LIMIT", 0, 1, 0, 0, 0.8},
		{10, 10, 0, "OK", 0, 0, 0, 0, 0.8},
		{10, 11, 0, "OVER_LIMIT", 0, 0, 0, 0, 0.8},
		{0, 0, 3, "OVER_LIMIT", 0, 3, 0, 0, 0.8},
		{15, 12, 1, "OK", 2, 0, 1, 1, 0.8},
		// Single precision: T is 63, 29, 57, 62 and 52 here, and not what doubles or decimals give.
		{90, 62, 1, "OK", 27, 0, 0, 1, 0.7},
		{90, 63, 1, "OK", 26, 0, 1, 1, 0.7},
		{100, 28, 1, "OK", 71, 0, 0, 1, 0.29},
		{100, 56, 1, "OK", 43, 0, 0, 1, 0.57},
		{75, 62, 1, "OK", 12, 0, 1, 1, 0.84},
		{100, 52, 1, "OK", 47, 0, 1, 1, 0.53},
	}
	for _, b := range backends {
		for _, v := range vectors {
			t.Run(fmt.Sprintf("%s/%d/%d+%d", b.name, v.limit, v.before, v.hits), func(t *testing.T) {
				t.Parallel()
				store, _ := b.open(t)
				r := newRig(t, service.Options{Store: store},
					limits.Options{Settings: limits.Settings{NearRatio: v.ratio}},
					short(fmt.Sprintf("[{key: k, @%d/m}]", v.limit)))
				r.ask(t, changed(descriptorHits(v.before), req("d", "(k,v)")))
				before := r.counters("ratelimit.service.rate_limit.d.k.")
				got := describe(r.ask(t, changed(descriptorHits(v.hits), req("d", "(k,v)"))))
				want := fmt.Sprintf("%s %d/%d MINUTE 40s", v.code, v.remaining, v.limit)
				if d := cmp.Diff([]string{v.code, want}, got); d != "" {
					t.Errorf("want (-), got (+):\n%s", d)
				}
				after := r.counters("ratelimit.service.rate_limit.d.k.")
				for name, want := range map[string]int64{"total_hits": int64(v.hits), "over_limit": v.over,
					"near_limit":   v.near,
					"within_limit": v.within} {
					if got := after[name] - before[name]; got != want {
						t.Errorf("%s grew by %d, want %d", name, got, want)
					}
				}
			})
		}
	}
}

func changed(change func(*pb.RateLimitRequest), r *pb.RateLimitRequest) *pb.RateLimitRequest {
	change(r)
	return r
}

// TestStores holds that what is more than one increment is the same on every store too: refunds, the
// stop option, the same descriptor twice, the biggest numbers.
func TestStores(t *testing.T) {
	refund := func(n uint64) func(*pb.RateLimitRequest) {
		return func(r *pb.RateLimitRequest) {
			descriptorHits(n)(r)
			r.Descriptors[0].IsNegativeHits = true
		}
	}
	const stopRules = `[{key: h, @2/h}, {key: n, value: v, descriptors: [{key: s, @1/d}]}]`
	more := []example{
		{n: 101, yaml: `[{key: k, @5/m}]`,
			asks: []ask{
				with(hits(4), "(k,v)", "OK", "OK 1/5 MINUTE 40s"),
				with(refund(3), "(k,v)", "OK", "OK 4/5 MINUTE 40s"),
				with(refund(100), "(k,v)", "OK", "OK 5/5 MINUTE 40s"),
				one("(k,v)", "OK", "OK 4/5 MINUTE 40s"),
			},
			keys: map[string]int64{"d_k_v" + window: 1}, metric: []string{"d.k"}},
		{n: 102, yaml: stopRules, service: service.Options{Settings: service.Settings{StopWhenOver: true}},
			asks: []ask{
				one("(h,1)|(n,v)(s,1)", "OK", "OK 1/2 HOUR 2800s", "OK 0/1 DAY 6400s"),
				one("(h,1)|(n,v)(s,1)", "OVER_LIMIT", "OK 1/2 HOUR 2800s", "OVER_LIMIT 0/1 DAY 6400s"),
				one("(h,1)|(n,v)(s,1)", "OVER_LIMIT", "OK 1/2 HOUR 2800s", "OVER_LIMIT 0/1 DAY 6400s"),
				one("(h,1)", "OK", "OK 0/2 HOUR 2800s"),
				one("(h,1)|(n,v)(s,2)", "OVER_LIMIT", "OVER_LIMIT 0/2 HOUR 2800s", "OK 1/1 DAY 6400s"),
			},
			keys:   map[string]int64{"d_h_1_1699999200": 2, "d_n_v_s_1_1699920000": 1},
			metric: []string{"d.h", "d.n_v.s"}},
		{n: 103, yaml: `[{key: k, @3/m}]`, service: service.Options{Settings: service.Settings{StopWhenOver: true}},
			asks: []ask{one("(k,x)|(k,x)|(k,x)", "OK", "OK 2/3 MINUTE 40s", "OK 1/3 MINUTE 40s", "OK 0/3 MINUTE 40s")},
			keys: map[string]int64{"d_k_x" + window: 3}, metric: []string{"d.k"}},
		{n: 104, yaml: `[{key: k, @3/m}, {key: sh, @0/m, shadow_mode: true}]`,
			service: service.Options{Settings: service.Settings{StopWhenOver: true}},
			asks:    []ask{one("(k,x)|(sh,x)", "OK", "OK 2/3 MINUTE 40s", "OK 0/0 MINUTE 40s")},
			// what goes over is never written
			keys: map[string]int64{"d_k_x" + window: 1}, metric: []string{"d.k", "d.sh"}},
		{n: 105, yaml: `[{key: k, @3/m}]`,
			asks: []ask{
				with(descriptorHits(1<<63-1), "(k,x)", "OVER_LIMIT", "OVER_LIMIT 0/3 MINUTE 40s"),
				with(descriptorHits(1<<63-1), "(k,x)", "OVER_LIMIT", "OVER_LIMIT 0/3 MINUTE 40s"),
				one("(k,x)", "OVER_LIMIT", "OVER_LIMIT 0/3 MINUTE 40s"),
			},
			keys: map[string]int64{"d_k_x" + window: 1<<63 - 1}, metric: []string{"d.k"}},
		{n: 106, yaml: `[{key: k, rate_limit: {requests_per_unit: 2, unit: minute, unit_multiplier: 10}}]`,
			asks: []ask{one("(k,x)", "OK", "OK 1/2 MINUTE 400s")},
			keys: map[string]int64{"d_k_x_1699999800": 1}, metric: []string{"d.k"}},
		{n: 108, yaml: `[{key: k, rate_limit: {requests_per_unit: 2, unit: year, unit_multiplier: 4294967295}}]`,
			asks: []ask{one("(k,x)", "OK", "OK 1/2 YEAR 315576000000s"),
				one("(k,x)", "OK", "OK 0/2 YEAR 315576000000s"),
				one("(k,x)", "OVER_LIMIT", "OVER_LIMIT 0/2 YEAR 315576000000s")},
			keys: map[string]int64{"d_k_x_0": 3}, metric: []string{"d.k"}},
		{n: 107, yaml: `[{key: "k", @2/m}]`, limits: limits.Options{Settings: limits.Settings{KeyPrefix: "pre:"}},
			asks: []ask{one("(k, a b\n)", "OK", "OK 1/2 MINUTE 40s")},
			keys: map[string]int64{"pre:d_k_ a b\n" + window: 1}, metric: []string{"d.k"}},
	}
	for _, b := range backends {
		for _, e := range more {
			t.Run(fmt.Sprint(b.name, "/", e.n), func(t *testing.T) {
				t.Parallel()
				runExample(t, b, e)
			})
		}
	}
}

package server

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/service"
)

// rateLimit lets tests write @5/m for a rate_limit of 5 per minute.
var rateLimit = regexp.MustCompile(`@(\d+)/([smhdwMy])`)

var unitOf = map[string]string{"s": "second", "m": "minute", "h": "hour", "d": "day", "w": "week", "M": "month",
	"y": "year"}

func short(yaml string) string {
	return rateLimit.ReplaceAllStringFunc(yaml, func(s string) string {
		m := rateLimit.FindStringSubmatch(s)
		return fmt.Sprintf("rate_limit: {requests_per_unit: %s, unit: %s}", m[1], unitOf[m[2]])
	})
}

// example is a configuration and what it makes of requests, one after the other.
type example struct {
	n      int
	yaml   string
	asks   []ask
	keys   map[string]int64 // every counter afterwards
	metric []string         // every rule key with hits afterwards

	service service.Options
	limits  limits.Options
	stats   map[string]int64
}

// ask is one request and its answer: overall code, then one text per descriptor.
type ask struct {
	domain, descriptors string
	change              func(*pb.RateLimitRequest)
	overall             string
	statuses            []string
}

func one(descriptors, overall string, statuses ...string) ask {
	return ask{"d", descriptors, nil, overall, statuses}
}

func with(change func(*pb.RateLimitRequest), descriptors, overall string, statuses ...string) ask {
	return ask{"d", descriptors, change, overall, statuses}
}

func hits(n uint32) func(*pb.RateLimitRequest) {
	return func(r *pb.RateLimitRequest) { r.HitsAddend = n }
}

func descriptorHits(n uint64) func(*pb.RateLimitRequest) {
	return func(r *pb.RateLimitRequest) { r.Descriptors[0].HitsAddend = wrapperspb.UInt64(n) }
}

func override(n uint32, unit int32) func(*pb.RateLimitRequest) {
	return func(r *pb.RateLimitRequest) {
		r.Descriptors[0].Limit = &ratelimitpb.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: n, Unit: ratelimitTypeUnit(unit),
		}
	}
}

const none, free = "OK", "OK rem 4294967295"

const window = "_1699999980" // the minute of exampleNow

// examples go from matching over sharing, replacing and own limits to hits, shadow and quota. Statuses are
// written "OK 9/10 MINUTE 40s".
var examples = []example{
	{n: 1, yaml: `[{key: k, @10/m}]`, asks: []ask{one("(k,v)", "OK", "OK 9/10 MINUTE 40s")},
		keys: map[string]int64{"d_k_v" + window: 1}, metric: []string{"d.k"}},
	{n: 2, yaml: `[{key: k, @10/m}]`, asks: []ask{one("(k,)", "OK", "OK 9/10 MINUTE 40s")},
		keys: map[string]int64{"d_k_" + window: 1}, metric: []string{"d.k"}},
	{n: 3, yaml: `[{key: k, @10/m}]`, asks: []ask{one("(x,v)", "OK", none)}},
	{n: 4, yaml: `[{key: k, @10/m}]`, asks: []ask{one("(k,v)(j,w)", "OK", none)}},
	{n: 5, yaml: `[{key: k, value: v, @5/m}, {key: k, @10/m}]`, asks: []ask{one("(k,v)", "OK", "OK 4/5 MINUTE 40s")},
		keys: map[string]int64{"d_k_v" + window: 1}, metric: []string{"d.k_v"}},
	{n: 6, yaml: `[{key: k, value: v, @5/m}, {key: k, @10/m}]`, asks: []ask{one("(k,V)", "OK", "OK 9/10 MINUTE 40s")},
		keys: map[string]int64{"d_k_V" + window: 1}, metric: []string{"d.k"}},
	{n: 7, yaml: `[{key: k, value: ok}, {key: k, @10/m}]`,
		asks: []ask{one("(k,ok)|(k,no)", "OK", none, "OK 9/10 MINUTE 40s")},
		keys: map[string]int64{"d_k_no" + window: 1}, metric: []string{"d.k"}},
	{n: 8, yaml: nested, asks: []ask{one("(a,b)(c,y)", "OK", "OK 2/3 MINUTE 40s")},
		keys: map[string]int64{"d_a_b_c_y" + window: 1}, metric: []string{"d.a_b.c"}},
	{n: 9, yaml: nested, asks: []ask{one("(a,b)(c,x)", "OK", "OK 3/4 MINUTE 40s")},
		keys: map[string]int64{"d_a_b_c_x" + window: 1}, metric: []string{"d.a_b.c_x"}},
	{n: 10, yaml: nested, asks: []ask{one("(a,b)|(c,x)|(c,x)(a,b)|(a,z)(c,x)|(a,b)(c,x)(e,f)", "OK", none, none, none,
		none, none)}}, {n: 11, yaml: `[{key: a, @1/m, descriptors: [{key: c, @3/m}]}]`,
		asks:   []ask{one("(a,1)|(a,1)(c,2)|(a,1)(z,2)", "OK", "OK 0/1 MINUTE 40s", "OK 2/3 MINUTE 40s", none)},
		keys:   map[string]int64{"d_a_1" + window: 1, "d_a_1_c_2" + window: 1},
		metric: []string{"d.a", "d.a.c"}},
	{n: 12, yaml: `[{key: a, value: v, descriptors: [{key: x, @1/m}]}, {key: a, descriptors: [{key: y, @2/m}]}]`,
		asks: []ask{one("(a,v)(y,1)|(a,w)(y,1)", "OK", none, "OK 1/2 MINUTE 40s")},
		keys: map[string]int64{"d_a_w_y_1" + window: 1}, metric: []string{"d.a.y"}},
	{n: 13, yaml: wild, asks: []ask{one("(w,abc)", "OK", "OK 2/3 MINUTE 40s")},
		keys: map[string]int64{"d_w_abc" + window: 1}, metric: []string{"d.w_abc"}},
	{n: 14, yaml: wild, asks: []ask{one("(w,abd)", "OK", "OK 0/1 MINUTE 40s")},
		keys: map[string]int64{"d_w_abd" + window: 1}, metric: []string{"d.w_a*"}},
	{n: 15, yaml: wild, asks: []ask{one("(w,a)", "OK", "OK 0/1 MINUTE 40s")},
		keys: map[string]int64{"d_w_a" + window: 1}, metric: []string{"d.w_a*"}},
	{n: 16, yaml: wild, asks: []ask{one("(w,zzz)", "OK", "OK 3/4 MINUTE 40s")},
		keys: map[string]int64{"d_w_zzz" + window: 1}, metric: []string{"d.w"}},
	{n: 17, yaml: `[{key: w, value: "ab*", @2/m}, {key: w, value: "a*", @1/m}]`,
		asks:   []ask{one("(w,abd)|(w,ax)|(w,b)", "OK", "OK 1/2 MINUTE 40s", "OK 0/1 MINUTE 40s", none)},
		keys:   map[string]int64{"d_w_abd" + window: 1, "d_w_ax" + window: 1},
		metric: []string{"d.w_a*", "d.w_ab*"}},
	{n: 18, yaml: `[{key: p, value: "/api/*/x", @1/m}]`,
		asks: []ask{one("(p,/api/1/x)|(p,/api//x)|(p,/api/1/2/x)", "OK", "OK 0/1 MINUTE 40s", "OK 0/1 MINUTE 40s",
			"OK 0/1 MINUTE 40s")},
		keys:   map[string]int64{"d_p_/api/1/x" + window: 1, "d_p_/api//x" + window: 1, "d_p_/api/1/2/x" + window: 1},
		metric: []string{"d.p_/api/*/x"}},
	{n: 19, yaml: `[{key: p, value: "/api/*/x", @1/m}]`, asks: []ask{one("(p,/api/x)", "OK", none)}},
	{n: 20, yaml: `[{key: q, value: "*", @2/m}]`,
		asks: []ask{one("(q,)|(q,zz)", "OK", "OK 1/2 MINUTE 40s", "OK 1/2 MINUTE 40s")},
		keys: map[string]int64{"d_q_" + window: 1, "d_q_zz" + window: 1}, metric: []string{"d.q_*"}},
	{n: 21, yaml: `[{key: r, value: "*end", @3/m}]`,
		asks: []ask{one("(r,end)|(r,theend)|(r,ends)", "OK", "OK 2/3 MINUTE 40s", "OK 2/3 MINUTE 40s", none)},
		keys: map[string]int64{"d_r_end" + window: 1, "d_r_theend" + window: 1}, metric: []string{"d.r_*end"}},
	{n: 22, yaml: `[{key: s, value: "a*b*a", @4/m}]`,
		asks: []ask{one("(s,aba)|(s,a1b2a)|(s,aa)|(s,aab)", "OK", "OK 3/4 MINUTE 40s", "OK 3/4 MINUTE 40s", none,
			none)},
		keys: map[string]int64{"d_s_aba" + window: 1, "d_s_a1b2a" + window: 1}, metric: []string{"d.s_a*b*a"}},
	{n: 23, yaml: `[{key: x, value: "aa*aa", @6/m}]`,
		asks: []ask{one("(x,aaaa)|(x,aaa)", "OK", "OK 5/6 MINUTE 40s", none)},
		keys: map[string]int64{"d_x_aaaa" + window: 1}, metric: []string{"d.x_aa*aa"}},
	{n: 24, yaml: `[{key: w, value: "a*", descriptors: [{key: n, @1/m}]}, {key: w, @9/m}]`,
		asks:   []ask{one("(w,ab)|(w,ab)(n,1)|(w,b)", "OK", none, "OK 0/1 MINUTE 40s", "OK 8/9 MINUTE 40s")},
		keys:   map[string]int64{"d_w_ab_n_1" + window: 1, "d_w_b" + window: 1},
		metric: []string{"d.w", "d.w_a*.n"}},
	{n: 25, yaml: `[{key: f, value: "f/*", @2/m, share_threshold: true}]`,
		asks: []ask{one("(f,f/1)", "OK", "OK 1/2 MINUTE 40s"), one("(f,f/2)", "OK", "OK 0/2 MINUTE 40s"),
			one("(f,f/3)", "OVER_LIMIT", "OVER_LIMIT 0/2 MINUTE 40s")},
		keys: map[string]int64{"d_f_f/*" + window: 3}, metric: []string{"d.f_f/"}},
	{n: 26, yaml: `[{key: g, value: "g/*", @2/m}]`,
		asks: []ask{one("(g,g/1)", "OK", "OK 1/2 MINUTE 40s"), one("(g,g/2)", "OK", "OK 1/2 MINUTE 40s")},
		keys: map[string]int64{"d_g_g/1" + window: 1, "d_g_g/2" + window: 1}, metric: []string{"d.g_g/*"}},
	{n: 27, yaml: `[{key: f, value: "f/*", share_threshold: true, descriptors: [{key: m, @1/m}]}]`,
		asks: []ask{one("(f,f/1)(m,GET)", "OK", "OK 0/1 MINUTE 40s"),
			one("(f,f/2)(m,GET)", "OVER_LIMIT", "OVER_LIMIT 0/1 MINUTE 40s")},
		keys: map[string]int64{"d_f_f/*_m_GET" + window: 2}, metric: []string{"d.f_f/.m"}},
	{n: 28, yaml: `[{key: k, @0/m}]`, asks: []ask{one("(k,v)", "OVER_LIMIT", "OVER_LIMIT 0/0 MINUTE 40s")},
		keys: map[string]int64{"d_k_v" + window: 1}, metric: []string{"d.k"}},
	{n: 29, yaml: `[{key: u, rate_limit: {unlimited: true}}]`, asks: []ask{one("(u,1)", "OK", free)},
		metric: []string{"d.u"}},
	{n: 30, yaml: `[{key: v, rate_limit: {unlimited: true}, descriptors: [{key: x, @1/m}]}]`,
		asks: []ask{one("(v,1)(x,1)", "OK", "OK 0/1 MINUTE 40s")},
		keys: map[string]int64{"d_v_1_x_1" + window: 1}, metric: []string{"d.v.x"}},
	{n: 31, yaml: replaces, asks: []ask{one("(a,1)|(b,1)", "OK", none, "OK 9/10 MINUTE 40s")},
		keys: map[string]int64{"d_b_1" + window: 1}, metric: []string{"d.b"}},
	{n: 32, yaml: replaces, asks: []ask{one("(a,1)", "OK", "OK n1 4/5 MINUTE 40s")},
		keys: map[string]int64{"d_a_1" + window: 1}, metric: []string{"d.a"}},
	{n: 33, yaml: `
- {key: m1, rate_limit: {requests_per_unit: 1, unit: minute, name: x1, replaces: [{name: x2}]}}
- {key: m2, rate_limit: {requests_per_unit: 1, unit: minute, name: x2, replaces: [{name: x1}]}}`,
		asks: []ask{one("(m1,1)|(m2,1)", "OK", none, none)}},
	{n: 34, yaml: `
- {key: u, rate_limit: {unlimited: true, name: n3}}
- {key: v, rate_limit: {requests_per_unit: 2, unit: minute, replaces: [{name: n3}]}}`,
		asks: []ask{one("(u,1)|(v,1)", "OK", free, "OK 1/2 MINUTE 40s")},
		keys: map[string]int64{"d_v_1" + window: 1}, metric: []string{"d.u", "d.v"}},
	{n: 35, yaml: `
- {key: a, rate_limit: {requests_per_unit: 5, unit: minute, name: n1}}
- {key: u, rate_limit: {unlimited: true, replaces: [{name: n1}]}}`,
		asks: []ask{one("(a,1)|(u,1)", "OK", none, free)}, metric: []string{"d.u"}},
	{n: 36, yaml: `[{key: k, @10/m}]`, asks: []ask{with(override(2, 5), "(foo,a)", "OK", "OK 1/2 MONTH 352000s")},
		keys: map[string]int64{"d_foo_a_1697760000": 1}, metric: []string{"d.foo_a"}},
	{n: 37, yaml: `[{key: k, @10/m}]`,
		asks: []ask{{"other", "(foo,a)", override(0, 4), "OVER_LIMIT", []string{"OVER_LIMIT 0/0 DAY 6400s"}}},
		keys: map[string]int64{"other_foo_a_1699920000": 1}, metric: []string{"other.foo_a"},
		stats: map[string]int64{"other.foo_a.total_hits": 1, "other.foo_a.over_limit": 1}},
	{n: 38, yaml: `[{key: k, @3/m}]`, asks: []ask{with(hits(5), "(k,v)", "OVER_LIMIT", "OVER_LIMIT 0/3 MINUTE 40s")},
		keys: map[string]int64{"d_k_v" + window: 5}, metric: []string{"d.k"},
		stats: map[string]int64{"d.k.total_hits": 5, "d.k.over_limit": 2, "d.k.near_limit": 1}},
	{n: 39, yaml: `[{key: k, @3/m}]`, asks: []ask{with(descriptorHits(0), "(k,v)", "OK", "OK 3/3 MINUTE 40s")}},
	{n: 40, yaml: `[{key: k, @3/m}]`, asks: []ask{with(func(r *pb.RateLimitRequest) {
		hits(5)(r)
		descriptorHits(2)(r)
	},
		"(k,v)", "OK", "OK 1/3 MINUTE 40s")}, keys: map[string]int64{"d_k_v" + window: 2}, metric: []string{"d.k"}},
	{n: 41, yaml: `[{key: k, @3/m}]`, asks: []ask{one("(k,x)|(k,x)", "OK", "OK 2/3 MINUTE 40s", "OK 1/3 MINUTE 40s")},
		keys: map[string]int64{"d_k_x" + window: 2}, metric: []string{"d.k"}},
	{n: 42, yaml: `[{key: sh, @0/m, shadow_mode: true}, {key: v, @2/m}]`,
		asks:   []ask{one("(sh,1)|(v,1)", "OK", "OK 0/0 MINUTE 40s", "OK 1/2 MINUTE 40s")},
		keys:   map[string]int64{"d_sh_1" + window: 1, "d_v_1" + window: 1},
		metric: []string{"d.sh", "d.v"},
		stats: map[string]int64{"d.sh.total_hits": 1, "d.sh.over_limit": 1, "d.sh.shadow_mode": 1,
			"d.v.total_hits": 1, "d.v.within_limit": 1}},
	{n: 43, yaml: `[{key: q1, @1/m, quota_mode: true}, {key: q2, @2/m, quota_mode: true}]`,
		asks: []ask{
			one("(q1,a)|(q2,a)", "OK", "OK 0/1 MINUTE 40s", "OK 1/2 MINUTE 40s"),
			one("(q1,a)|(q2,a)", "OK", "OVER_LIMIT 0/1 MINUTE 40s", "OK 0/2 MINUTE 40s"),
			one("(q1,a)|(q2,a)", "OVER_LIMIT", "OVER_LIMIT 0/1 MINUTE 40s", "OVER_LIMIT 0/2 MINUTE 40s"),
			one("(q1,a)|(q2,a)", "OVER_LIMIT", "OVER_LIMIT 0/1 MINUTE 40s", "OVER_LIMIT 0/2 MINUTE 40s"),
		},
		keys: map[string]int64{"d_q1_a" + window: 4, "d_q2_a" + window: 4}, metric: []string{"d.q1", "d.q2"}},
	{n: 44, yaml: `[{key: q, @0/m, quota_mode: true}, {key: v, @2/m}]`,
		asks: []ask{one("(q,1)|(v,1)", "OVER_LIMIT", "OVER_LIMIT 0/0 MINUTE 40s", "OK 1/2 MINUTE 40s")},
		keys: map[string]int64{"d_q_1" + window: 1, "d_v_1" + window: 1}, metric: []string{"d.q", "d.v"}},
	{n: 45, yaml: `[{key: k, descriptors: [{key: k, @2/m}]}]`,
		asks: []ask{one("(k,a)(k,b)|(k,a)", "OK", "OK 1/2 MINUTE 40s", none)},
		keys: map[string]int64{"d_k_a_k_b" + window: 1}, metric: []string{"d.k.k"}},
	{n: 46, yaml: `[{key: s, @1/s}]`, asks: []ask{one("(s,1)", "OK", "OK 0/1 SECOND 1s")},
		keys: map[string]int64{"d_s_1_1700000000": 1}, metric: []string{"d.s"}},
	{n: 47, yaml: `[{key: y, @1/y}]`, asks: []ask{one("(y,1)", "OK", "OK 0/1 YEAR 2944000s")},
		keys: map[string]int64{"d_y_1_1671408000": 1}, metric: []string{"d.y"}},
	{n: 48, yaml: collision, asks: []ask{one("(a,x_b_y)", "OK", "OK 0/1 MINUTE 40s"),
		one("(a,x)(b,y)", "OVER_LIMIT", "OVER_LIMIT 0/1 MINUTE 40s")},
		keys: map[string]int64{"d_a_x_b_y" + window: 2}, metric: []string{"d.a", "d.a.b"}},
	{n: 48, yaml: collision, limits: limits.Options{EscapedKeys: true},
		asks:   []ask{one("(a,x_b_y)", "OK", "OK 0/1 MINUTE 40s"), one("(a,x)(b,y)", "OK", "OK 0/1 MINUTE 40s")},
		keys:   map[string]int64{"d|a=x_b_y|m1|1699999980": 1, "d|a=x|b=y|m1|1699999980": 1},
		metric: []string{"d.a", "d.a.b"}},
	{n: 49, yaml: `[{key: k, @3/m}]`, service: service.Options{Settings: service.Settings{GlobalShadow: true}},
		asks: []ask{with(hits(5), "(k,v)", "OK", "OVER_LIMIT 0/3 MINUTE 40s")},
		keys: map[string]int64{"d_k_v" + window: 5}, metric: []string{"d.k"},
		stats: map[string]int64{"d.k.total_hits": 5, "d.k.over_limit": 2, "d.k.near_limit": 1, "d.k.shadow_mode": 2}},
	{n: 50, yaml: `[{key: z, @0/m}]`, service: service.Options{Settings: service.Settings{GlobalQuota: true}},
		asks: []ask{one("(z,1)|(none,1)", "OK", "OVER_LIMIT 0/0 MINUTE 40s", none),
			one("(z,1)", "OVER_LIMIT", "OVER_LIMIT 0/0 MINUTE 40s")},
		keys: map[string]int64{"d_z_1" + window: 2}, metric: []string{"d.z"}},
}

const (
	nested   = `[{key: a, value: b, descriptors: [{key: c, @3/m}, {key: c, value: x, @4/m}]}]`
	wild     = `[{key: w, value: "a*", @1/m}, {key: w, value: "ab*", @2/m}, {key: w, value: abc, @3/m}, {key: w, @4/m}]`
	replaces = `
- {key: a, rate_limit: {requests_per_unit: 5, unit: minute, name: n1}}
- {key: b, rate_limit: {requests_per_unit: 10, unit: minute, replaces: [{name: n1}]}}`
	collision = `[{key: a, @1/m, descriptors: [{key: b, @1/m}]}]`
)

// TestExamples runs every worked example through a real gRPC server, on every store: the answers,
// the counters left behind and the metric keys are the same on all.
func TestExamples(t *testing.T) {
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			for _, e := range examples {
				t.Run(fmt.Sprint(e.n), func(t *testing.T) {
					t.Parallel()
					runExample(t, b, e)
				})
			}
		})
	}
}

func runExample(t *testing.T, b backend, e example) {
	store, keys := b.open(t)
	e.service.Store = store
	yaml := short(e.yaml)
	if strings.HasPrefix(yaml, "[") {
		yaml = "  " + yaml
	}
	r := newRig(t, e.service, e.limits, yaml)
	for i, a := range e.asks {
		in := req(a.domain, a.descriptors)
		if a.change != nil {
			a.change(in)
		}
		got := r.ask(t, in)
		if d := cmp.Diff(append([]string{a.overall}, a.statuses...), describe(got)); d != "" {
			t.Errorf("request %d %s: want (-), got (+):\n%s", i+1, a.descriptors, d)
		}
	}
	want := e.keys
	if want == nil {
		want = map[string]int64{}
	}
	if d := cmp.Diff(want, keys(t, slices.Collect(maps.Keys(want)))); d != "" {
		t.Errorf("counters: want (-), got (+):\n%s", d)
	}
	rules := r.counters("ratelimit.service.rate_limit.")
	var metric []string
	for name := range rules {
		if key, ok := strings.CutSuffix(name, ".total_hits"); ok {
			metric = append(metric, key)
		}
	}
	slices.Sort(metric)
	if d := cmp.Diff(e.metric, metric); d != "" {
		t.Errorf("metric keys: want (-), got (+):\n%s", d)
	}
	if e.stats != nil {
		if d := cmp.Diff(e.stats, rules); d != "" {
			t.Errorf("statistics: want (-), got (+):\n%s", d)
		}
	}
}

// describe writes a response as the examples do.
func describe(r *pb.RateLimitResponse) []string {
	out := []string{r.OverallCode.String()}
	for _, s := range r.Statuses {
		text := s.Code.String()
		if l := s.CurrentLimit; l != nil {
			if l.Name != "" {
				text += " " + l.Name
			}
			text += fmt.Sprintf(" %d/%d %s %ds", s.LimitRemaining, l.RequestsPerUnit, l.Unit,
				s.DurationUntilReset.GetSeconds())
		} else if s.LimitRemaining != 0 {
			text += fmt.Sprintf(" rem %d", s.LimitRemaining)
		}
		out = append(out, text)
	}
	return out
}

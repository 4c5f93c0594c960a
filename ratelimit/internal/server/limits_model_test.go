package server

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/modeltest"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/sfvtest"
)

// randomRules are some entries with one limit or a list of them, as rules and for the model. Keys expire by the
// server's time and not by the test's, so no bucket is full again within seconds.
func randomRules(r *rand.Rand) (yaml string, entries [][]modeltest.Limit) {
	for i := range 4 {
		var list []modeltest.Limit
		var texts []string
		for j := range 1 + r.IntN(3) {
			l := modeltest.Limit{
				Key: fmt.Sprint(i, " ", j), Algorithm: counter.Algorithm(r.IntN(3)), PerUnit: 1 + r.Int64N(12),
				Window: 60 * int64(1+j), Shadow: r.IntN(5) == 0,
			}
			unit := fmt.Sprintf("unit: minute, unit_multiplier: %d", 1+j)
			if r.IntN(2) == 0 { // the same window, counted in the store of that unit where there is one
				unit = fmt.Sprintf("unit: second, unit_multiplier: %d", l.Window)
			}
			text := fmt.Sprintf("%s, requests_per_unit: %d, algorithm: %s", unit, l.PerUnit, l.Algorithm)
			if l.Algorithm == counter.TokenBucket {
				l.Burst = 1 + r.Int64N(20)
				text += fmt.Sprintf(", burst: %d", l.Burst)
			}
			list = append(list, l)
			texts = append(texts, fmt.Sprintf("{%s, shadow_mode: %v}", text, l.Shadow))
		}
		limits := "rate_limits: [" + strings.Join(texts, ", ") + "]"
		if text, plain := strings.CutSuffix(texts[0], ", shadow_mode: false}"); plain && len(list) == 1 &&
			r.IntN(2) == 0 {
			limits = "rate_limit: " + text + "}" // which is the same
		}
		yaml += fmt.Sprintf("- {key: k%d, %s}\n", i, limits)
		entries = append(entries, list)
	}
	return yaml, entries
}

// Random requests at random instants get the model's answers, on each store and from two daemons on one, whose servers
// forget their scripts now and then; each answer's headers are structured fields, and Retry-After is no earlier than
// what refuses.
func TestLimits_model(t *testing.T) {
	for _, b := range timedBackends {
		for _, stop := range []bool{false, true} {
			if stop && (b.name == "cluster" || b.name == perSecond) {
				continue // keys of one request lie on several servers: see counter.AddAcrossNodes
			}
			t.Run(fmt.Sprintf("%s/stop %v", b.name, stop), func(t *testing.T) {
				t.Parallel()
				clock := &testClock{}
				store := b.open(t, clock)
				for round := range 6 {
					store.empty(t)
					againstModel(t, &store, clock, stop, rand.Uint64(), 120+400*min(1, round))
					if t.Failed() {
						return
					}
				}
			})
		}
	}
}

func againstModel(t *testing.T, store *timedStore, clock *testClock, stop bool, seed uint64, requests int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	yaml, entries := randomRules(r)
	rigs := []*rig{modelRig(t, store.Store, clock, stop, yaml)}
	if store.another != nil {
		rigs = append(rigs, modelRig(t, store.another(t, clock), clock, stop, yaml))
	}
	m := modeltest.Model{Stop: stop}
	at := int64(minuteStart * 1_000_000)
	for range requests {
		at += r.Int64N(1 << r.IntN(26)) // up to half a minute
		clock.set(at)
		in := &pb.RateLimitRequest{Domain: "d"}
		var asks []modeltest.Ask
		for _, i := range r.Perm(len(entries))[:1+r.IntN(3)] {
			a := modeltest.Ask{Limits: entries[i], N: r.Int64N(5), Refund: r.IntN(6) == 0}
			d := req("d", fmt.Sprintf("(k%d,v)", i)).Descriptors[0]
			d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(uint64(a.N)), a.Refund
			in.Descriptors = append(in.Descriptors, d)
			asks = append(asks, a)
		}
		if r.IntN(50) == 0 {
			store.forgetScripts(t)
		}
		got := rigs[r.IntN(len(rigs))].ask(t, in)
		store.keep(t)
		want := m.Request(at, asks)
		if d := cmp.Diff(modelText(want, asks), answerText(got)); d != "" {
			t.Fatalf("seed %d, at %d, %v\n%swant (-), got (+):\n%s", seed, at, in, yaml, d)
		}
		checkHeaders(t, got)
	}
}

func modelRig(t *testing.T, store counter.Store, clock *testClock, stop bool, yaml string) *rig {
	o := service.Options{Store: store, Clock: clock.time, DraftHeaders: true}
	o.RetryAfter, o.StopWhenOver = true, stop
	return newRig(t, o, limits.Options{}, yaml)
}

func modelText(statuses []modeltest.Status, asks []modeltest.Ask) (out []string) {
	for i, s := range statuses {
		l := asks[i].Limits[s.Limit]
		out = append(out, fmt.Sprintf("over %v, %d of %d remain, reset %d", s.Over, s.Remaining, l.PerUnit, s.Reset))
	}
	return out
}

func answerText(r *pb.RateLimitResponse) (out []string) {
	for _, s := range r.Statuses {
		out = append(out, fmt.Sprintf("over %v, %d of %d remain, reset %d", s.Code == pb.RateLimitResponse_OVER_LIMIT,
			s.LimitRemaining, s.CurrentLimit.GetRequestsPerUnit(), s.DurationUntilReset.GetSeconds()))
	}
	return out
}

func checkHeaders(t *testing.T, r *pb.RateLimitResponse) {
	t.Helper()
	fields := map[string]string{}
	for _, h := range r.ResponseHeadersToAdd {
		fields[h.Key] = h.Value
	}
	policy, err := sfvtest.ParseList(fields["RateLimit-Policy"])
	if err != nil {
		t.Fatal(err)
	}
	limit, err := sfvtest.ParseList(fields["RateLimit"])
	if err != nil || len(limit) != len(policy) {
		t.Fatalf("%v in %v", err, fields)
	}
	for i := range policy {
		if policy[i].Name != limit[i].Name || limit[i].Params["t"] < 1 {
			t.Errorf("%v", fields)
		}
	}
	var longest int64
	for _, s := range r.Statuses {
		if s.Code == pb.RateLimitResponse_OVER_LIMIT {
			longest = max(longest, s.DurationUntilReset.GetSeconds())
		}
	}
	want := ""
	if longest > 0 {
		want = fmt.Sprint(longest)
	}
	if fields["Retry-After"] != want {
		t.Errorf("Retry-After %q, want %q", fields["Retry-After"], want)
	}
}

// With the stop option the counters hold exactly the hits of requests that were answered OK, whatever else comes at the
// same time.
func TestLimits_stopConcurrently(t *testing.T) {
	const rules = `- {key: k, rate_limits: [{unit: day, requests_per_unit: 60, algorithm: sliding_window},
    {unit: second, unit_multiplier: 3600, requests_per_unit: 1000000, algorithm: token_bucket},
    {unit: month, requests_per_unit: 1000000}]}
`
	for _, b := range timedBackends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			clock := &testClock{}
			clock.set(minuteStart * 1_000_000)
			store := b.open(t, clock)
			r := modelRig(t, store.Store, clock, true, rules)
			var mu sync.Mutex
			passed := uint64(0)
			var callers sync.WaitGroup
			for i := range 50 {
				callers.Go(func() {
					for range 3 {
						in := req("d", "(k,v)")
						in.HitsAddend = uint32(1 + i%3)
						if r.ask(t, in).OverallCode == pb.RateLimitResponse_OK {
							mu.Lock()
							passed += uint64(in.HitsAddend)
							mu.Unlock()
						}
					}
				})
			}
			callers.Wait()
			if passed < 58 || passed > 60 {
				t.Errorf("%d hits passed, want nearly 60", passed)
			}
			for key, h := range r.hits(t, req("d", "(k,v)"), clock.now()) {
				if err := store.Peek(t.Context(), &h); err != nil || h.After != int64(passed) {
					t.Errorf("%s: %d (%v), want %d", key, h.After, err, passed)
				}
			}
		})
	}
}

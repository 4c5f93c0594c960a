package server

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
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
	"gatehouse/shared/await"
	"gatehouse/shared/chaos"
)

// randomRules are some entries with one limit or a list of them, as rules and for the model; kinds are those that the
// store counts, and least is the smallest limit, 0 or 1. Keys expire by the server's time and not by the test's, so no
// bucket is full again within seconds.
func randomRules(r *rand.Rand, kinds int, least int64) (yaml string, entries [][]modeltest.Limit) {
	for i := range 4 {
		var list []modeltest.Limit
		var texts []string
		for j := range 1 + r.IntN(3) {
			l := modeltest.Limit{
				Key: fmt.Sprint(i, " ", j), Algorithm: counter.Algorithm(r.IntN(kinds)), PerUnit: 1 + r.Int64N(12),
				Window: 60 * int64(1+j), Shadow: r.IntN(5) == 0,
			}
			if r.IntN(12) == 0 {
				l.PerUnit = least
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

// modelRequests is how many requests each store is compared with; MODEL_REQUESTS=n is for a long night.
func modelRequests(t *testing.T) int {
	text := os.Getenv("MODEL_REQUESTS")
	if text == "" {
		return chaos.Runs(1500)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("MODEL_REQUESTS=%s: %v", text, err)
	}
	return n
}

// Random requests at random instants, on a clock that jumps both ways, get the model's answers, on each store and from
// two daemons on one, whose servers forget their scripts now and then; each answer's headers are structured fields, and
// Retry-After is no earlier than what refuses.
func TestLimits_modelRandom(t *testing.T) {
	const each = 500
	for _, b := range append(timedBackends, memcachedBackend) {
		for _, stop := range []bool{false, true} {
			if stop && (b.name == "cluster" || b.name == perSecond) {
				continue // keys of one request lie on several servers: see counter.AddAcrossNodes
			}
			t.Run(fmt.Sprintf("%s/stop %v", b.name, stop), func(t *testing.T) {
				t.Parallel()
				clock := &testClock{}
				store := b.open(t, clock)
				for range max(1, modelRequests(t)/each) {
					store.empty(t)
					againstModel(t, &store, clock, stop, rand.Uint64(), each)
					if t.Failed() {
						return
					}
				}
			})
		}
	}
}

// late is how far the memory store takes a clock that goes back for that of a request which came late.
const late = 20_000

// jumpingClock is the instants of requests: mostly later, and now and then far away in both directions.
type jumpingClock struct {
	r  *rand.Rand
	at int64
	// seen are the instants so far, in the order of time.
	seen []int64
}

// next goes on. drops reports whether the store may have dropped a counter, at the latest instant seen, that would be
// in use at another one: this is then left out.
func (c *jumpingClock) next(drops func(at, latest int64) bool) int64 {
	step := c.r.Int64N(1 << c.r.IntN(26)) // up to half a minute
	switch c.r.IntN(40) {
	case 0:
		step = -late - 1 - c.r.Int64N(1<<c.r.IntN(33)) // more than an hour at most
	case 1:
		step = c.r.Int64N(1 << c.r.IntN(33))
	}
	at := c.at + step
	i, _ := slices.BinarySearch(c.seen, at+1)
	for ; i < len(c.seen) && c.seen[i]-at <= late; i++ {
		at = c.seen[i]
	}
	if last := len(c.seen) - 1; last >= 0 && drops(at, c.seen[last]) {
		at, i = c.seen[last]+max(0, step), last+1
	}
	c.seen = slices.Insert(c.seen, i, at)
	c.at = at
	return at
}

func againstModel(t *testing.T, store *timedStore, clock *testClock, stop bool, seed uint64, requests int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	kinds := 3
	if store.fixedOnly {
		kinds = 1
	}
	yaml, entries := randomRules(r, kinds, 0)
	rigs := []*rig{modelRig(t, store.Store, clock, stop, yaml)}
	if store.another != nil {
		rigs = append(rigs, modelRig(t, store.another(t, clock), clock, stop, yaml))
	}
	m := modeltest.Model{Stop: stop}
	times := jumpingClock{r: r, at: store.begin}
	drops := func(at, latest int64) bool {
		for _, l := range slices.Concat(entries...) {
			size := l.Window * 1_000_000
			for _, value := range []string{"v", "w"} {
				of := l
				of.Key += value
				ended := l.Algorithm == counter.FixedWindow && (at/size+1)*size <= latest
				if store.drops && m.Used(&of, at) > 0 && (ended || m.Used(&of, times.at) == 0) {
					return true
				}
			}
		}
		return false
	}
	for range requests {
		at := times.next(drops)
		clock.set(at)
		in := &pb.RateLimitRequest{Domain: "d"}
		var asks []modeltest.Ask
		for range 1 + r.IntN(4) {
			i, value := r.IntN(len(entries)), "v"
			if r.IntN(8) == 0 {
				value = "w"
			}
			a := modeltest.Ask{N: r.Int64N(5), Refund: r.IntN(5) == 0}
			for _, l := range entries[i] {
				l.Key += value
				a.Limits = append(a.Limits, l)
			}
			d := req("d", fmt.Sprintf("(k%d,%s)", i, value)).Descriptors[0]
			d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(uint64(a.N)), a.Refund
			in.Descriptors = append(in.Descriptors, d)
			asks = append(asks, a)
		}
		if r.IntN(20) == 0 {
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
			await.Together(50, func(i int) {
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

package server

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/limits"
)

// Limits, bursts and algorithms change under traffic: no request fails, a counter goes on whatever its numbers become,
// and one of another algorithm starts empty without losing a hit of its own.
func TestLimits_reload(t *testing.T) {
	rules := func(generation int) string {
		algorithm := counter.Algorithm(generation % 3)
		return fmt.Sprintf(`
- {key: fixed, rate_limit: {unit: hour, requests_per_unit: %d}}
- {key: sliding, rate_limit: {unit: hour, requests_per_unit: %[1]d, algorithm: sliding_window}}
- {key: burst, rate_limit: {unit: second, unit_multiplier: 86400, requests_per_unit: 100000, algorithm: token_bucket,
    burst: %[1]d}}
- {key: rate, rate_limit: {unit: day, requests_per_unit: %[2]d, algorithm: token_bucket, burst: 1000000}}
- {key: algorithm, rate_limit: {unit: day, requests_per_unit: %[1]d, algorithm: %[3]s}}
`, 1_000_000+generation*7%100, 100_000+generation*7%100, algorithm)
	}
	const everything = "(fixed,v)|(sliding,v)|(burst,v)|(rate,v)|(algorithm,v)"
	for _, b := range timedBackends {
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			clock := &testClock{}
			clock.set(minuteStart * 1_000_000)
			store := b.open(t, clock)
			r := modelRig(t, store.Store, clock, false, rules(0))
			var asked, passed atomic.Int64
			var done atomic.Bool
			var callers sync.WaitGroup
			for i := range 8 {
				callers.Go(func() {
					in := req("d", everything)
					in.HitsAddend = uint32(1 + i%3)
					for !done.Load() {
						if got := r.ask(t, in); got.OverallCode != pb.RateLimitResponse_OK {
							t.Errorf("refused: %v", got)
							return
						}
						asked.Add(1)
						passed.Add(int64(in.HitsAddend))
					}
				})
			}
			for generation := range 200 {
				before := asked.Load()
				r.load(t, limits.Options{}, rules(generation+1))
				for asked.Load() < before+8 && !t.Failed() {
					time.Sleep(50 * time.Microsecond)
				}
			}
			done.Store(true)
			callers.Wait()

			n := passed.Load()
			stands := func(h counter.Hit) counter.Hit {
				t.Helper()
				if err := store.Peek(t.Context(), &h); err != nil {
					t.Fatal(err)
				}
				return h
			}
			for key, h := range r.hits(t, req("d", "(fixed,v)|(sliding,v)|(burst,v)"), clock.now()) {
				if got := stands(h).After; got != n {
					t.Errorf("%s stands at %d after %d hits", key, got, n)
				}
			}
			for key, h := range r.hits(t, req("d", "(rate,v)"), clock.now()) {
				const day = 86_400_000_000
				full := stands(h).State.At - clock.now()
				if least, most := n*day/100_099-200, n*day/100_000+1; full < least || full > most {
					t.Errorf("%s is full in %d µs after %d hits, want between %d and %d", key, full, n, least, most)
				}
			}
			sum := int64(0)
			for generation := range 3 {
				r.load(t, limits.Options{}, rules(generation))
				for _, h := range r.hits(t, req("d", "(algorithm,v)"), clock.now()) {
					sum += stands(h).After
				}
			}
			// A bucket's hits are counted by the limit now in force.
			if within := n/10_000 + 2; sum < n-within || sum > n+within {
				t.Errorf("the counters of three algorithms stand at %d after %d hits", sum, n)
			}
			t.Logf("%d hits", n)
		})
	}
}

package countertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/counter"
)

// Clock is the clock of a store under test: it stands still until Set changes it.
type Clock struct{ now atomic.Int64 }

// Now returns the clock's time in µs since the Unix epoch. It is the value for the store's option Clock.
func (c *Clock) Now() int64 { return c.now.Load() }

// Set sets the time, in µs since the Unix epoch.
func (c *Clock) Set(us int64) { c.now.Store(us) }

// RunMeters opens a store by open, and tests that it does what every Store with sliding windows and token buckets must
// do. open is given the clock that the store has to use.
func RunMeters(t *testing.T, open func(t *testing.T, clock func() int64) counter.Store) {
	clock := new(Clock)
	clock.Set(Noon * 1_000_000)
	s := open(t, clock.Now)
	t.Run("sliding window", func(t *testing.T) { testSliding(t, s, clock) })
	t.Run("token bucket", func(t *testing.T) { testBucket(t, s, clock) })
	t.Run("requests", func(t *testing.T) { testMeterRequests(t, s, clock) })
	t.Run("histories", func(t *testing.T) { testHistories(t, s, clock) })
	t.Run("stop", func(t *testing.T) { testMeterStop(t, s, clock) })
	t.Run("stop histories", func(t *testing.T) { testStopHistories(t, s, clock) })
	t.Run("concurrent", func(t *testing.T) { testMetersConcurrent(t, s, clock) })
}

// Sliding returns n hits on a sliding window of a minute.
func Sliding(key string, n, limit uint64) counter.Hit {
	return counter.Hit{Key: []byte(key), N: n,
		Meter: counter.Meter{Algorithm: counter.SlidingWindow, Limit: limit, Window: 60}}
}

// Bucket returns n hits on a token bucket of size burst, which regains limit hits in a minute.
func Bucket(key string, n, limit, burst uint64) counter.Hit {
	return counter.Hit{Key: []byte(key), N: n,
		Meter: counter.Meter{Algorithm: counter.TokenBucket, Limit: limit, Burst: burst, Window: 60}}
}

// Answer returns a store's answer to a hit, as text.
func Answer(h *counter.Hit) string {
	text := fmt.Sprint(h.After)
	switch {
	case h.IsOver():
		text += " over"
	case h.Spared:
		text += " spared"
	}
	return text
}

// must has the store carry out a request, and returns the answers as text.
func must(t *testing.T, s counter.Store, stop counter.Stop, hits ...counter.Hit) (answers []string) {
	t.Helper()
	req := counter.Request{Hits: hits, Now: now(), Stop: stop}
	if err := s.Add(t.Context(), &req); err != nil {
		t.Fatal(err)
	}
	for i := range hits {
		answers = append(answers, Answer(&hits[i]))
	}
	return answers
}

func peekState(t *testing.T, s counter.Store, h counter.Hit) (counter.State, int64) {
	t.Helper()
	if err := s.Peek(t.Context(), &h); err != nil {
		t.Fatalf("Peek %s: %v", h.Key, err)
	}
	return h.State, h.After
}

func testSliding(t *testing.T, s counter.Store, clock *Clock) {
	const minute = 1699999980_000_000
	f := func(second int64, n int64, limit uint64, want, stands string) {
		t.Helper()
		clock.Set(minute + second*1_000_000)
		hit := Sliding("sliding", uint64(max(n, -n)), limit)
		hit.Refund = n < 0
		if got := must(t, s, counter.StopNone, hit)[0]; got != want {
			t.Errorf("%d s: %d of %d: %s, want %s", second, n, limit, got, want)
		}
		state, used := peekState(t, s, hit)
		if got := fmt.Sprint(state.At-minute/60_000_000, state.Current, state.Previous, used); got != stands {
			t.Errorf("%d s: %d of %d: stands at %s, want %s", second, n, limit, got, stands)
		}
		if state.Now != clock.Now() {
			t.Errorf("the instant is %d, want %d", state.Now, clock.Now())
		}
	}
	f(20, 0, 10, "0", "0 0 0 0")
	f(20, 1, 10, "1", "0 1 0 1")
	f(50, 9, 10, "10", "0 10 0 10")
	f(50, 1, 10, "11 over", "0 10 0 10")
	f(60, 1, 10, "11 over", "1 0 10 10")
	f(66, 1, 10, "10", "1 1 10 10")
	f(90, 3, 10, "9", "1 4 10 9")
	f(105, -2, 10, "5", "1 2 10 5")
	f(120, 8, 10, "10", "2 8 2 10")
	f(120, 11, 10, "21 over", "2 8 2 10")
	f(120, 1<<63-1, 10, "9223372036854775807 over", "2 8 2 10")
	f(120, 0, 4, "10 over", "2 8 2 10") // only reads the counter, under a limit that is smaller now
	f(120, -5000, 10, "2", "2 0 2 2")
	f(300, 1, 10, "1", "5 1 0 1")
	f(300, -9, 10, "0", "5 0 0 0")
	f(300, 3, 10, "3", "5 3 0 3")
	f(100, 8, 10, "11 over", "1 3 0 3") // the clock was set back: the newest window counts as the present one
	f(100, 7, 10, "10", "1 10 0 10")
	gone := Sliding("sliding", 0, 10)
	if err := s.Reset(t.Context(), &gone); err != nil {
		t.Error(err)
	}
	f(100, 0, 10, "0", "1 0 0 0")
	f(100, 10, 10, "10", "1 10 0 10")
	const top = 4294967295
	f(600, top-1, top, "4294967294", "10 4294967294 0 4294967294")
	f(630, 1, top, "4294967295", "10 4294967295 0 4294967295")
	f(690, 1, top, "2147483649", "11 1 4294967295 2147483649")
}

func testBucket(t *testing.T, s counter.Store, clock *Clock) {
	const minute = 1699999980_000_000
	f := func(us int64, n int64, limit, burst uint64, want, stands string) {
		t.Helper()
		clock.Set(minute + us)
		hit := Bucket("bucket", uint64(max(n, -n)), limit, burst)
		hit.Refund = n < 0
		if got := must(t, s, counter.StopNone, hit)[0]; got != want {
			t.Errorf("%d µs: %d of %d: %s, want %s", us, n, limit, got, want)
		}
		state, used := peekState(t, s, hit)
		if state.At < state.Now { // full, even if the store still has a state for it
			state.At, state.Rest = state.Now, 0
		}
		if got := fmt.Sprint(state.At-minute, state.Rest, used); got != stands {
			t.Errorf("%d µs: %d of %d: stands at %s, want %s", us, n, limit, got, stands)
		}
	}
	m := func(second int64, n int64, want string, full, used int64) {
		t.Helper()
		f(second*1_000_000, n, 10, 10, want, fmt.Sprint(full*1_000_000, 0, used))
	}
	m(20, 0, "0", 20, 0)
	m(20, 1, "1", 26, 1)
	m(20, 9, "10", 80, 10)
	m(20, 1, "11 over", 80, 10)
	m(26, 1, "10", 86, 10)
	m(38, 3, "11 over", 86, 8)
	m(38, 2, "10", 98, 10)
	m(40, -5, "5", 68, 5)
	m(220, 0, "0", 220, 0)
	m(220, 11, "11 over", 220, 0)
	m(220, 10, "10", 280, 10)
	m(100, 1, "11 over", 160, 10) // the clock was set back
	m(100, -3, "7", 142, 7)
	m(100, -10, "0", 100, 0)
	f(100_000_000, 5, 7, 9, "5", "142857142 6 5") // the bucket regains 5 hits in 5 × 60 s / 7
	f(100_000_000, 4, 7, 9, "9", "177142857 1 9")
	f(100_000_000, -4, 7, 9, "5", "142857142 6 5")
	f(100_000_000, 9, 7, 9, "14 over", "142857142 6 5")
	f(100_000_000, 4, 3, 9, "7", "222857142 2 7") // with a limit of 3, fractions are in thirds of a µs
	gone := Bucket("bucket", 0, 7, 9)
	if err := s.Reset(t.Context(), &gone); err != nil {
		t.Error(err)
	}
	f(100_000_000, 0, 7, 9, "0", "100000000 0 0")
	const top = 4294967295
	f(100_000_000, top, top, top, "4294967295", "160000000 0 4294967295")
	f(100_000_001, 72, top, top, "4294967296 over", "160000000 0 4294967224") // in 1 µs, the bucket regains 71.58 hits
	f(100_000_001, 71, top, top, "4294967295", "160000000 4260000000 4294967295")
}

// testMeterRequests tests that several hits on one counter in one request are carried out in their order, also when
// some are looks, refunds, or hits with other numbers.
func testMeterRequests(t *testing.T, s counter.Store, clock *Clock) {
	clock.Set(1699999990_000_000)
	f := func(hits []counter.Hit, want ...string) {
		t.Helper()
		if d := cmp.Diff(want, must(t, s, counter.StopNone, hits...)); d != "" {
			t.Errorf("answers (-want +got):\n%s", d)
		}
	}
	w := func(n uint64) counter.Hit { return Sliding("w", n, 5) }
	b := func(n uint64) counter.Hit { return Bucket("b", n, 5, 5) }
	f([]counter.Hit{w(1), b(2), h("fixed", 1), w(1), b(1), w(0)}, "1", "2", "1", "2", "3", "2")
	f([]counter.Hit{w(2), w(2), w(1), refund(w(3)), w(2), w(2), w(0)}, "4", "6 over", "5", "2", "4", "6 over", "4")
	f([]counter.Hit{b(1), b(2), b(1), refund(b(3)), b(2), b(2), b(0)}, "4", "6 over", "5", "2", "4", "6 over", "4")
	f([]counter.Hit{w(1), w(1), w(1)}, "5", "6 over", "6 over")
	f([]counter.Hit{b(1), b(1), b(1)}, "5", "6 over", "6 over")
	f([]counter.Hit{refund(w(0)), refund(b(0))}, "5", "5")
	// One counter gets hits with different bursts or limits, as if two sets of rules were in use during a reload.
	f([]counter.Hit{Bucket("b", 1, 5, 9), b(0), Bucket("b", 0, 5, 2)}, "6", "5", "2")
	f([]counter.Hit{Sliding("w", 2, 9), w(1), Sliding("w", 2, 9)}, "7", "8 over", "9")
	// No store need tell a sliding window from a token bucket with the same key: the daemon has no such keys.
	f([]counter.Hit{Sliding("\x00\r\n\xff", 1, 5), Bucket(string(make([]byte, 100_000)), 1, 5, 5), Sliding("", 1, 5)},
		"1", "1", "1")
}

// testHistories compares a store with the model: both get the same random hits, one request after another.
func testHistories(t *testing.T, s counter.Store, clock *Clock) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 7))
		now := int64(1_700_000_000_000_000) + r.Int64N(1e12)
		prefix := fmt.Sprintf("history%d ", seed)
		model := newModel()
		for n := range 40 {
			clock.Set(now)
			hits := randomHits(r, prefix)
			want := model.add(hits, now)
			for i, got := range must(t, s, counter.StopNone, hits...) {
				if got != want[i] {
					t.Fatalf("seed %d, request %d, hit %d of %d, %+v: %s, want %s", seed, n, i, len(hits), hits[i], got,
						want[i])
				}
			}
			step := randomStep(r)
			if step < 0 {
				model.dropEmpty(t, s, now)
			}
			now += step
		}
	}
}

// dropEmpty deletes the counters that are empty now, from the model and from the store. It is called before the clock
// is set back: a store may or may not have kept an empty counter, and afterwards a kept counter would give other
// answers than a missing one.
func (m *model) dropEmpty(t *testing.T, s counter.Store, now int64) {
	t.Helper()
	for key, state := range m.states {
		hit := counter.Hit{Key: []byte(key),
			Meter: counter.Meter{Algorithm: counter.SlidingWindow, Window: 60, Limit: 1}}
		if strings.Contains(key, " b") {
			hit.Algorithm = counter.TokenBucket
		}
		meter := hit.Meter
		if meter.Load(&state, now); !meter.Empty(&state) {
			continue
		}
		delete(m.states, key)
		if err := s.Reset(t.Context(), &hit); err != nil {
			t.Fatal(err)
		}
	}
}

// late is the least number of µs by which a test sets the clock back. It is longer than the delay that the in-process
// store allows for between a request's reading of the clock and its turn.
const late = 200_000

// randomStep returns the time until the next request, in µs: often none, seldom long, and now and then negative.
func randomStep(r *rand.Rand) int64 {
	switch r.IntN(8) {
	case 0, 1:
		return 0
	case 2:
		return r.Int64N(1000)
	case 3:
		return r.Int64N(200_000_000)
	case 4:
		return -late - r.Int64N(100_000_000)
	}
	return r.Int64N(10_000_000)
}

// randomHits returns the hits of one request, on counters whose keys begin with the prefix.
func randomHits(r *rand.Rand, prefix string) (hits []counter.Hit) {
	for range 1 + r.IntN(4) {
		limit := []uint64{1, 3, 7, 10, 100}[r.IntN(5)]
		n := []uint64{0, 1, 1, 1, 2, 3, limit, limit + 1}[r.IntN(8)]
		var one counter.Hit
		if r.IntN(2) == 0 {
			one = Sliding(prefix+"w"+fmt.Sprint(r.IntN(2)), n, limit)
		} else {
			one = Bucket(prefix+"b"+fmt.Sprint(r.IntN(2)), n, limit, []uint64{limit, 1, 2 * limit}[r.IntN(3)])
		}
		one.Refund = r.IntN(6) == 0
		hits = append(hits, one)
	}
	return hits
}

// model is the model of a store: a map of counters that counter.Meter judges.
type model struct{ states map[string]counter.State }

func newModel() *model { return &model{map[string]counter.State{}} }

func (m *model) add(hits []counter.Hit, now int64) (answers []string) {
	for _, hit := range hits {
		m.hit(&hit, now)
		answers = append(answers, Answer(&hit))
	}
	return answers
}

// hit carries out one hit and keeps the counter's state as a store would.
func (m *model) hit(hit *counter.Hit, now int64) {
	meter := hit.Meter
	state := m.states[string(hit.Key)]
	fromFuture := meter.Load(&state, now)
	if hit.Judge(&state) || fromFuture && hit.N > 0 && !hit.Refund && hit.N <= hit.Capacity() {
		if m.states[string(hit.Key)] = hit.State; meter.Empty(&hit.State) {
			delete(m.states, string(hit.Key))
		}
	}
}

// testMeterStop tests counter.StopAll: if a hit exceeds its limit, no hit is counted, whatever the algorithms in the
// request.
func testMeterStop(t *testing.T, s counter.Store, clock *Clock) {
	clock.Set(1699999990_000_000)
	f := func(hits []counter.Hit, want ...string) {
		t.Helper()
		if d := cmp.Diff(want, must(t, s, counter.StopAll, hits...)); d != "" {
			t.Errorf("answers (-want +got):\n%s", d)
		}
	}
	stands := func(hit counter.Hit, want int64) {
		t.Helper()
		if _, got := peekState(t, s, hit); got != want {
			t.Errorf("%s stands at %d, want %d", hit.Key, got, want)
		}
	}
	w := func(n uint64) counter.Hit { return Sliding("{s}w", n, 3) }
	b := func(n uint64) counter.Hit { return Bucket("{s}b", n, 2, 2) }
	x := func(n uint64) counter.Hit { return limit(4, h("{s}fixed", n)) }
	f([]counter.Hit{w(1), b(1), x(1)}, "1", "1", "1")
	f([]counter.Hit{w(1), b(2), x(1)}, "1 spared", "3 over", "1 spared")
	f([]counter.Hit{w(3), b(1), x(1)}, "4 over", "1 spared", "1 spared")
	f([]counter.Hit{w(1), b(1), x(4)}, "1 spared", "1 spared", "5 over")
	f([]counter.Hit{w(1), b(99), x(99)}, "1 spared", "100 over", "100 over")
	f([]counter.Hit{w(99), b(1)}, "100 over", "1 spared")
	stands(w(0), 1)
	stands(b(0), 1)
	// Hits in shadow mode do not stop others, and are not counted themselves if they exceed their limit.
	f([]counter.Hit{shadow(w(3)), b(1), x(1)}, "4 over", "2", "2")
	f([]counter.Hit{w(1), shadow(b(1)), x(1)}, "2", "3 over", "3")
	stands(w(0), 2)
	// These requests have two hits on the same counter, a look, or a refund.
	f([]counter.Hit{w(1), w(1), x(1)}, "2 spared", "4 over", "3 spared")
	f([]counter.Hit{w(0), refund(b(1)), b(1), refund(x(2)), x(1)}, "2", "1", "2", "1", "2")
	f([]counter.Hit{refund(w(9)), b(1)}, "2 spared", "3 over")
	f([]counter.Hit{Bucket("{s}b", 0, 2, 2), w(1)}, "2", "3")
	// A look at a counter that is over its limit stops hits, too.
	f([]counter.Hit{Sliding("{s}w", 0, 1), b(0), x(1)}, "3 over", "2 spared", "2 spared")
	// After the clock was set back, a counter that is ahead of it is corrected, although no hit is counted.
	clock.Set(1699999990_000_000 - 3600_000_000)
	f([]counter.Hit{b(1), w(1)}, "3 over", "4 over")
	clock.Set(1699999990_000_000 - 3600_000_000 + 30_000_000)
	stands(b(0), 1)
}

// testStopHistories is testHistories under counter.StopAll, with hits in shadow mode too, and without a clock that is
// set back.
func testStopHistories(t *testing.T, s counter.Store, clock *Clock) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 8))
		now := int64(1_700_000_000_000_000) + r.Int64N(1e12)
		prefix := fmt.Sprintf("{stop%d}", seed)
		model := newModel()
		for step := range 30 {
			clock.Set(now)
			hits := randomHits(r, prefix)
			seen := map[string]bool{}
			kept := hits[:0]
			for _, hit := range hits {
				if !seen[string(hit.Key)] { // testMeterStop tests keys that occur twice
					seen[string(hit.Key)] = true
					hit.Shadow = r.IntN(5) == 0
					// All hits have the same limit, since a store with several nodes differs from the model in how it
					// corrects a bucket whose size has changed.
					hit.Limit, hit.Burst = 10, 10
					kept = append(kept, hit)
				}
			}
			want := model.stop(kept, now)
			for i, got := range must(t, s, counter.StopAll, kept...) {
				if got != want[i] {
					t.Fatalf("seed %d, step %d, hit %d of %d, %+v: %s, want %s", seed, step, i, len(kept), kept[i], got,
						want[i])
				}
			}
			now += max(0, randomStep(r))
		}
	}
}

// stop carries out hits on different counters under counter.StopAll: all of them, or none.
func (m *model) stop(hits []counter.Hit, now int64) (answers []string) {
	held := false
	var afterwards []counter.Hit
	for _, hit := range hits {
		meter := hit.Meter
		state := m.states[string(hit.Key)]
		meter.Load(&state, now)
		was := meter.Used(&state)
		hit.Judge(&state)
		held = held || hit.Refused && !hit.Shadow
		hit.Limit, hit.Window = uint64(was), 0 // keeps the amount used before, for the loop below
		afterwards = append(afterwards, hit)
	}
	for i, hit := range afterwards {
		switch {
		case hit.Refused:
		case held:
			hit.After, hit.Spared = int64(hit.Limit), true
		default:
			m.hit(&hits[i], now)
			hit.After = hits[i].After
		}
		answers = append(answers, Answer(&hit))
	}
	return answers
}

// testMetersConcurrent has fifty goroutines send 200 hits on a counter with a limit of 20, and checks that exactly 20
// pass.
func testMetersConcurrent(t *testing.T, s counter.Store, clock *Clock) {
	clock.Set(1699999990_000_000)
	for _, stop := range []counter.Stop{counter.StopNone, counter.StopAll} {
		for _, of := range []func(key string) counter.Hit{
			func(key string) counter.Hit { return Sliding(key+"w", 1, 20) },
			func(key string) counter.Hit { return Bucket(key+"b", 1, 20, 20) },
		} {
			key := fmt.Sprint("{crowd}", stop)
			var passed atomic.Int64
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					for range 4 {
						req := counter.Request{Hits: []counter.Hit{of(key), Sliding(key+"beside", 0, 5)}, Now: now(),
							Stop: stop}
						if err := s.Add(context.Background(), &req); err != nil {
							t.Error(err)
						}
						if !req.Hits[0].Refused {
							passed.Add(1)
						}
					}
				})
			}
			wg.Wait()
			if passed.Load() != 20 {
				t.Errorf("%s, stop %d: %d of 200 passed, want 20", of(key).Algorithm, stop, passed.Load())
			}
		}
	}
}

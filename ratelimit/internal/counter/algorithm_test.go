package counter_test

import (
	"fmt"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/must"
)

// minute is the µs at which a minute begins; the tables' times are minutes:seconds after it.
const minute = 1699999980 * 1_000_000

// at is an instant of the tables, such as 1:59.999999.
func at(t *testing.T, s string) int64 {
	t.Helper()
	var m, sec, frac int64
	whole, part, _ := strings.Cut(s, ".")
	must.Succeed(t, must.ErrOf(fmt.Sscanf(whole, "%d:%d", &m, &sec)))
	if part != "" {
		must.Succeed(t, must.ErrOf(fmt.Sscanf((part + "000000")[:6], "%d", &frac)))
	}
	return minute + (m*60+sec)*1_000_000 + frac
}

// seconds is a wait as a status shows it: whole seconds, at least one.
func seconds(us int64) int64 { return max(1, (us+999_999)/1_000_000) }

// answer is what a status shows of a judged hit.
func answer(h *counter.Hit) string {
	if h.Refused || uint64(h.After) > h.Capacity() {
		return fmt.Sprintf("OVER, %d s", seconds(h.Wait(&h.State, h.N)))
	}
	return fmt.Sprintf("OK %d, %d s", h.Capacity()-uint64(h.After), seconds(h.TimeToEmpty(&h.State)))
}

// one carries out a hit on a counter kept in state, as a store does.
func one(state *counter.State, now int64, h *counter.Hit) {
	m := h.Meter
	s := *state
	fromFuture := m.Load(&s, now)
	if h.Judge(&s) || fromFuture && h.BringsDown() {
		*state = h.State
	}
}

// hits is a number of hits; a negative one is a refund.
func hits(n int64, h counter.Hit) counter.Hit {
	if h.N = uint64(n); n < 0 {
		h.N, h.Refund = uint64(-n), true
	}
	return h
}

func TestSlidingWindow(t *testing.T) {
	var state counter.State
	f := func(when string, n int64, limit uint64, want, stored string) {
		t.Helper()
		h := hits(n, counter.Hit{Meter: counter.Meter{Algorithm: counter.SlidingWindow, Limit: limit, Window: 60}})
		one(&state, at(t, when), &h)
		if got := answer(&h); got != want {
			t.Errorf("%s: %d of %d: %s, want %s", when, n, limit, got, want)
		}
		if got := fmt.Sprint(state.At-minute/60_000_000, state.Current, state.Previous); got != stored {
			t.Errorf("%s: %d of %d: stored %s, want %s", when, n, limit, got, stored)
		}
	}
	f("0:20", 1, 10, "OK 9, 100 s", "0 1 0") // empty at 2:00
	f("0:50", 9, 10, "OK 0, 70 s", "0 10 0")
	f("0:50", 1, 10, "OVER, 16 s", "0 10 0") // passes at 1:06, when 10 weigh 9
	f("1:00", 1, 10, "OVER, 6 s", "0 10 0")  // no burst at the edge
	f("1:06", 1, 10, "OK 0, 114 s", "1 1 10")
	f("1:30", 3, 10, "OK 1, 90 s", "1 4 10")
	f("1:30", 0, 10, "OK 1, 90 s", "1 4 10")
	f("1:45", -2, 10, "OK 5, 75 s", "1 2 10")
	f("1:59.999999", 8, 10, "OVER, 1 s", "1 2 10") // one of the previous ten weighs until the end
	f("2:00", 8, 10, "OK 0, 120 s", "2 8 2")
	f("2:00", 11, 10, "OVER, 120 s", "2 8 2") // can never pass
	f("5:00", 1, 10, "OK 9, 120 s", "5 1 0")
	state = counter.State{}
	f("0:00", 5, 7, "OK 2, 120 s", "0 5 0")
	f("1:18", 3, 7, "OK 0, 102 s", "1 3 5")
	f("1:24", 1, 7, "OK 0, 96 s", "1 4 5")
	f("1:40", 2, 7, "OVER, 8 s", "1 4 5")
	state = counter.State{}
	f("0:10", 8, 10, "OK 2, 110 s", "0 8 0")
	f("0:11", 0, 4, "OVER, 79 s", "0 8 0") // the limit has become smaller
	f("1:10", 1, 4, "OVER, 28 s", "0 8 0")
}

func TestTokenBucket(t *testing.T) {
	var state counter.State
	f := func(when string, n int64, limit, burst uint64, window int64, want, full string) {
		t.Helper()
		h := hits(n, counter.Hit{
			Meter: counter.Meter{Algorithm: counter.TokenBucket, Limit: limit, Burst: burst, Window: window}})
		one(&state, at(t, when), &h)
		if got := answer(&h); got != want {
			t.Errorf("%s: %d: %s, want %s", when, n, got, want)
		}
		us := state.At - minute
		got := fmt.Sprintf("%d:%02d.%06d+%d", us/60_000_000, us/1_000_000%60, us%1_000_000, state.Rest)
		if got != full {
			t.Errorf("%s: %d: full at %s, want %s", when, n, got, full)
		}
	}
	m := func(when string, n int64, want, full string) {
		t.Helper()
		f(when, n, 10, 10, 60, want, full+".000000+0")
	}
	m("0:20", 1, "OK 9, 6 s", "0:26")
	m("0:20", 9, "OK 0, 60 s", "1:20")
	m("0:20", 1, "OVER, 6 s", "1:20")
	m("0:25.999999", 1, "OVER, 1 s", "1:20")
	m("0:26", 1, "OK 0, 60 s", "1:26")
	m("0:38", 0, "OK 2, 48 s", "1:26")
	m("0:38", 3, "OVER, 6 s", "1:26")
	m("0:38", 2, "OK 0, 60 s", "1:38")
	m("0:40", -5, "OK 5, 28 s", "1:08")
	m("3:40", 0, "OK 10, 1 s", "1:08")
	m("3:40", 11, "OVER, 1 s", "1:08")

	state = counter.State{}
	s := func(when string, n int64, want, full string) { t.Helper(); f(when, n, 3, 5, 1, want, full) }
	s("0:00", 5, "OK 0, 2 s", "0:01.666666+2")
	s("0:00.333333", 1, "OVER, 1 s", "0:01.666666+2")
	s("0:00.333334", 1, "OK 0, 2 s", "0:02.000000+0")
	s("0:01", 2, "OK 0, 2 s", "0:02.666666+2")
	s("0:01", 1, "OVER, 1 s", "0:02.666666+2")

	state = counter.State{}
	s = func(when string, n int64, want, full string) { t.Helper(); f(when, n, 100, 1, 1, want, full) }
	s("0:00", 1, "OK 0, 1 s", "0:00.010000+0")
	s("0:00.009999", 1, "OVER, 1 s", "0:00.010000+0")
	s("0:00.01", 1, "OK 0, 1 s", "0:00.020000+0")

	// A reload: a drained bucket stays drained, and refills twice as fast.
	state = counter.State{}
	f("0:00", 10, 10, 10, 60, "OK 0, 60 s", "1:00.000000+0")
	f("0:03", 1, 20, 20, 60, "OK 0, 60 s", "1:03.000000+0")
	f("0:03", 1, 20, 20, 60, "OVER, 3 s", "1:03.000000+0")
	state = counter.State{}
	f("0:00", 40, 10, 40, 60, "OK 0, 240 s", "4:00.000000+0")
	f("0:01", 1, 10, 5, 60, "OVER, 6 s", "0:31.000000+0") // brought down, and written though refused
	f("0:07", 1, 10, 5, 60, "OK 0, 30 s", "0:37.000000+0")

	state = counter.State{}
	const top = 4294967295
	f("0:00", top, top, top, 1, "OK 0, 1 s", "0:01.000000+0")
	f("0:00.000001", 4295, top, top, 1, "OVER, 1 s", "0:01.000000+0")
	f("0:00.000001", 4294, top, top, 1, "OK 0, 1 s", "0:01.000000+4294000000")
}

func TestParseAlgorithm(t *testing.T) {
	for i, name := range counter.AlgorithmNames() {
		if a, ok := counter.ParseAlgorithm(strings.ToUpper(name)); !ok || a != counter.Algorithm(i) ||
			a.String() != name {
			t.Errorf("%s: %v %v", name, a, ok)
		}
	}
	if _, ok := counter.ParseAlgorithm("gcra"); ok {
		t.Error("gcra is understood")
	}
}

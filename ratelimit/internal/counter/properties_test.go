package counter_test

import (
	"fmt"
	"iter"
	"math/big"
	"math/rand/v2"
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/chaos"
)

// runs is how many random histories each property is tried on.
var runs = chaos.Runs(10_000)

// history is a random sequence of hits on one counter at instants of its own.
type history struct {
	seed  uint64
	r     *rand.Rand
	hit   counter.Hit // what judges the counter
	size  int64       // of the window, in µs
	now   int64
	state counter.State
}

func newHistory(seed uint64, a counter.Algorithm) *history {
	r := rand.New(rand.NewPCG(seed, uint64(a)))
	h := &history{seed: seed, r: r}
	h.hit.Meter = counter.Meter{Algorithm: a, Limit: 1 + r.Uint64N(20), Window: []int64{1, 2, 60, 3600, 86400}[r.IntN(5)]}
	if r.IntN(4) == 0 {
		h.hit.Limit = 1 + r.Uint64N(100_000)
	}
	h.hit.Burst = []uint64{1, h.hit.Limit, 1 + r.Uint64N(2*h.hit.Limit)}[r.IntN(3)]
	h.size = h.hit.Window * 1_000_000
	h.now = 1_700_000_000_000_000 + r.Int64N(h.size)
	return h
}

// String names the history in a failure.
func (h *history) String() string { return fmt.Sprintf("seed %d, %s", h.seed, h.hit.Algorithm) }

// histories are the random histories of each algorithm.
func histories(of ...counter.Algorithm) iter.Seq[*history] {
	return func(yield func(*history) bool) {
		for _, a := range of {
			for seed := range uint64(runs) {
				if !yield(newHistory(seed, a)) {
					return
				}
			}
		}
	}
}

// step lets some time pass: none, the time of a hit, a part of the window, or more than one.
func (h *history) step() {
	switch h.r.IntN(6) {
	case 0:
	case 1:
		h.now += h.size / int64(h.hit.Limit)
	case 2:
		h.now += h.r.Int64N(3 * h.size)
	case 3: // to the edge of a window, or next to it
		h.now += h.size - h.now%h.size - h.r.Int64N(2)
	default:
		h.now += h.r.Int64N(h.size/4 + 1)
	}
}

// n is a random number of hits that may pass.
func (h *history) n() uint64 {
	if h.r.IntN(3) == 0 {
		return 1
	}
	return 1 + h.r.Uint64N(h.hit.Capacity())
}

// do carries out n hits now.
func (h *history) do(n uint64) counter.Hit {
	one := h.hit
	one.N = n
	one.Refund = false
	judge(&h.state, h.now, &one)
	return one
}

func (h *history) refund(n uint64) counter.Hit {
	one := h.hit
	one.N, one.Refund = n, true
	judge(&h.state, h.now, &one)
	return one
}

// judge is what a store does with a hit.
func judge(state *counter.State, now int64, h *counter.Hit) { one(state, now, h) }

// admitted is hits at an instant.
type admitted struct {
	at int64
	n  uint64
}

// In an aligned window pass at most L, and in an interval of length x of at most W pass at most L·(1 + x/W). What is
// used is never less than the weighted count, and exceeds it by less than 1 + p·10⁻⁶.
func TestSlidingWindow_boundsRandom(t *testing.T) {
	for h := range histories(counter.SlidingWindow) {
		var log []admitted
		for range 25 {
			if one := h.do(h.n()); !one.Refused {
				log = append(log, admitted{h.now, one.N})
				s := one.State
				weighted := new(big.Rat).Add(big.NewRat(int64(s.Current), 1),
					new(big.Rat).Mul(big.NewRat(int64(s.Previous), 1), big.NewRat(h.size-h.now%h.size, h.size)))
				over := new(big.Rat).Sub(big.NewRat(one.After, 1), weighted)
				if over.Sign() < 0 ||
					over.Cmp(new(big.Rat).Add(big.NewRat(1, 1), big.NewRat(int64(s.Previous), 1e6))) >= 0 {
					t.Fatalf("%s: %d used, %s by weight", h, one.After, weighted)
				}
			}
			h.step()
		}
		for i := range log {
			window, sum := uint64(0), uint64(0)
			for _, a := range log[i:] {
				if a.at/h.size == log[i].at/h.size {
					window += a.n
				}
				x := a.at - log[i].at
				if x > h.size {
					break
				}
				if sum += a.n; int64(sum)*h.size > int64(h.hit.Limit)*(h.size+x) {
					t.Fatalf("%s: %d of %d passed within %d of %d µs", h, sum, h.hit.Limit, x, h.size)
				}
			}
			if window > h.hit.Limit {
				t.Fatalf("%s: %d of %d passed in a window", h, window, h.hit.Limit)
			}
		}
	}
}

// An interval of length t passes at most B + L·t/W.
func TestTokenBucket_boundsRandom(t *testing.T) {
	for h := range histories(counter.TokenBucket) {
		var log []admitted
		for range 25 {
			if one := h.do(h.n()); !one.Refused {
				log = append(log, admitted{h.now, one.N})
			}
			h.step()
		}
		for i := range log {
			sum := int64(0)
			for _, a := range log[i:] {
				sum += int64(a.n)
				if (sum-int64(h.hit.Burst))*h.size > int64(h.hit.Limit)*(a.at-log[i].at) {
					t.Fatalf("%s: %d passed within %d µs, with burst %d and %d per %d µs", h, sum,
						a.at-log[i].at, h.hit.Burst, h.hit.Limit, h.size)
				}
			}
		}
	}
}

// A caller that takes what there is, before the bucket is full, gets exactly ⌊B + L·t/W⌋ within t of a full one:
// nothing drifts.
func TestTokenBucket_greedyRandom(t *testing.T) {
	for h := range histories(counter.TokenBucket) {
		h.hit.Burst++ // else it is full as soon as there is one
		begun, got := h.now, int64(0)
		drain := func() {
			one := h.do(0)
			left := h.hit.Capacity() - uint64(one.After)
			if left > 0 && h.do(left).Refused || !h.do(1).Refused {
				t.Fatalf("%s: %d were left", h, left)
			}
			got += int64(left)
		}
		for range 25 {
			drain()
			want := new(big.Int).Mul(big.NewInt(int64(h.hit.Limit)), big.NewInt(h.now-begun))
			want.Add(want.Div(want, big.NewInt(h.size)), big.NewInt(int64(h.hit.Burst)))
			if want.Int64() != got {
				t.Fatalf("%s: %d within %d µs, want %s", h, got, h.now-begun, want)
			}
			h.now += h.r.Int64N(h.size*int64(h.hit.Burst-1)/int64(h.hit.Limit) + 1)
		}
	}
}

// Refused hits pass after their wait, and not 2 µs before it.
func TestWaitRandom(t *testing.T) {
	for h := range histories(counter.SlidingWindow, counter.TokenBucket) {
		for range 8 {
			h.do(h.n())
			if h.r.IntN(8) == 0 { // a reload
				h.hit.Limit = 1 + h.r.Uint64N(h.hit.Limit+5)
				h.hit.Burst = min(h.hit.Burst, h.hit.Limit)
			}
			if look := h.do(0); look.Refused != (look.Wait(&look.State, 0) > 0) {
				t.Fatalf("%s: a look, refused %t, waits %d µs", h, look.Refused, look.Wait(&look.State, 0))
			}
			n := h.n()
			if one := h.do(n); one.Refused {
				wait := one.Wait(&one.State, n)
				try := func(at int64) bool {
					state, again := h.state, h.hit
					again.N = n
					judge(&state, at, &again)
					return !again.Refused
				}
				if wait <= 0 || !try(h.now+wait) || wait > 2 && try(h.now+wait-2) {
					t.Fatalf("%s: %d hits of %d wait %d µs: then %t, before %t (state %+v)", h, n,
						h.hit.Limit, wait, try(h.now+wait), try(h.now+wait-2), one.State)
				}
			}
			h.step()
		}
	}
}

// A counter that is left alone is empty after the time that it says, and not 2 µs before.
func TestEmptyRandom(t *testing.T) {
	for h := range histories(counter.SlidingWindow, counter.TokenBucket) {
		for range 8 {
			one := h.do(h.n())
			used := func(at int64) int64 {
				state, again := h.state, h.hit
				judge(&state, at, &again)
				return again.After
			}
			empty := one.TimeToEmpty(&one.State)
			if used(h.now+empty) != 0 || empty > 2 && used(h.now+empty-2) == 0 {
				t.Fatalf("%s: empty in %d µs; then %d are used, before %d", h, empty, used(h.now+empty),
					used(h.now+empty-2))
			}
			h.step()
		}
	}
}

// Refused hits and peeks change nothing; a refund of what was just admitted restores what was used. What is left never
// grows by an admission.
func TestApply_changesRandom(t *testing.T) {
	for h := range histories(counter.SlidingWindow, counter.TokenBucket) {
		for range 8 {
			was, before := h.state, h.do(0).After
			if h.state != was {
				t.Fatalf("%s: a look has written", h)
			}
			n := h.n()
			one := h.do(n)
			switch {
			case one.Refused && h.state != was:
				t.Fatalf("%s: a refused hit has written", h)
			case one.After != before+int64(n) || !one.Refused && one.Used(&one.State) != one.After:
				t.Fatalf("%s: %d used, %d hits, then %d", h, before, n, one.After)
			case !one.Refused:
				if got := h.refund(n); got.After != before || got.Refused {
					t.Fatalf("%s: %d used after a refund, want %d", h, got.After, before)
				}
				h.do(n)
			}
			if h.r.IntN(4) == 0 {
				n := h.r.Uint64N(2*h.hit.Capacity()) + 1
				if got := h.refund(n); got.After < 0 || got.After > one.Used(&one.State) {
					t.Fatalf("%s: %d used after a refund of %d, %d before", h, got.After, n, one.Used(&one.State))
				}
			}
			h.step()
		}
	}
}

// A clock that goes back, however far, has no counter refuse for longer than 2·W or B·T after the next hit.
func TestLoad_clockBackRandom(t *testing.T) {
	for h := range histories(counter.SlidingWindow, counter.TokenBucket) {
		for range 5 {
			h.do(h.n())
			h.step()
		}
		h.now -= h.r.Int64N(1_000_000_000_000_000)
		n := h.n()
		one := h.do(n)
		most := 2 * h.size
		if h.hit.Algorithm == counter.TokenBucket {
			most = h.size*int64(h.hit.Burst)/int64(h.hit.Limit) + 1
		}
		if wait := one.Wait(&one.State, n); one.Refused && wait > most || one.TimeToEmpty(&one.State) > most {
			t.Fatalf("%s: %d µs until it passes, %d until it is empty; want at most %d", h, wait,
				one.TimeToEmpty(&one.State), most)
		}
		// The next one finds the state written, even after a refusal.
		if again := h.do(n); one.Refused && again.State != one.State {
			t.Fatalf("%s: %+v, then %+v", h, one.State, again.State)
		}
		state := h.state
		m := h.hit.Meter
		if m.Load(&state, h.now) {
			t.Fatalf("%s: what a hit has left is from the future", h)
		}
	}
}

// An undo takes back what it counted, in the window in which it was counted.
func TestApply_undoRandom(t *testing.T) {
	for h := range histories(counter.SlidingWindow) {
		h.do(h.n())
		h.step()
		n := h.n()
		one := h.do(n)
		if one.Refused {
			continue
		}
		others := h.do(1)
		h.now += h.r.Int64N(3 * h.size)
		undo := h.hit
		undo.N, undo.Refund, undo.Undo, undo.State = n, true, true, one.State
		judge(&h.state, h.now, &undo)
		left := int64(0)
		if !others.Refused {
			left = 1
		}
		switch h.now/h.size - one.State.At {
		case 0:
			if got := int64(undo.State.Current); got != int64(one.State.Current)-int64(n)+left {
				t.Fatalf("%s: %d left in the window", h, got)
			}
		case 1:
			if got := int64(undo.State.Previous); got != int64(one.State.Current)-int64(n)+left {
				t.Fatalf("%s: %d left in the window before", h, got)
			}
		default:
			if undo.After != 0 {
				t.Fatalf("%s: %d used two windows later", h, undo.After)
			}
		}
	}
}

// FuzzMeter: whatever is stored and however it is judged, no number leaves its range.
func FuzzMeter(f *testing.F) {
	f.Add(uint8(1), int64(60), uint64(10), uint64(10), int64(1_700_000_000_000_000), int64(28333333), uint32(3),
		uint32(9), uint32(0), uint64(2), false)
	f.Add(uint8(2), int64(315360000), uint64(1), uint64(1<<32-1), int64(1), int64(1<<62), uint32(0), uint32(0),
		uint32(1<<32-1), uint64(1<<63), true)
	f.Add(uint8(2), int64(-1), uint64(0), uint64(0), int64(0), int64(-1<<63), uint32(0), uint32(0), uint32(0),
		uint64(0), false)
	f.Fuzz(func(t *testing.T, a uint8, window int64, limit, burst uint64, now, at int64, current, previous, rest uint32,
		n uint64, refund bool) {
		h := counter.Hit{N: n, Refund: refund,
			Meter: counter.Meter{Algorithm: 1 + counter.Algorithm(a%2), Window: window, Limit: limit, Burst: burst}}
		now = min(max(now, 0), 1<<53)
		s := counter.State{At: min(max(at, 0), 1<<53), Current: current, Previous: previous, Rest: rest}
		if h.Algorithm == counter.SlidingWindow {
			s.Rest = 0
		} else {
			s.Current, s.Previous = 0, 0
		}
		m := h.Meter
		m.Load(&s, now)
		before := m.Used(&s)
		h.Judge(&s)
		switch {
		case h.After < 0 || before < 0 || h.State.Now != now || h.Wait(&h.State, n) < 0 || h.TimeToEmpty(&h.State) < 0 || h.Used(&h.State) < 0:
			t.Errorf("%+v", h)
		case h.Refused && h.State != s:
			t.Errorf("refused, and changed: %+v from %+v", h.State, s)
		case refund && h.Used(&h.State) > before:
			t.Errorf("a refund has used more: %d, then %d", before, h.Used(&h.State))
		case !h.Refused && !refund && n > 0 && uint64(h.After) > h.Capacity():
			t.Errorf("%d used of %d", h.After, h.Capacity())
		}
		again := h.State
		if m.Load(&again, now); again != h.State {
			t.Errorf("%+v, loaded at the same instant %+v", h.State, again)
		}
	})
}

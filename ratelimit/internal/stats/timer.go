package stats

import (
	"sync/atomic"
	"time"
)

// timerSlots is how many samples of one timer are kept per drain (100 ms): 5,120 lines a second
// at most, however many requests come.
const timerSlots = 512

// Timer takes durations. At a rate that the sink can write, it keeps every duration; above, every second, fourth,
// eighth …, with the corresponding sample rate.
type Timer struct {
	Series
	on  *atomic.Bool // the registry's timing
	cur atomic.Pointer[samples]

	// Used by the flusher only. A buffer cools for one drain after it was swapped out, so that an Observe that had
	// already loaded the buffer has long written its slot.
	cooling, spare *samples
}

// samples are the samples of one drain. shift is fixed while observers use the buffer.
type samples struct {
	seen  atomic.Uint64
	shift uint64
	slot  [timerSlots]atomic.Int64 // nanoseconds + 1; 0 is empty
}

func newTimer(s Series, on *atomic.Bool) *Timer {
	t := &Timer{Series: s, on: on, cooling: new(samples), spare: new(samples)}
	t.cur.Store(new(samples))
	return t
}

// Enabled reports whether Observe records anything now; otherwise a caller need not read the clock.
func (t *Timer) Enabled() bool { return t.on.Load() }

// Observe records one duration: one load without a receiver, otherwise one atomic addition and at most one store
// (BenchmarkTimer). It never waits.
func (t *Timer) Observe(d time.Duration) {
	if !t.on.Load() {
		return
	}
	s := t.cur.Load()
	i := s.seen.Add(1) - 1
	if i&(1<<s.shift-1) != 0 {
		return
	}
	if i >>= s.shift; i < timerSlots {
		s.slot[i].Store(int64(max(d, 0)) + 1)
	}
}

// drain passes the samples that have cooled to emit and gives the observers an empty buffer. Each kept sample stands
// for 1/rate events. Only the flusher calls it.
func (t *Timer) drain(emit func(d time.Duration, rate float64)) {
	next := t.spare
	retired := t.cur.Load()
	next.shift = shiftFor(retired.seen.Load())
	t.cur.Store(next)

	ready := t.cooling
	t.cooling, t.spare = retired, ready
	seen := ready.seen.Load()
	if seen == 0 {
		return
	}
	n := min((seen+(1<<ready.shift)-1)>>ready.shift, timerSlots)
	kept := uint64(0)
	for i := range n {
		if ready.slot[i].Load() != 0 {
			kept++
		}
	}
	for i := range n {
		if v := ready.slot[i].Swap(0); v != 0 {
			emit(time.Duration(v-1), float64(kept)/float64(seen))
		}
	}
	ready.seen.Store(0)
}

// shiftFor returns the least shift with which one in 2^shift of seen samples fit.
func shiftFor(seen uint64) uint64 {
	var shift uint64
	for seen>>shift > timerSlots {
		shift++
	}
	return shift
}

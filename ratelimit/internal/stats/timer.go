package stats

import (
	"sync/atomic"
	"time"
)

// timerSlots is the number of durations that one timer keeps between two drains, which are 100 ms apart. So a timer
// sends at most 5,120 lines a second, however many requests come.
const timerSlots = 512

// Timer records durations. While there are few, it keeps each duration; otherwise it keeps one of every two, four,
// eight and so on, and passes this rate to the sink together with the durations.
type Timer struct {
	Series
	on  *atomic.Bool // points to Registry.timing
	cur atomic.Pointer[samples]

	// cooling and spare are used by the flusher only. A buffer that has been swapped out is read one drain later (it
	// cools): an Observe that had loaded the buffer before the swap has then long written its slot.
	cooling, spare *samples
}

// samples has the durations that one timer records between two drains: one of every 2^shift. shift does not change
// while the buffer is in use.
type samples struct {
	seen  atomic.Uint64
	shift uint64
	slot  [timerSlots]atomic.Int64 // nanoseconds + 1; 0 if the slot is empty
}

func newTimer(s Series, on *atomic.Bool) *Timer {
	t := &Timer{Series: s, on: on, cooling: new(samples), spare: new(samples)}
	t.cur.Store(new(samples))
	return t
}

// Enabled reports whether Observe records anything now. If not, the caller need not read the clock.
func (t *Timer) Enabled() bool { return t.on.Load() }

// Observe records one duration. It costs one atomic load while timers are off, otherwise an atomic addition and at most
// one store (BenchmarkTimer). It never waits.
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

// drain calls emit with the durations of the buffer that was swapped out one drain ago, and swaps in an empty buffer.
// Each duration stands for 1/rate events. Only the flusher calls it.
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

// shiftFor returns the least shift for which one in 2^shift of the observed durations fit into timerSlots.
func shiftFor(seen uint64) uint64 {
	var shift uint64
	for seen>>shift > timerSlots {
		shift++
	}
	return shift
}

package link

import (
	"sync"
	"time"
)

// A store counts as stalled when an answer has been due for STORE_STALL, counting only time in which this process ran.
// A process that gets no processor finds every answer late without any fault of the store. So time counts only as far
// as a timer of this process, a heartbeat, fired on time.

// heartbeats is how many heartbeats make up STORE_STALL.
const heartbeats = 32

// RanFor returns how much of the time between two heartbeats counts: a heartbeat that comes much too late shows that
// the process did not run.
func RanFor(elapsed, beat time.Duration) time.Duration { return min(elapsed, 2*beat) }

// StallWatch calls stalled when the time between its start and stop exceeds a limit, counting only time in which the
// process ran. It watches one operation at a time.
type StallWatch struct {
	After   time.Duration
	Stalled func()

	mu    sync.Mutex
	on    bool
	timer *time.Timer
	last  time.Time
	ran   time.Duration
}

func (w *StallWatch) beat() time.Duration { return max(w.After/heartbeats, time.Millisecond) }

func (w *StallWatch) Start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on, w.ran, w.last = true, 0, time.Now()
	if w.timer == nil {
		w.timer = time.AfterFunc(w.beat(), w.look)
	} else {
		w.timer.Reset(w.beat())
	}
}

func (w *StallWatch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = false
	w.timer.Stop() // a timer that fires all the same finds nothing to watch, or checks a little early
}

func (w *StallWatch) look() {
	w.mu.Lock()
	if !w.on {
		w.mu.Unlock()
		return
	}
	now := time.Now()
	w.ran += RanFor(now.Sub(w.last), w.beat())
	w.last = now
	if w.on = w.ran < w.After; w.on {
		w.timer.Reset(w.beat())
	}
	on := w.on
	w.mu.Unlock()
	if !on {
		w.Stalled()
	}
}

// OutFor is how long a pipeline has waited for an answer, counting only time in which this process ran.
type OutFor struct {
	since int64 // by the store's clock, in nanoseconds
	ran   time.Duration
}

// Look adds the part of the time since the last call that counts, and returns the sum.
func (o *OutFor) Look(since, now int64, ran time.Duration) time.Duration {
	if o.since != since {
		*o = OutFor{since: since}
	}
	o.ran = min(o.ran+ran, time.Duration(now-since))
	return o.ran
}

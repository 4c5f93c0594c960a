package link

import (
	"sync"
	"time"
)

// A store counts as stalled when an answer is due for STORE_STALL of time in which this process itself ran. A
// process that gets no processor finds every answer late, and the store is not at fault: so time counts only as
// far as a timer of this process came when it should, a heartbeat.

// heartbeats is how many make up STORE_STALL.
const heartbeats = 32

// RanFor is how much of the time between two beats counts: one that comes much too late shows that the process
// did not run.
func RanFor(elapsed, beat time.Duration) time.Duration { return min(elapsed, 2*beat) }

// StallWatch calls stalled when what began with start has not ended by stop, after that much time in which the
// process ran. It is used for one thing at a time.
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
	w.timer.Stop() // one that fires all the same finds nothing under way, or checks a little early
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

// OutFor is how long a pipeline has been without an answer, as far as this process ran.
type OutFor struct {
	since int64 // nanoseconds of the store's clock
	ran   time.Duration
}

// Look adds the part of the time since the previous call that counts.
func (o *OutFor) Look(since, now int64, ran time.Duration) time.Duration {
	if o.since != since {
		*o = OutFor{since: since}
	}
	o.ran = min(o.ran+ran, time.Duration(now-since))
	return o.ran
}

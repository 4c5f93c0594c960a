package link

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// BreakerFailures is how many failures open a breaker if the store answers nothing between them.
	BreakerFailures = 5
	// ProbeEvery is how often an open breaker probes the store.
	ProbeEvery = 500 * time.Millisecond
	// Flaps is how often a breaker may open within a minute before it counts as flapping.
	Flaps = 10
)

// Breaker is a circuit breaker: it decides whether to call a store. BreakerFailures failures of connections without an
// answer between them, or a batch without an answer for too long, open it; a successful probe closes it. Errors that
// say nothing about the connection do not count, such as a caller's deadline or a command that the store refuses. A
// Breaker has no clock of its own: its methods take the time as a duration since an instant that the caller chooses.
type Breaker struct {
	Stall time.Duration // age of an unanswered batch at which the breaker opens; negative: no age does

	open     atomic.Bool
	mu       sync.Mutex
	failures int // how many failures there were in a row
	probing  bool
	probe    time.Duration // when the next probe is due

	opened [Flaps + 1]time.Duration // when the breaker last opened, as a ring; the oldest entry is overwritten next
	times  int                      // how often the breaker has opened in all
	warned time.Duration            // when Warns last returned true
}

// IsOpen reports whether the breaker is open: the store is not called for now. A call of the store needs no other
// method, and IsOpen takes no lock.
func (b *Breaker) IsOpen() bool { return b.open.Load() }

// Answered records that the store has answered a batch, so that earlier failures no longer count.
func (b *Breaker) Answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
}

// Failed records a failure of the connection. It returns true if the breaker has opened because of it.
func (b *Breaker) Failed(now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures++; b.failures < BreakerFailures {
		return false
	}
	return b.trip(now)
}

// Aged records the age of the oldest batch that the store has not answered. It returns true if the breaker has opened
// because of it.
func (b *Breaker) Aged(age, now time.Duration) bool {
	if b.Stall < 0 || age < b.Stall {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trip(now)
}

func (b *Breaker) trip(now time.Duration) bool {
	if b.open.Load() {
		return false
	}
	b.failures, b.probe = 0, now+ProbeEvery
	b.opened[b.times%len(b.opened)] = now
	b.times++
	b.open.Store(true)
	return true
}

// Flapping reports whether the breaker has opened more than Flaps times within the minute before now.
func (b *Breaker) Flapping(now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flapping(now)
}

func (b *Breaker) flapping(now time.Duration) bool {
	return b.times >= len(b.opened) && now-b.opened[b.times%len(b.opened)] < time.Minute
}

// Warns reports whether the caller should log a warning that the breaker flaps. It returns true at most once a minute.
func (b *Breaker) Warns(now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.flapping(now) || b.warned > 0 && now-b.warned < time.Minute {
		return false
	}
	b.warned = now
	return true
}

// ProbeDue reports whether the caller should probe the store now. If so, the caller has to report the outcome by
// Probed.
func (b *Breaker) ProbeDue(now time.Duration) bool {
	if !b.open.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.probing || now < b.probe {
		return false
	}
	b.probing, b.probe = true, now+ProbeEvery
	return true
}

// ProbeNow makes the next probe due at once.
func (b *Breaker) ProbeNow() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probe = 0
}

// Probed records the outcome of a probe. If the store has answered (ok), the breaker closes.
func (b *Breaker) Probed(ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if ok {
		b.failures = 0
		b.open.Store(false)
	}
}

// A store counts as stalled if it has not answered for STORE_STALL. Only time in which this process ran counts: a
// process that gets no processor receives every answer late, without any fault of the store. How much the process ran
// is measured by a heartbeat, a timer of the process that should fire at regular times.

// heartbeats is how many heartbeats there are in the time STORE_STALL.
const heartbeats = 32

// RanFor returns how much of the time elapsed between two heartbeats counts, where beat is the regular time between
// them. At most twice that time counts: a heartbeat that comes later shows that the process did not run.
func RanFor(elapsed, beat time.Duration) time.Duration { return min(elapsed, 2*beat) }

// StallWatch calls Stalled if more than After passes between Start and Stop, counting only time in which the process
// ran. It watches one operation at a time.
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

// Start begins to watch an operation.
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

// Stop ends the watch, since the operation is complete.
func (w *StallWatch) Stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on = false
	w.timer.Stop() // a timer that fires all the same finds w.on false, or checks the next operation a little early
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

// OutFor measures how long a pipeline has waited for an answer, counting only time in which this process ran.
type OutFor struct {
	since int64 // when the batch was sent, on the store's clock, in nanoseconds
	ran   time.Duration
}

// Look returns how long the batch that was sent at since has waited for its answer, not counting time in which this
// process did not run. ran is how long the process ran since the caller's previous check. A since that differs from the
// previous call's starts the sum at 0. The result never exceeds now − since.
func (o *OutFor) Look(since, now int64, ran time.Duration) time.Duration {
	if o.since != since {
		*o = OutFor{since: since}
	}
	o.ran = min(o.ran+ran, time.Duration(now-since))
	return o.ran
}

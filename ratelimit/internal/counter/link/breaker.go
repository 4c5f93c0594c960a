package link

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// BreakerFailures in a row open the breaker.
	BreakerFailures = 5
	// ProbeEvery is how often an open breaker probes the store.
	ProbeEvery = 500 * time.Millisecond
	// Flaps is how many openings within a minute are not yet flapping.
	Flaps = 10
)

// Breaker decides whether to call the store. It knows only the state of the connection: a caller's deadline, or a
// command that the store refuses, says nothing about that state. It has no clock of its own.
type Breaker struct {
	Stall time.Duration // negative: the age of a batch never opens the breaker

	open     atomic.Bool
	mu       sync.Mutex
	failures int // in a row
	probing  bool
	probe    time.Duration // when the next probe is due, on the caller's clock

	opened [Flaps + 1]time.Duration // when the breaker opened; the oldest is at the index of the next
	times  int                      // how often the breaker has opened
	warned time.Duration            // when Warns last reported true
}

// IsOpen reports whether the store is given up for now. Add uses no other method of the breaker.
func (b *Breaker) IsOpen() bool { return b.open.Load() }

// Answered notes that the store has answered a batch.
func (b *Breaker) Answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
}

// Failed notes a failure of the connection. It returns true if the breaker has just opened.
func (b *Breaker) Failed(now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures++; b.failures < BreakerFailures {
		return false
	}
	return b.trip(now)
}

// Aged notes the age of the oldest batch in the store. It returns true if the breaker has just opened.
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

// Warns reports whether it is time to warn that the breaker flaps: at most once a minute.
func (b *Breaker) Warns(now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.flapping(now) || b.warned > 0 && now-b.warned < time.Minute {
		return false
	}
	b.warned = now
	return true
}

// ProbeDue reports whether a probe is due; if so, the caller sends the probe and then calls Probed.
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

// Probed notes a probe's outcome; an answer closes the breaker.
func (b *Breaker) Probed(ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if ok {
		b.failures = 0
		b.open.Store(false)
	}
}

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

package counter

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// breakerFailures in a row open the breaker.
	breakerFailures = 5
	// probeEvery is how often an open breaker asks the store whether it is back.
	probeEvery = 500 * time.Millisecond
)

// breaker decides whether the store is worth asking. It knows only how the link fares: a caller's
// deadline, or a command that the store refuses, says nothing about it. It has no clock of its own.
type breaker struct {
	stall time.Duration // negative: age never opens it

	open     atomic.Bool
	mu       sync.Mutex
	failures int // in a row
	probing  bool
	probe    time.Duration // when the next probe is due, on the caller's clock
}

// isOpen reports whether the store is given up for now. It is all that an Add looks at.
func (b *breaker) isOpen() bool { return b.open.Load() }

// answered notes that the store has answered a batch.
func (b *breaker) answered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
}

// failed notes a failure of the link. True: the breaker has just opened.
func (b *breaker) failed(now time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures++; b.failures < breakerFailures {
		return false
	}
	return b.trip(now)
}

// aged notes how long the oldest batch has been in the store. True: the breaker has just opened.
func (b *breaker) aged(age, now time.Duration) bool {
	if b.stall < 0 || age < b.stall {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.trip(now)
}

func (b *breaker) trip(now time.Duration) bool {
	if b.open.Load() {
		return false
	}
	b.failures, b.probe = 0, now+probeEvery
	b.open.Store(true)
	return true
}

// probeDue reports whether a probe should be sent now; the caller sends it and reports probed.
func (b *breaker) probeDue(now time.Duration) bool {
	if !b.open.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.probing || now < b.probe {
		return false
	}
	b.probing, b.probe = true, now+probeEvery
	return true
}

// hurry makes the next probe due at once.
func (b *breaker) hurry() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probe = 0
}

// probed notes a probe's outcome; an answer closes the breaker.
func (b *breaker) probed(ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.probing = false
	if ok {
		b.failures = 0
		b.open.Store(false)
	}
}

// Package clock computes PostgreSQL's time between readings of it, so that all replicas use the same clock, whatever
// the clocks of their machines say.
//
// The current time is the time of the last reading plus what the machine's monotonic clock has counted since. So the
// clock continues while the database is unavailable, and a step of the machine's clock does not affect it.
package clock

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// stepAbove is the difference above which a new reading is applied at once. A smaller difference is corrected
	// gradually.
	stepAbove = 500 * time.Millisecond
	// slewPerSecond is how much of a difference is corrected in each second.
	slewPerSecond = 5 * time.Millisecond
	// slowest is how long a reading may take. Its midpoint may be wrong by half of that time.
	slowest = time.Second
	// warnAbove is the difference between the machine's clock and PostgreSQL's above which a warning is logged.
	warnAbove = 2 * time.Second
	warnEvery = time.Hour
)

// Reading is what PostgreSQL's clock said at some time between Sent and Received, which are readings of time.Now.
type Reading struct {
	Server         time.Time
	Sent, Received time.Time
}

// middle returns when, by this machine's clock, PostgreSQL is assumed to have read its clock: halfway between Sent and
// Received.
func (r Reading) middle() time.Time { return r.Sent.Add(r.Received.Sub(r.Sent) / 2) }

// Clock is PostgreSQL's clock. A Clock that is nil or has no reading yet is the machine's clock. Its methods may be
// called from any goroutine.
type Clock struct {
	log *slog.Logger
	run atomic.Pointer[run]

	mu     sync.Mutex // guards the fields below
	warned time.Time
}

// run holds the last reading, and in slew the time difference that was left to correct gradually from then on.
type run struct {
	from   time.Time // time of the machine's clock, with a monotonic reading
	server time.Time // PostgreSQL's time at from, without a monotonic reading
	slew   time.Duration
}

// New returns a Clock without a reading. log gets steps of the clock and warnings.
func New(log *slog.Logger) *Clock { return &Clock{log: log} }

// Now returns PostgreSQL's current time.
func (c *Clock) Now() time.Time {
	if c == nil {
		return time.Now()
	}
	r := c.run.Load()
	if r == nil {
		return time.Now()
	}
	return r.at(time.Now())
}

func (r *run) at(machine time.Time) time.Time {
	passed := machine.Sub(r.from)
	most := max(0, passed/(time.Second/slewPerSecond))
	return r.server.Add(passed + min(most, max(-most, r.slew)))
}

// Start applies the first reading, however long it took.
func (c *Clock) Start(r Reading) {
	c.run.Store(&run{from: r.middle(), server: r.Server.Round(0)})
	c.warn()
}

// Take applies a further reading. It ignores a reading that took longer than slowest.
func (c *Clock) Take(r Reading) {
	now := c.run.Load()
	switch {
	case now == nil:
		c.Start(r)
		return
	case r.Received.Sub(r.Sent) > slowest:
		return
	}
	middle := r.middle()
	here := now.at(middle)
	off := r.Server.Sub(here)
	if off.Abs() > stepAbove {
		c.log.Warn("the time is another than was computed since the last reading of the database's clock",
			"computed", here.UTC(), "database", r.Server.UTC())
		here, off = r.Server, 0
	}
	c.run.Store(&run{from: middle, server: here.Round(0), slew: off})
	c.warn()
}

// Offset returns how far the machine's clock is ahead of PostgreSQL's; 0 before the first reading.
func (c *Clock) Offset() time.Duration {
	r := c.run.Load()
	if r == nil {
		return 0
	}
	machine := time.Now()
	return machine.Round(0).Sub(r.at(machine))
}

// warn logs, at most once an hour, that the machine's clock and PostgreSQL's differ by more than warnAbove.
func (c *Clock) warn() {
	off := c.Offset()
	if off.Abs() <= warnAbove {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); c.warned.IsZero() || now.Sub(c.warned) >= warnEvery {
		c.warned = now
		c.log.Warn("this machine's clock differs from the database's, which counts; logs and certificates go by the "+
			"machine's: check its time synchronization", "ahead", off.Round(time.Millisecond))
	}
}

// Package clock keeps PostgreSQL's time between readings of it, so that all replicas judge by one clock, whatever their
// machines' clocks say.
//
// The time of now is that of the last reading and what the machine's monotonic clock has counted since. It therefore
// goes on while the database is unavailable, and a step of the machine's clock changes nothing.
package clock

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// stepAbove is the difference of a reading that is taken over at once; a smaller one is slewed.
	stepAbove = 500 * time.Millisecond
	// slewPerSecond is how much of a difference is made up for in a second.
	slewPerSecond = 5 * time.Millisecond
	// slowest is the longest a reading may take: its midpoint may be wrong by half of that.
	slowest = time.Second
	// warnAbove is the difference between the machine's clock and PostgreSQL's that is warned of.
	warnAbove = 2 * time.Second
	warnEvery = time.Hour
)

// Reading is what PostgreSQL's clock said between Sent and Received, two readings of time.Now.
type Reading struct {
	Server         time.Time
	Sent, Received time.Time
}

// middle is when, by this machine, the server is taken to have read its clock.
func (r Reading) middle() time.Time { return r.Sent.Add(r.Received.Sub(r.Sent) / 2) }

// Clock is PostgreSQL's time. A nil one, and one without a reading, is the machine's. Its methods may be called from any
// goroutine.
type Clock struct {
	log *slog.Logger
	run atomic.Pointer[run]

	mu     sync.Mutex // for what follows
	warned time.Time
}

// run is the time since a reading.
type run struct {
	from   time.Time // of the machine, with its monotonic reading
	server time.Time // at from, without one
	slew   time.Duration
}

// New returns a clock without a reading. log gets steps and warnings.
func New(log *slog.Logger) *Clock { return &Clock{log: log} }

// Now returns the present time.
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

// Start takes the first reading, however long it took.
func (c *Clock) Start(r Reading) {
	c.run.Store(&run{from: r.middle(), server: r.Server.Round(0)})
	c.warn()
}

// Take takes another reading. One that took too long is left out.
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

// Offset returns by how much the machine's clock is ahead of PostgreSQL's; 0 before the first reading.
func (c *Clock) Offset() time.Duration {
	r := c.run.Load()
	if r == nil {
		return 0
	}
	machine := time.Now()
	return machine.Round(0).Sub(r.at(machine))
}

// warn says, at most hourly, that the machine's clock is wrong.
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

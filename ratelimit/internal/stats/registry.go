// Package stats counts what the daemon does and hands the figures to sinks.
//
// It stands on the ground floor beside rls, since the rules resolve their counters when they are
// compiled; it never knows requests, rules or listeners. Names follow spec/ratelimit.md section 7.
package stats

import (
	"sync/atomic"
)

// Counter only grows. The zero value is ready.
type Counter struct{ n atomic.Uint64 }

// Add adds n.
func (c *Counter) Add(n uint64) {
	if n != 0 {
		c.n.Add(n)
	}
}

// Inc adds one.
func (c *Counter) Inc() { c.n.Add(1) }

// Value is the total since the program started.
func (c *Counter) Value() uint64 { return c.n.Load() }

// Rule is the counters of one rule (or of one runtime value of it): spec 7.2, 5.5.
type Rule struct {
	TotalHits, OverLimit, NearLimit, WithinLimit, ShadowMode, OverLimitWithLocalCache Counter
}

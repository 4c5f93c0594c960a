package memcached

import (
	"math"

	"gatehouse/ratelimit/internal/counter"
)

// localCount is what this process knows of a counter and its node may not show yet.
//
// memcached is read first and written afterwards, in the background. Without adding the hits here, hits on their way
// would be invisible, and many concurrent hits could exceed a limit. So within one process the totals are exact; only
// between processes are hits seen late, by about one round trip.
//
// A localCount lives while a call uses the counter or a change is pending. The store guards all fields.
type localCount struct {
	node *node
	key  string
	pins int // calls that use the counter

	// base is the least that the counter is known to be, without sent and pending.
	base int64
	// sent is a change on its way, which the node's answers may or may not include; pending is a change that waits.
	// Negative changes are refunds.
	sent, pending int64
	// shrunk counts refunds that have arrived: a total from a lookup before the refund is not comparable.
	shrunk uint32
	// ends is when a counter made by the pending change expires, in Unix seconds.
	ends int64

	queued bool // in the node's queue
	// resets wait until the counter is deleted, which happens after the pending change is written.
	resets []chan<- error

	// For one request under Request.Stop: the total before it, and the total that it would make.
	was, would int64
	touched    bool
}

// learn takes in the total from a lookup. shrunk is the local count's value when the lookup was sent.
func (t *localCount) learn(seen int64, shrunk uint32) {
	if shrunk != t.shrunk {
		return
	}
	// The total may include part of the change on its way.
	t.base = max(t.base, seen-max(0, t.sent))
}

// total returns the counter's total as far as it is known.
func (t *localCount) total() int64 {
	return shifted(shifted(t.base, t.sent), t.pending)
}

// shifted returns total + by, at least 0 and at most 2^63-1.
func shifted(total, by int64) int64 {
	if by > 0 {
		return counter.Saturate(total, by)
	}
	return max(0, total+by)
}

// arrived notes that the node has applied the sent change, and that its total is now total.
func (t *localCount) arrived(total int64) {
	if t.sent < 0 {
		t.shrunk++
	}
	t.base, t.sent = total, 0
}

// idle reports whether the local count is no longer needed.
func (t *localCount) idle() bool { return t.pins == 0 && t.sent == 0 && t.pending == 0 && !t.queued }

// deleted notes that the counter was deleted: totals from earlier lookups are not valid any longer.
func (t *localCount) deleted() {
	t.shrunk++
	t.base, t.sent = 0, 0
}

// hitsOf returns how many hits a change of the counter represents.
func hitsOf(change int64) uint64 {
	if change == math.MinInt64 {
		return 1 << 63
	}
	return uint64(max(change, -change))
}

package memcached

import (
	"math"

	"gatehouse/ratelimit/internal/counter"
)

// localCount is what this process knows of one counter that its node may not show yet.
//
// memcached is read first and written to afterwards, in the background. Without the sum of both here, hits on their way
// would be invisible, and many concurrent ones could exceed one limit. So within one process the totals are exact; only
// between processes hits are seen late, by about one round trip.
//
// It lives while a call uses the counter or something is pending. All fields are guarded by the store.
type localCount struct {
	node *node
	key  string
	pins int // calls that use it

	// base is the least that the counter is known to hold without sent and pending.
	base int64
	// sent is on its way and may be in the node's answers or not; pending waits. Negative: refunds.
	sent, pending int64
	// shrunk counts refunds that have arrived: what a lookup saw before one is not comparable.
	shrunk uint32
	// ends is when a counter made by what is pending expires, Unix seconds.
	ends int64

	queued bool // in the node's queue
	// resets wait until the counter has been deleted, which it is after what is pending has been written.
	resets []chan<- error

	// Of one request under Request.Stop: the total before it and as it would be.
	was, would int64
	touched    bool
}

// learn takes in what a lookup saw. shrunk is the local count's from when the lookup was sent.
func (t *localCount) learn(seen int64, shrunk uint32) {
	if shrunk != t.shrunk {
		return
	}
	// What is on its way may be part of what was seen.
	t.base = max(t.base, seen-max(0, t.sent))
}

// total is the counter as far as it is known.
func (t *localCount) total() int64 {
	return shifted(shifted(t.base, t.sent), t.pending)
}

// shifted is total + by, at least 0 and at most 2^63-1.
func shifted(total, by int64) int64 {
	if by > 0 {
		return counter.Saturate(total, by)
	}
	return max(0, total+by)
}

// arrived notes that what was sent is in the counter, which now holds total.
func (t *localCount) arrived(total int64) {
	if t.sent < 0 {
		t.shrunk++
	}
	t.base, t.sent = total, 0
}

// idle reports whether the local count is no longer needed.
func (t *localCount) idle() bool { return t.pins == 0 && t.sent == 0 && t.pending == 0 && !t.queued }

// deleted notes that the counter is gone: what a lookup saw before says nothing any more.
func (t *localCount) deleted() {
	t.shrunk++
	t.base, t.sent = 0, 0
}

// hitsOf is how many hits a change of the counter stands for.
func hitsOf(change int64) uint64 {
	if change == math.MinInt64 {
		return 1 << 63
	}
	return uint64(max(change, -change))
}

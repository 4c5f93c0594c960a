package memcached

import (
	"math"

	"gatehouse/ratelimit/internal/counter"
)

// tally is what this process knows of one counter that its node may not have told yet.
//
// memcached is asked first and told afterwards, in the background. Were the two not put together here,
// hits on their way would be invisible, and many at once could pass one limit. So within one process the
// totals are exact; only between processes hits are seen late, by about one round trip.
//
// It lives while a call looks at the counter or something is owed. All fields are guarded by the store.
type tally struct {
	node *node
	key  string
	pins int // calls that look at it

	// base is the least that the counter is known to hold without sent and owed.
	base int64
	// sent is on its way and may be in the node's answers or not; owed waits. Negative: refunds.
	sent, owed int64
	// shrunk counts refunds that have arrived: what a look saw before one is not comparable.
	shrunk uint32
	// ends is when a counter made by what is owed expires, Unix seconds.
	ends int64

	queued bool // in the node's queue

	// Of one request under Request.Stop: the total before it and as it would be.
	was, would int64
	touched    bool
}

// learn takes in what a look saw. shrunk is the tally's from when the look was sent.
func (t *tally) learn(seen int64, shrunk uint32) {
	if shrunk != t.shrunk {
		return
	}
	// What is on its way may be part of what was seen.
	t.base = max(t.base, seen-max(0, t.sent))
}

// total is the counter as far as it is known.
func (t *tally) total() int64 {
	return shifted(shifted(t.base, t.sent), t.owed)
}

// shifted is total + by, at least 0 and at most 2^63-1.
func shifted(total, by int64) int64 {
	if by > 0 {
		return counter.Saturate(total, by)
	}
	return max(0, total+by)
}

// arrived notes that what was sent is in the counter, which now holds total.
func (t *tally) arrived(total int64) {
	if t.sent < 0 {
		t.shrunk++
	}
	t.base, t.sent = total, 0
}

// idle says that nobody needs the tally.
func (t *tally) idle() bool { return t.pins == 0 && t.sent == 0 && t.owed == 0 && !t.queued }

// size is how many hits a change of the counter stands for.
func size(change int64) uint64 {
	if change == math.MinInt64 {
		return 1 << 63
	}
	return uint64(max(change, -change))
}

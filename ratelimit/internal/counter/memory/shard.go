package memory

import (
	"sync"

	"gatehouse/ratelimit/internal/siphash"
)

// sweepGrace is how many seconds a counter is kept after its window, for requests that took their time just before the
// window's end and arrive just after it.
const sweepGrace = 2

// total is the counter of a fixed window: 32 bytes with its id, so that two share a cache line.
type total struct {
	count int64
	limit uint32 // the limit at the last hit, at most 2^32-1
	end   uint32 // Unix seconds: good until the year 2106
}

func (t *total) expired(now int64) bool { return int64(t.end) <= now }

// full reports whether the counter is at its limit: evicting it would admit hits that the limit has refused.
func (t *total) full() bool { return t.count >= int64(t.limit) }

// shard is one part of the store, exactly a cache line.
type shard struct {
	mu     sync.Mutex
	fixed  table[total]
	meters *meters // nil until the first sliding window or token bucket
}

func (s *shard) total(x siphash.ID) int64 {
	if sl := s.fixed.find(x); sl != nil {
		return sl.v.count
	}
	return 0
}

// evict drops one counter to make room for another: of the samples a dead counter, otherwise the one least used against
// its limit, never one at or over its limit. live reports that the dropped counter was still in use. clock returns the
// instant for counters that use the clock.
func (s *shard) evict(now int64, clock func(int64) int64) (live, ok bool) {
	i, least, dead := s.fixed.leastUsed(func(t *total) (used float64, full, dead bool) {
		return float64(t.count) / float64(t.limit), t.full(), t.expired(now)
	})
	if s.meters != nil && !dead {
		instant := clock(0)
		j, used, over := s.meters.leastUsed(func(v *meter) (share float64, full, dead bool) {
			used, capacity, dead := v.used(instant)
			return float64(used) / float64(capacity), uint64(used) >= capacity, dead
		})
		if over || j >= 0 && used < least {
			s.meters.remove(j)
			return !over, true
		}
	}
	if i < 0 {
		return false, false
	}
	s.fixed.remove(i)
	return !dead, true
}

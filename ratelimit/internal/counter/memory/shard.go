package memory

import (
	"math"
	"math/rand/v2"
	"sync"

	"gatehouse/ratelimit/internal/siphash"
)

// sweepGrace keeps a counter this many seconds past its window, for requests that took their
// time just before the edge and arrive just after it.
const sweepGrace = 2

// total is the counter of a fixed window: with its id 32 bytes, so that two of them share a cache line.
type total struct {
	count int64
	limit uint32 // what it was last judged against, at most 2^32-1
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

// sweep checks the next few slots and drops the counters whose window is over; it returns how many.
func (s *shard) sweep(now int64) (dropped int) {
	t := &s.fixed
	for range min(sweepPerInsert, len(t.slots)) {
		if sl := t.next(); sl.used() && sl.v.expired(now-sweepGrace) {
			t.remove(t.cursor)
			dropped++
			continue
		}
		t.cursor++
	}
	return dropped
}

// leastUsed draws some counters of fixed windows. It returns the place of one whose window is over if there is any,
// else of the one least used against its limit, never one at or over it; -1: there is none to evict.
func (s *shard) leastUsed(now int64) (victim int, least float64, dead bool) {
	victim, least = -1, math.Inf(1)
	t := &s.fixed
	if t.n == 0 {
		return victim, least, false
	}
	for seen, tries := 0, 0; seen < sampled && tries < 8*sampled; tries++ {
		i := rand.IntN(len(t.slots))
		sl := &t.slots[i]
		if !sl.used() {
			continue
		}
		if sl.v.expired(now) {
			return i, 0, true
		}
		if used := float64(sl.v.count) / float64(sl.v.limit); !sl.v.full() && used < least {
			victim, least = i, used
		}
		seen++
	}
	return victim, least, false
}

// evict drops one counter to make room for another: one that is over if the samples hold any, else the one least used
// against its limit, never one at or over it. live says that it still counted. clock is for counters that go by it.
func (s *shard) evict(now int64, clock func(int64) int64) (live, ok bool) {
	i, least, dead := s.leastUsed(now)
	if s.meters != nil && !dead {
		j, used, over := leastUsedMeter(s.meters, clock(0))
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

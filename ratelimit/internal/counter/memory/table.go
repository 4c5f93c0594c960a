package memory

import (
	"math"
	"math/bits"
	"math/rand/v2"
	"sync"

	"gatehouse/ratelimit/internal/siphash"
)

const (
	// minSlots is a shard's first table: an idle daemon holds next to nothing.
	minSlots = 16
	// sweepPerInsert is how many slots are looked at for expired counters before a new one is
	// stored. With 8 the whole table has been seen after inserting an eighth of its size, so
	// dead counters can never be more than that share of it.
	sweepPerInsert = 8
	// sweepGrace keeps a counter this many seconds past its window, for requests that took their
	// time just before the edge and arrive just after it.
	sweepGrace = 2
	// sampled is how many counters are compared when one must go. They are drawn one by one: taking
	// neighbours lets the evictions themselves leave stretches of nothing but blocked counters.
	sampled = 16
)

// slot is one counter: 32 bytes without a pointer, so that the collector never looks inside and
// two of them share a cache line. id.B is never 0 in a slot in use.
type slot struct {
	id    siphash.ID
	count int64
	limit uint32 // what it was last judged against, at most 2^32-1
	end   uint32 // Unix seconds: good until the year 2106
}

func (s *slot) used() bool { return s.id.B != 0 }

func (s *slot) expired(now int64) bool { return int64(s.end) <= now }

// full says that evicting this counter would grant its key what the limit has already refused.
func (s *slot) full() bool { return s.count >= int64(s.limit) }

// shard is one part of the table, exactly a cache line: open addressing with linear probing over an array that grows by
// half when four fifths are taken. Deleting shifts the followers back, so there are no tombstones.
type shard struct {
	mu     sync.Mutex
	slots  []slot
	n      int // slots in use
	cursor int // where the next sweep goes on
	lap    int // most slots in use seen during the present round of the sweep
	_      [8]byte
}

// home is where an id would like to be: the high bits of A, scaled to the table's size.
func (s *shard) home(x siphash.ID) int {
	hi, _ := bits.Mul64(x.A, uint64(len(s.slots)))
	return int(hi)
}

// find returns x's slot, or nil.
func (s *shard) find(x siphash.ID) *slot {
	if s.n == 0 {
		return nil
	}
	for i := s.home(x); ; i++ {
		if i == len(s.slots) {
			i = 0
		}
		sl := &s.slots[i]
		if sl.id == x {
			return sl
		}
		if !sl.used() {
			return nil
		}
	}
}

// index is the place of a slot that find has returned.
func (s *shard) index(sl *slot) int {
	i := s.home(sl.id)
	for &s.slots[i] != sl {
		if i++; i == len(s.slots) {
			i = 0
		}
	}
	return i
}

// place stores a counter that is not there yet; there must be room.
func (s *shard) place(v slot) {
	i := s.home(v.id)
	for s.slots[i].used() {
		if i++; i == len(s.slots) {
			i = 0
		}
	}
	s.slots[i] = v
	s.n++
	s.lap = max(s.lap, s.n)
}

// remove empties slot i and moves back the followers that probing would no longer reach.
func (s *shard) remove(i int) {
	size := len(s.slots)
	for j := i; ; {
		if j++; j == size {
			j = 0
		}
		if !s.slots[j].used() {
			break
		}
		// j may move to i if its home is not between the two.
		if (j-s.home(s.slots[j].id)+size)%size >= (j-i+size)%size {
			s.slots[i] = s.slots[j]
			i = j
		}
	}
	s.slots[i] = slot{}
	s.n--
}

// sweep looks at the next few slots and drops the counters whose window is over; it returns how many.
// At the end of a round the table shrinks if it held few counters all the while.
func (s *shard) sweep(now int64) (dropped int) {
	for range min(sweepPerInsert, len(s.slots)) {
		if s.cursor >= len(s.slots) {
			s.cursor = 0
			if want := s.lap * 2; want >= minSlots && want < len(s.slots)/2 {
				s.resize(want)
			}
			s.lap = s.n
		}
		sl := &s.slots[s.cursor]
		if sl.used() && sl.expired(now-sweepGrace) {
			s.remove(s.cursor) // a follower may stand here now: look again
			dropped++
			continue
		}
		s.cursor++
	}
	return dropped
}

// makeRoom lets one more counter be placed.
func (s *shard) makeRoom() {
	if s.n+1 > len(s.slots)/5*4 {
		s.resize(max(minSlots, len(s.slots)/2*3))
	}
}

func (s *shard) resize(size int) {
	old := s.slots
	s.slots, s.n, s.cursor = make([]slot, size), 0, 0
	for i := range old {
		if old[i].used() {
			s.place(old[i])
		}
	}
}

// evict drops one counter to make room for another: one whose window is over if the sample holds
// any, else the one least used against its limit, never one at or over it. live says that it was
// still in its window.
func (s *shard) evict(now int64) (live, ok bool) {
	if s.n == 0 {
		return false, false
	}
	victim, least := -1, math.Inf(1)
	for seen, tries := 0, 0; seen < sampled && tries < 8*sampled; tries++ {
		i := rand.IntN(len(s.slots))
		sl := &s.slots[i]
		if !sl.used() {
			continue
		}
		if sl.expired(now) {
			s.remove(i)
			return false, true
		}
		if used := float64(sl.count) / float64(sl.limit); !sl.full() && used < least {
			victim, least = i, used
		}
		seen++
	}
	if victim < 0 {
		return false, false
	}
	s.remove(victim)
	return true, true
}

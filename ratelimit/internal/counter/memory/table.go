package memory

import (
	"math"
	"math/bits"
	"math/rand/v2"

	"gatehouse/ratelimit/internal/siphash"
)

const (
	// minSlots is a table's first size, small for an idle daemon.
	minSlots = 16
	// sweepPerInsert is how many slots are checked for dead counters before a new counter is stored. With 8 the whole
	// table has been checked after inserting an eighth of its size, so dead counters can never be more than that share
	// of the table.
	sweepPerInsert = 8
	// sampled is how many counters are compared when one must be evicted. They are drawn one by one: if neighbours were
	// taken, evictions would leave stretches of blocked counters only.
	sampled = 16
)

// slot is one counter, without a pointer, so that the garbage collector never scans it. id.B is never 0 in a slot in
// use.
type slot[V any] struct {
	id siphash.ID
	v  V
}

func (s *slot[V]) used() bool { return s.id.B != 0 }

// table holds the counters of one kind in a shard: open addressing with linear probing over an array that grows by half
// when four fifths are in use. Deleting shifts the followers back, so there are no tombstones.
type table[V any] struct {
	slots  []slot[V]
	n      int // slots in use
	cursor int // where the next sweep continues
	lap    int // the most slots in use during the present round of the sweep
}

// home returns the preferred place of an id: the high bits of A, scaled to the table's size.
func (t *table[V]) home(x siphash.ID) int {
	hi, _ := bits.Mul64(x.A, uint64(len(t.slots)))
	return int(hi)
}

// find returns x's slot and its index, or nil.
func (t *table[V]) find(x siphash.ID) (sl *slot[V], i int) {
	if t.n == 0 {
		return nil, 0
	}
	for i = t.home(x); ; i++ {
		if i == len(t.slots) {
			i = 0
		}
		sl = &t.slots[i]
		if sl.id == x {
			return sl, i
		}
		if !sl.used() {
			return nil, 0
		}
	}
}

// delete removes x's counter and reports whether it was there.
func (t *table[V]) delete(x siphash.ID) (there bool) {
	sl, i := t.find(x)
	if sl != nil {
		t.remove(i)
	}
	return sl != nil
}

// place stores a counter that is not in the table; there must be room.
func (t *table[V]) place(v slot[V]) {
	i := t.home(v.id)
	for t.slots[i].used() {
		if i++; i == len(t.slots) {
			i = 0
		}
	}
	t.slots[i] = v
	t.n++
	t.lap = max(t.lap, t.n)
}

// remove empties slot i and moves back the followers that probing would no longer reach.
func (t *table[V]) remove(i int) {
	size := len(t.slots)
	for j := i; ; {
		if j++; j == size {
			j = 0
		}
		if !t.slots[j].used() {
			break
		}
		// j may move to i if its home is not between the two.
		if (j-t.home(t.slots[j].id)+size)%size >= (j-i+size)%size {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = slot[V]{}
	t.n--
}

// next returns the next slot for the sweep. At the end of a round the table shrinks if it had few counters all the
// time. If the sweep removes the slot, a follower may take its place, so the cursor then stays.
func (t *table[V]) next() *slot[V] {
	if t.cursor >= len(t.slots) {
		t.cursor = 0
		if want := t.lap * 2; want >= minSlots && want < len(t.slots)/2 {
			t.resize(want)
		}
		t.lap = t.n
	}
	return &t.slots[t.cursor]
}

// makeRoom ensures that one more counter can be placed.
func (t *table[V]) makeRoom() {
	if t.n+1 > len(t.slots)/5*4 {
		t.resize(max(minSlots, len(t.slots)/2*3))
	}
}

func (t *table[V]) resize(size int) {
	old := t.slots
	t.slots, t.n, t.cursor = make([]slot[V], size), 0, 0
	for i := range old {
		if old[i].used() {
			t.place(old[i])
		}
	}
}

// sweep checks the next few slots, drops the dead counters, and returns how many it dropped.
func (t *table[V]) sweep(dead func(*V) bool) (dropped int) {
	for range min(sweepPerInsert, len(t.slots)) {
		if sl := t.next(); sl.used() && dead(&sl.v) {
			t.remove(t.cursor)
			dropped++
			continue
		}
		t.cursor++
	}
	return dropped
}

// leastUsed draws some counters. It returns the index of a dead counter if it draws one, otherwise of the one least
// used against its limit, never of one at or over its limit; -1 if there is none to evict. used is the share of the
// limit.
func (t *table[V]) leastUsed(judge func(*V) (used float64, full, dead bool)) (victim int, least float64, dead bool) {
	victim, least = -1, math.Inf(1)
	if t.n == 0 {
		return victim, least, false
	}
	for seen, tries := 0, 0; seen < sampled && tries < 8*sampled; tries++ {
		i := rand.IntN(len(t.slots))
		sl := &t.slots[i]
		if !sl.used() {
			continue
		}
		used, full, dead := judge(&sl.v)
		if dead {
			return i, 0, true
		}
		if !full && used < least {
			victim, least = i, used
		}
		seen++
	}
	return victim, least, false
}

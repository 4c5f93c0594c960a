package memory

import (
	"math"
	"math/bits"
	"math/rand/v2"

	"gatehouse/ratelimit/internal/siphash"
)

const (
	// minSlots is the first size of a table. It is small, since a daemon may be idle.
	minSlots = 16
	// sweepPerInsert is how many slots are checked for dead counters, which are no longer in use, before a new counter
	// is stored. With 8, the whole table has been checked when as many counters as an eighth of its size have been
	// stored, so that dead counters never take more than an eighth of the table.
	sweepPerInsert = 8
	// sampled is how many counters are compared to choose one to evict. They are drawn at random one by one. If
	// neighbors were taken, evictions would leave stretches of the table that have only counters over their limits.
	sampled = 16
)

// slot is one counter with its id. It contains no pointer, so that the garbage collector need not scan a table. In a
// slot that is in use, id.B is never 0.
type slot[V any] struct {
	id siphash.ID
	v  V
}

func (s *slot[V]) used() bool { return s.id.B != 0 }

// table is a hash table for the counters of one kind in a shard: open addressing with linear probing. The array grows
// by half when four fifths of the slots are in use. Deleting a counter shifts those after it back, so that no
// tombstones are needed.
type table[V any] struct {
	slots  []slot[V]
	n      int // slots in use
	cursor int // index of the slot at which the next sweep continues
	lap    int // the most slots that were in use during the present round of sweeps
}

// home returns the index of the slot that an id prefers: the high bits of A, scaled to the table's size.
func (t *table[V]) home(x siphash.ID) int {
	hi, _ := bits.Mul64(x.A, uint64(len(t.slots)))
	return int(hi)
}

// find returns the slot of the counter x and its index, or nil if the table has no such counter.
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

// delete removes the counter x, and reports whether the table had it.
func (t *table[V]) delete(x siphash.ID) (there bool) {
	sl, i := t.find(x)
	if sl != nil {
		t.remove(i)
	}
	return sl != nil
}

// place stores a counter that the table does not have. A free slot must exist; see makeRoom.
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

// remove empties slot i, and moves back the counters after it that find would no longer reach.
func (t *table[V]) remove(i int) {
	size := len(t.slots)
	for j := i; ; {
		if j++; j == size {
			j = 0
		}
		if !t.slots[j].used() {
			break
		}
		// The counter in slot j may move to slot i unless its home lies between i and j.
		if (j-t.home(t.slots[j].id)+size)%size >= (j-i+size)%size {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = slot[V]{}
	t.n--
}

// next returns the next slot for the sweep. When a round of the table is complete, next shrinks the table if few slots
// were in use during the whole round. It does not move the cursor: if the sweep removes the counter, another may move
// into its slot.
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

// makeRoom grows the table if it has no room for one more counter.
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

// sweep checks the next few slots, drops the dead counters in them, and returns how many it dropped.
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

// leastUsed compares a random sample of counters and returns the index of the one to evict: the first dead counter that
// it draws, otherwise the counter whose limit is used least. It never returns a counter for which judge reports that it
// is full; victim is -1 if there is no other. least is the used share of the victim's limit, and judge's used is that
// share for one counter.
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

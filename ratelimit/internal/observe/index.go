package observe

import "math/bits"

// index finds slots by their ids, which are hashes. It is a table with open addressing, at most half full, of the
// slots' numbers plus 1; 0 is a free place.
type index []int32

func newIndex(keys int) index { return make(index, 1<<bits.Len(uint(2*keys-1))) }

// find returns the place of an id or, if it is not in the table, the place to put it.
func (x index) find(id uint64, slots []slot) int {
	at := int(id) & (len(x) - 1)
	for x[at] != 0 && slots[x[at]-1].id != id {
		at = (at + 1) & (len(x) - 1)
	}
	return at
}

// remove removes an id, and moves the ids after it that find would no longer reach.
func (x index) remove(id uint64, slots []slot) {
	mask := len(x) - 1
	free := x.find(id, slots)
	for at := free; ; {
		at = (at + 1) & mask
		if x[at] == 0 {
			break
		}
		// The id may move if its preferred place does not come after the free place.
		if own := int(slots[x[at]-1].id) & mask; (at-own)&mask >= (at-free)&mask {
			x[free], free = x[at], at
		}
	}
	x[free] = 0
}

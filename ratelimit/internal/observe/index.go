package observe

import "math/bits"

// index finds a slot by its id, which is a hash. It is a hash table with open addressing, which is at most half full.
// An element is the slot's number plus 1; 0 marks a free place.
type index []int32

func newIndex(keys int) index { return make(index, 1<<bits.Len(uint(2*keys-1))) }

// find returns the place of an id in the table or, if the table does not have the id, the free place where to put it.
func (x index) find(id uint64, slots []slot) int {
	at := int(id) & (len(x) - 1)
	for x[at] != 0 && slots[x[at]-1].id != id {
		at = (at + 1) & (len(x) - 1)
	}
	return at
}

// remove removes an id from the table, and moves each id after it that find would otherwise no longer reach.
func (x index) remove(id uint64, slots []slot) {
	mask := len(x) - 1
	free := x.find(id, slots)
	for at := free; ; {
		at = (at + 1) & mask
		if x[at] == 0 {
			break
		}
		// Move the id, unless its preferred place comes after the free place.
		if own := int(slots[x[at]-1].id) & mask; (at-own)&mask >= (at-free)&mask {
			x[free], free = x[at], at
		}
	}
	x[free] = 0
}

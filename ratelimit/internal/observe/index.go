package observe

import "math/bits"

// index finds slots by their ids, which are hashes: a table with open addressing, at most half full. It holds the
// number of a slot plus 1, 0 where it is free.
type index []int32

func newIndex(keys int) index { return make(index, 1<<bits.Len(uint(2*keys-1))) }

// find returns the place of an id: where it is, else where it would be.
func (x index) find(id uint64, slots []slot) int {
	at := int(id) & (len(x) - 1)
	for x[at] != 0 && slots[x[at]-1].id != id {
		at = (at + 1) & (len(x) - 1)
	}
	return at
}

// remove takes an id out, and moves those behind it that could not be found any more.
func (x index) remove(id uint64, slots []slot) {
	mask := len(x) - 1
	free := x.find(id, slots)
	for at := free; ; {
		at = (at + 1) & mask
		if x[at] == 0 {
			break
		}
		// It may move if its own place does not lie behind the free one.
		if own := int(slots[x[at]-1].id) & mask; (at-own)&mask >= (at-free)&mask {
			x[free], free = x[at], at
		}
	}
	x[free] = 0
}

package redis

// opIndex finds the op of a key within a batch. It is a hash table with open addressing, at most half full. It is as
// small as the batch allows, since it is cleared for each batch.
type opIndex struct {
	places []indexEntry
	shift  int // how far to shift a hash right to get the place that its entry prefers
}

type indexEntry struct {
	op  int32  // the index of the op, plus 1; 0: the place is free
	tag uint32 // the lower half of the key's hash
}

// reset empties the index, and makes room for the given number of keys.
func (x *opIndex) reset(keys int) {
	size := 4
	x.shift = 64 - 2
	for size < 2*keys {
		size *= 2
		x.shift--
	}
	if cap(x.places) < size {
		x.places = make([]indexEntry, size)
	}
	x.places = x.places[:size]
	clear(x.places)
}

// find returns the place that holds the index of a key's op, plus 1. If the key is new, the place holds 0, and the
// caller has to set it. same reports whether an op has the key, since different keys can have the same hash.
func (x *opIndex) find(hash uint64, same func(op int32) bool) *int32 {
	tag := uint32(hash)
	for i := hash >> x.shift; ; i++ {
		e := &x.places[i&uint64(len(x.places)-1)]
		if e.op == 0 {
			e.tag = tag
			return &e.op
		}
		if e.tag == tag && same(e.op-1) {
			return &e.op
		}
	}
}

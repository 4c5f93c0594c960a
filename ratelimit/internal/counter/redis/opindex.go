package redis

// opIndex finds the command for a key within a batch: open addressing, at most half full. It is made as
// large as the batch needs, since emptying it is part of each.
type opIndex struct {
	places []indexEntry
	shift  int // of a hash, to get the place where its entry would like to be
}

type indexEntry struct {
	op  int32  // its number plus 1; 0: a free place
	tag uint32 // the other half of the hash
}

// reset empties the index and makes room for so many keys.
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

// find returns where the key's command number is kept: 0 if the key is new, and then the caller sets it.
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

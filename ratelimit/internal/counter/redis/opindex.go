package redis

// opIndex finds the command for a key within a batch. It is a hash table with open addressing, at most half full, and
// as large as the batch needs, since each batch clears it.
type opIndex struct {
	places []indexEntry
	shift  int // of a hash, to get the preferred place of its entry
}

type indexEntry struct {
	op  int32  // the command's number plus 1; 0: a free place
	tag uint32 // the low half of the hash
}

// reset empties the index and makes room for the given number of keys.
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

// find returns where the number of the key's command is kept: 0 if the key is new, in which case the caller sets it.
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

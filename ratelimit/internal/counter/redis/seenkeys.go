package redis

import "sync"

// seenGeneration is how many keys each of the two generations may hold. Both together take at most 8 MiB.
const seenGeneration = 1 << 18

// seenKeys is a bounded set of keys that are known to have an expiry in the server. It holds their 64-bit keyed hashes,
// in two generations: when the young one is full, it becomes the old one, and the old one is dropped. A key that was
// dropped costs one more SET NX. Two keys may have the same hash (with a probability of 1 in 2^45 if both generations
// are full), so that a new key is taken for a known one and gets no expiry. This shows when the reply to INCRBY equals
// the hits sent, as it does for a key that did not exist.
type seenKeys struct {
	mu         sync.Mutex
	young, old hashSet
	generation int // how many keys young may hold
}

// has reports whether the key is in the set. If the key is only in the old generation, has also puts it into the young
// one, so that it is not dropped with the old one.
func (m *seenKeys) has(hash uint64) bool {
	if m.young.has(hash) {
		return true
	}
	if m.old.has(hash) {
		m.add(hash)
		return true
	}
	return false
}

func (m *seenKeys) add(hash uint64) {
	if m.young.n >= m.generation {
		m.young, m.old = m.old, m.young
		m.young.clear()
	}
	m.young.add(hash)
}

// forget empties the set, for when the server may have lost its data.
func (m *seenKeys) forget() {
	m.young.clear()
	m.old.clear()
}

// hashSet is a set of numbers other than 0. It is a hash table with open addressing, and contains no pointers.
type hashSet struct {
	table []uint64 // the length is a power of two; at most half is in use
	n     int
}

func (s *hashSet) has(hash uint64) bool {
	if s.n == 0 {
		return false
	}
	mask := uint64(len(s.table) - 1)
	for i := hash & mask; s.table[i] != 0; i = (i + 1) & mask {
		if s.table[i] == hash {
			return true
		}
	}
	return false
}

func (s *hashSet) add(hash uint64) {
	if 2*(s.n+1) > len(s.table) {
		old := s.table
		s.table, s.n = make([]uint64, max(64, 2*len(old))), 0
		for _, h := range old {
			if h != 0 {
				s.add(h)
			}
		}
	}
	mask := uint64(len(s.table) - 1)
	i := hash & mask
	for ; s.table[i] != 0; i = (i + 1) & mask {
		if s.table[i] == hash {
			return
		}
	}
	s.table[i] = hash
	s.n++
}

func (s *hashSet) clear() {
	clear(s.table)
	s.n = 0
}

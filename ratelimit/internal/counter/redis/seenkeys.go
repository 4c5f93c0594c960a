package redis

import "sync"

// seenGeneration is how many keys one generation holds: two of them take at most 8 MiB.
const seenGeneration = 1 << 18

// seenKeys is a bounded set of the keys that are known to have an expiry in the store, as 64-bit keyed hashes. A key
// that drops out costs one more SET NX. A key taken for another (1 in 2^45 with both generations full) is detected by a
// reply that equals the hits sent.
type seenKeys struct {
	mu         sync.Mutex
	young, old hashSet
	generation int // how many keys young may have before it becomes old
}

// has reports whether the key is in the set, and if so keeps it there.
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

// forget empties the set: the store may have restarted without its data.
func (m *seenKeys) forget() {
	m.young.clear()
	m.old.clear()
}

// hashSet is a set of numbers other than 0, with open addressing and without pointers.
type hashSet struct {
	table []uint64 // a power of two long, at most half full
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

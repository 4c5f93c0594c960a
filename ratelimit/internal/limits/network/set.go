package network

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Set is a set of prefixes, each with its index in the list from which the set was made. It never changes.
//
// Each address family has a path-compressed binary trie. A look-up first goes down the trie by the address's bits,
// without comparing, to one prefix. Then it follows that prefix's chain of shorter prefixes, until it finds the first
// that contains the address. No prefix that contains the address is missed, since all of them lie on the same way down.
type Set struct {
	prefixes []member
	nodes    []node
	roots    [2]root // of the tries for IPv4 and for IPv6
}

// root is where a look-up begins. It uses several bits at once to choose an element of tops, since each step down from
// node to node is a memory read that waits for the previous read (BenchmarkLongest, 10,000 prefixes: 90 ns without
// tops, 7 ns with tops).
type root struct {
	// tops has references in the form of node.next. They are indexed by the bits of the address from the bit with index
	// first on. tops is empty if the set has no prefix.
	tops  []int32
	first uint8 // index of the first bit at which prefixes differ; from 64 on it is in the lower half of the address
	shift uint8 // number of bits by which to shift a half of the address right, to get the chosen bits
}

// member is one prefix of a Set.
type member struct {
	Prefix
	shorter int32 // index of the longest of the shorter prefixes that contain this prefix; -1 if none does
}

// node is a branch of the trie, at the index of a bit: all prefixes below it have equal bits before the index.
type node struct {
	// next has a reference for each value of the bit: the index of another node, or ^index of a prefix. If no prefix
	// goes on with the value, the reference is to the prefix that ends at this node.
	next [2]int32
	bit  uint8
}

// NewSet returns the set of the given prefixes, which must be Masked. Of equal prefixes the first one counts.
func NewSet(prefixes []Prefix) *Set {
	s := &Set{prefixes: make([]member, len(prefixes))}
	var families [2][]int32
	for i, p := range prefixes {
		s.prefixes[i] = member{p, -1}
		families[family(p.Addr)] = append(families[family(p.Addr)], int32(i))
	}
	s.nodes = make([]node, 0, len(prefixes))
	for f, list := range families {
		slices.SortStableFunc(list, func(i, j int32) int {
			a, b := &s.prefixes[i], &s.prefixes[j]
			return cmp.Or(cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo), cmp.Compare(a.bits, b.bits))
		})
		list = slices.CompactFunc(list, func(i, j int32) bool { return s.prefixes[i].Prefix == s.prefixes[j].Prefix })
		if len(list) > 0 {
			s.roots[f] = s.rootOf(s.build(list, -1), len(list))
		}
	}
	return s
}

// rootOf makes the root of a trie of n prefixes, whose first node is top.
func (s *Set) rootOf(top int32, n int) root {
	if top < 0 {
		return root{tops: []int32{top}, shift: 63}
	}
	first := int(s.nodes[top].bit)
	width := min(bits.Len(uint(n)), 64-first%64) // as many bits as n has, all within one half of the address
	r := root{tops: make([]int32, 1<<width), first: uint8(first), shift: uint8(64 - first%64 - width)}
	for chosen := range r.tops {
		at := top
		for at >= 0 && int(s.nodes[at].bit) < first+width {
			x := &s.nodes[at]
			at = x.next[chosen>>(first+width-1-int(x.bit))&1]
		}
		r.tops[chosen] = at
	}
	return r
}

func family(a Addr) int {
	if a.v6 {
		return 1
	}
	return 0
}

// build makes the trie of the prefixes whose indexes are in list, and returns its first node, in the form of node.next.
// The list is sorted; a prefix that contains other prefixes precedes them. shorter is the index of the longest prefix
// that contains all prefixes of the list; -1 if none does.
func (s *Set) build(list []int32, shorter int32) int32 {
	first, last := &s.prefixes[list[0]], &s.prefixes[list[len(list)-1]]
	at := min(first.Bits(), common(first.Addr, last.Addr))
	var next [2]int32
	if first.Bits() == at { // the first prefix of the list contains all others
		first.shorter, shorter = shorter, list[0]
		next = [2]int32{^list[0], ^list[0]}
		if list = list[1:]; len(list) == 0 {
			return next[0]
		}
	}
	n := len(s.nodes)
	s.nodes = append(s.nodes, node{bit: uint8(at)})
	ones, _ := slices.BinarySearchFunc(list, uint64(1), func(i int32, one uint64) int {
		return cmp.Compare(s.prefixes[i].bit(uint8(at)), one)
	})
	if ones > 0 {
		next[0] = s.build(list[:ones], shorter)
	}
	if ones < len(list) {
		next[1] = s.build(list[ones:], shorter)
	}
	s.nodes[n].next = next
	return int32(n)
}

// Longest returns the index of the longest prefix that contains an address; -1 if none does.
func (s *Set) Longest(a Addr) int { return s.longest(a, a.Len()) }

// Containing returns the index of the longest prefix of the set that contains p; -1 if none does.
func (s *Set) Containing(p Prefix) int { return s.longest(p.Addr, p.Bits()) }

// longest returns the index of the longest prefix that contains all addresses whose first n bits are those of a.
func (s *Set) longest(a Addr, n int) int {
	r := &s.roots[0]
	if a.v6 { // an index from family(a) would be bounds-checked, which costs 1 ns of 8
		r = &s.roots[1]
	}
	if len(r.tops) == 0 {
		return -1
	}
	w := a.hi
	if r.first >= 64 {
		w = a.lo
	}
	at := r.tops[w>>(r.shift&63)&uint64(len(r.tops)-1)]
	for at >= 0 {
		x := &s.nodes[at]
		at = x.next[a.bit(x.bit)]
	}
	found := int(^at)
	m := &s.prefixes[found]
	for n = min(n, common(a, m.Addr)); m.Bits() > n; m = &s.prefixes[found] {
		if found = int(m.shorter); found < 0 {
			return -1
		}
	}
	return found
}

// Shorter returns the index of the longest shorter prefix that contains the prefix with index i; -1 if none does.
func (s *Set) Shorter(i int) int { return int(s.prefixes[i].shorter) }

// Contains reports whether a prefix of the set contains the address.
func (s *Set) Contains(a Addr) bool { return s.Longest(a) >= 0 }

// Len returns the number of prefixes in the list from which the set was made.
func (s *Set) Len() int { return len(s.prefixes) }

// Prefix returns the prefix with index i.
func (s *Set) Prefix(i int) Prefix { return s.prefixes[i].Prefix }

// Nested returns the greatest number of prefixes that contain the same address.
func (s *Set) Nested() (most int) {
	for i := range s.prefixes {
		n := 0
		for at := i; at >= 0; at = s.Shorter(at) {
			n++
		}
		most = max(most, n)
	}
	return most
}

// Prefix is the set of addresses that have the same first bits. It is comparable: two prefixes that are Masked are the
// same set exactly if they are equal.
type Prefix struct {
	Addr
	bits uint8
}

// Bits returns the length of the prefix in bits.
func (p Prefix) Bits() int { return int(p.bits) }

// All4 and All6 contain all IPv4 and all IPv6 addresses.
var (
	All4 = Prefix{}
	All6 = Prefix{Addr: Addr{v6: true}}
)

// ParsePrefix parses an address and a length, such as 10.0.0.0/8, or an address alone, which is a prefix of full
// length. It keeps bits beyond the length, which Masked clears. mapped reports a prefix of IPv4-mapped IPv6 addresses,
// for which the result is the IPv4 prefix.
func ParsePrefix(s string) (p Prefix, mapped, ok bool) {
	address, length, sized := strings.Cut(s, "/")
	if v, ok := parse4(address); ok {
		p.Addr = addr4(v)
	} else if p.Addr, ok = parse6(address); !ok {
		return Prefix{}, false, false
	}
	n := p.Len()
	if sized {
		var err error
		n, err = strconv.Atoi(length)
		if err != nil || n < 0 || n > p.Len() || strconv.Itoa(n) != length {
			return Prefix{}, false, false
		}
	}
	if n >= 96 && p.isMapped() {
		return Prefix{p.unmapped(), uint8(n - 96)}, true, true
	}
	p.bits = uint8(n)
	return p, false, true
}

// First returns the prefix of length n that contains the address.
func (a Addr) First(n int) Prefix { return Prefix{a.first(n), uint8(n)} }

// Masked returns the prefix with the bits beyond its length cleared.
func (p Prefix) Masked() Prefix { return p.First(p.Bits()) }

// AppendTo appends the prefix in canonical form; a prefix of full length is written as its address.
func (p Prefix) AppendTo(dst []byte) []byte {
	dst = p.Addr.AppendTo(dst)
	if p.Bits() == p.Len() {
		return dst
	}
	dst = append(dst, '/')
	return strconv.AppendUint(dst, uint64(p.bits), 10)
}

func (p Prefix) String() string { return string(p.AppendTo(nil)) }

// Merge returns the smallest list of prefixes that contain the same addresses as the given prefixes, which must be
// Masked.
func Merge(prefixes []Prefix) (merged []Prefix) {
	sorted := slices.SortedFunc(slices.Values(prefixes), func(a, b Prefix) int {
		return cmp.Or(cmp.Compare(family(a.Addr), family(b.Addr)), cmp.Compare(a.hi, b.hi), cmp.Compare(a.lo, b.lo),
			cmp.Compare(a.bits, b.bits))
	})
	for _, p := range sorted {
		if n := len(merged); n > 0 && merged[n-1].contains(p) {
			continue
		}
		merged = append(merged, p)
		for n := len(merged); n > 1 && merged[n-2].isHalf(merged[n-1]); n = len(merged) {
			merged = append(merged[:n-2], p.First(merged[n-1].Bits()-1))
		}
	}
	return merged
}

func (p Prefix) contains(q Prefix) bool {
	return p.v6 == q.v6 && p.bits <= q.bits && q.First(p.Bits()) == p
}

// isHalf reports whether p and q are halves of the same prefix, which is one bit shorter.
func (p Prefix) isHalf(q Prefix) bool {
	return p.v6 == q.v6 && p.bits == q.bits && p.bits > 0 && p.First(p.Bits()-1) == q.First(q.Bits()-1)
}

package network

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Prefix is the addresses that share their first bits. It is comparable: equal prefixes that are Masked are equal
// values.
type Prefix struct {
	Addr
	bits uint8
}

// Bits returns the length of the prefix.
func (p Prefix) Bits() int { return int(p.bits) }

// All4 and All6 contain all addresses of a family.
var (
	All4 = Prefix{}
	All6 = Prefix{Addr: Addr{v6: true}}
)

// ParsePrefix parses an address and a length, such as 10.0.0.0/8, or a bare address, which is a prefix of full length.
// Bits beyond the length stay: Masked clears them. mapped reports a prefix of IPv4-mapped addresses, for which the
// result is the IPv4 prefix.
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

// Merge returns the fewest prefixes that contain the same addresses. The given prefixes must be Masked.
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

// isHalf reports whether p and q are the two halves of one prefix.
func (p Prefix) isHalf(q Prefix) bool {
	return p.v6 == q.v6 && p.bits == q.bits && p.bits > 0 && p.First(p.Bits()-1) == q.First(q.Bits()-1)
}

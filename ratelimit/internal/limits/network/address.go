// Package network parses IP addresses and prefixes, and finds the longest prefix of a set that contains an address.
// Neither parsing an address nor a look-up allocates.
package network

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Addr is an IPv4 or IPv6 address. Its first bit is the highest bit of hi in both families; an IPv4 address uses only
// the upper half of hi.
type Addr struct {
	hi, lo uint64
	v6     bool
}

func addr4(v uint32) Addr { return Addr{hi: uint64(v) << 32} }

// ParseAddr parses IPv4 in dotted decimals without leading zeros, or IPv6 in any form of RFC 4291. An IPv4-mapped
// address (::ffff:10.1.2.3) becomes the IPv4 address. A text with a port, brackets, a zone or a prefix length is no
// address.
func ParseAddr(s string) (a Addr, ok bool) {
	// The first dot or colon distinguishes IPv4 from IPv6; it follows at most four digits.
	for i := range min(len(s), 5) {
		switch c := s[i]; {
		case c == '.':
			v, ok := parse4(s)
			return addr4(v), ok
		case c == ':':
			a, ok = parse6(s)
			return a.unmapped(), ok
		case hexDigits[c] == notHex:
			return Addr{}, false
		}
	}
	return Addr{}, false
}

// unmapped returns the IPv4 address if a is an IPv4-mapped address, otherwise a.
func (a Addr) unmapped() Addr {
	if a.isMapped() {
		return addr4(uint32(a.lo))
	}
	return a
}

func (a Addr) isMapped() bool { return a.v6 && a.hi == 0 && a.lo>>32 == 0xffff }

// parse4 parses an IPv4 address: four decimal numbers up to 255, without leading zeros, separated by dots.
func parse4(s string) (v uint32, ok bool) {
	if len(s) < len("0.0.0.0") || len(s) > len("255.255.255.255") {
		return 0, false
	}
	octet, digits, dots := uint32(0), 0, 0
	for i := range len(s) {
		c := s[i]
		switch {
		case '0' <= c && c <= '9':
			if digits > 0 && octet == 0 {
				return 0, false // the number has a leading zero
			}
			if octet = octet*10 + uint32(c-'0'); octet > 255 {
				return 0, false
			}
			digits++
		case c == '.' && digits > 0 && dots < 3:
			v, octet, digits, dots = v<<8|octet, 0, 0, dots+1
		default:
			return 0, false
		}
	}
	return v<<8 | octet, dots == 3 && digits > 0
}

// parse6 parses IPv6 as in RFC 4291, section 2.2: eight groups, :: for one or more groups of zeros, and possibly IPv4
// for the last two.
func parse6(s string) (a Addr, ok bool) {
	var before Addr // the groups that precede ::
	n, gap, i := 0, -1, 0
	if len(s) > 1 && s[0] == ':' && s[1] == ':' {
		gap, i = 0, 2
	}
	for i < len(s) {
		start, v := i, uint64(0)
		for i < len(s) && i-start < 4 && hexDigits[s[i]] != notHex {
			v = v<<4 | uint64(hexDigits[s[i]])
			i++
		}
		if i == start || n == groups {
			return Addr{}, false
		}
		if i < len(s) && s[i] == '.' {
			v, ok := parse4(s[start:])
			if !ok || n > groups-2 {
				return Addr{}, false
			}
			a.hi, a.lo, n = a.hi<<32|a.lo>>32, a.lo<<32|uint64(v), n+2
			break
		}
		a.hi, a.lo, n = a.hi<<16|a.lo>>48, a.lo<<16|v, n+1
		if i == len(s) {
			break
		}
		if s[i] != ':' || i+1 == len(s) {
			return Addr{}, false
		}
		if i++; s[i] == ':' {
			if gap >= 0 {
				return Addr{}, false
			}
			before, a, gap = a, Addr{}, n
			i++
		}
	}
	a.v6 = true
	if gap < 0 {
		return a, n == groups
	}
	// Shift the groups that precede :: to the left end of the address.
	if shift := 16 * (groups - gap); shift >= 64 {
		a.hi |= before.lo << (shift - 64)
	} else {
		a.hi |= before.hi<<shift | before.lo>>(64-shift)
		a.lo |= before.lo << shift
	}
	return a, n < groups
}

// groups is the number of 16-bit groups in an IPv6 address.
const groups = 8

const notHex = 0xff

// hexDigits has the value of each hexadecimal digit, and notHex for every other byte.
var hexDigits = func() (t [256]uint8) {
	for c := range t {
		t[c] = notHex
	}
	for v, c := range "0123456789abcdef" {
		t[c] = uint8(v)
		if v > 9 {
			t[c-'a'+'A'] = uint8(v)
		}
	}
	return t
}()

// AppendTo appends the address in canonical form: IPv4 in dotted decimals, IPv6 as in RFC 5952.
func (a Addr) AppendTo(dst []byte) []byte { return a.netip().AppendTo(dst) }

func (a Addr) String() string { return string(a.AppendTo(nil)) }

func (a Addr) netip() netip.Addr {
	if !a.v6 {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], uint32(a.hi>>32))
		return netip.AddrFrom4(b)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], a.hi)
	binary.BigEndian.PutUint64(b[8:], a.lo)
	return netip.AddrFrom16(b)
}

// Is6 reports whether the address is IPv6.
func (a Addr) Is6() bool { return a.v6 }

// Len returns the number of bits of the address: 32 or 128.
func (a Addr) Len() int {
	if a.v6 {
		return 128
	}
	return 32
}

// bit returns the bit with index i, counted from the left; it is 0 or 1.
func (a Addr) bit(i uint8) uint64 {
	w := a.hi
	if i >= 64 {
		w = a.lo
	}
	return w >> (63 - i&63) & 1
}

// first returns the address with all but its first n bits cleared.
func (a Addr) first(n int) Addr {
	switch {
	case n < 64:
		a.hi, a.lo = a.hi&^(^uint64(0)>>n), 0
	case n < 128:
		a.lo &^= ^uint64(0) >> (n - 64)
	}
	return a
}

// common returns how many leading bits two addresses of one family have in common, up to 128.
func common(a, b Addr) int {
	if x := a.hi ^ b.hi; x != 0 {
		return bits.LeadingZeros64(x)
	}
	return 64 + bits.LeadingZeros64(a.lo^b.lo)
}

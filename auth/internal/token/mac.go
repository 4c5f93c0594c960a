package token

import (
	"crypto/sha256"
	"encoding/binary"
)

// MAC authenticates or blinds texts for one purpose: HMAC-SHA256 under a key derived from the root key.
type MAC struct {
	keys []*macPool // the current one first
}

// MAC derives the keys of a purpose.
func (r *Root) MAC(p Purpose) *MAC {
	m := &MAC{}
	for _, secret := range r.secrets {
		m.keys = append(m.keys, newMACPool(derive(secret, p, "mac")))
	}
	return m
}

// Sum is the MAC of the parts under the current root key. Parts are told apart: ("ab", "c") and ("a",
// "bc") differ. For a one-time code the parts are kind, address and digits, so that one statement finds
// the rows by address and kind, compares, and counts a miss on each.
func (m *MAC) Sum(parts ...string) [sha256.Size]byte {
	return m.keys[0].sumParts(parts)
}

// Sums is Sum under the current and each previous root key, in this order: a stored value that equals
// any of them was made of the same parts.
func (m *MAC) Sums(parts ...string) [][sha256.Size]byte {
	out := make([][sha256.Size]byte, len(m.keys))
	for i, k := range m.keys {
		out[i] = k.sumParts(parts)
	}
	return out
}

func (p *macPool) sumParts(parts []string) (sum [sha256.Size]byte) {
	buf := scratches.Get().(*scratch)
	defer buf.free()
	buf.b = buf.b[:0]
	for _, part := range parts {
		buf.b = binary.AppendUvarint(buf.b, uint64(len(part)))
		buf.b = append(buf.b, part...)
	}
	p.sum(sum[:0], buf.b)
	return sum
}

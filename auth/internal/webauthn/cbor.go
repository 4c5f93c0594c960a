package webauthn

import (
	"encoding/binary"
	"math"
	"unicode/utf8"
)

// Limits of the CBOR reader (RFC 8949). Authenticators nest items three levels deep.
const (
	maxDepth = 8
	maxItems = 64
)

// The major types of RFC 8949, section 3.1.
const (
	cborUint = iota
	cborNegative
	cborBytes
	cborText
	cborArray
	cborMap
	cborTag
	cborSimple
)

// cborReader reads items from the front of b. Items must have a definite length and no tags. The reader cannot be used
// after a failed read. The slices that it returns are parts of b, so a declared length never causes an allocation.
type cborReader struct{ b []byte }

// head reads the first byte and the argument of an item: its value, or the length of its content. info is the
// additional information in the first byte (RFC 8949, section 3).
func (r *cborReader) head() (major, info byte, arg uint64, ok bool) {
	if len(r.b) == 0 {
		return 0, 0, 0, false
	}
	major, info = r.b[0]>>5, r.b[0]&31
	r.b = r.b[1:]
	if info < 24 {
		return major, info, uint64(info), true
	}
	if info > 27 { // reserved, or an item of indefinite length
		return 0, 0, 0, false
	}
	n := 1 << (info - 24)
	if len(r.b) < n {
		return 0, 0, 0, false
	}
	var wide [8]byte
	copy(wide[8-n:], r.b)
	r.b = r.b[n:]
	return major, info, binary.BigEndian.Uint64(wide[:]), true
}

// integer reads an integer that fits int64.
func (r *cborReader) integer() (int64, bool) {
	major, _, arg, ok := r.head()
	switch {
	case !ok || major > cborNegative || arg > math.MaxInt64:
		return 0, false
	case major == cborNegative:
		return -1 - int64(arg), true
	}
	return int64(arg), true
}

// take returns the next n bytes.
func (r *cborReader) take(n uint64) ([]byte, bool) {
	if n > uint64(len(r.b)) {
		return nil, false
	}
	out := r.b[:n]
	r.b = r.b[n:]
	return out, true
}

// str reads a byte string or a text string. want is the major type of the string, cborBytes or cborText.
func (r *cborReader) str(want byte) ([]byte, bool) {
	major, _, n, ok := r.head()
	if !ok || major != want {
		return nil, false
	}
	out, ok := r.take(n)
	return out, ok && (want != cborText || utf8.Valid(out))
}

// mapLen reads the head of a map, and returns how many pairs the map has.
func (r *cborReader) mapLen() (int, bool) {
	major, _, n, ok := r.head()
	return int(min(n, maxItems)), ok && major == cborMap && n <= maxItems
}

// next reports whether the next item has this major type, without reading the item.
func (r *cborReader) next(major byte) bool { return len(r.b) > 0 && r.b[0]>>5 == major }

// skip reads one item of any type, which may contain items up to depth levels deep.
func (r *cborReader) skip(depth int) bool {
	major, info, arg, ok := r.head()
	if !ok {
		return false
	}
	switch major {
	case cborUint, cborNegative:
		return arg <= math.MaxInt64
	case cborBytes, cborText:
		text, ok := r.take(arg)
		return ok && (major == cborBytes || utf8.Valid(text))
	case cborArray, cborMap:
		if arg > maxItems || depth == 0 {
			return false
		}
		for range arg * uint64(major-cborArray+1) { // a map has two items for each pair
			if !r.skip(depth - 1) {
				return false
			}
		}
		return true
	case cborSimple:
		return info != 24 || arg >= 32 // smaller values must be encoded in one byte
	}
	return false // a tag
}

// skipMap reads one map and returns its encoding.
func (r *cborReader) skipMap() ([]byte, bool) {
	whole := r.b
	if !r.next(cborMap) || !r.skip(maxDepth) {
		return nil, false
	}
	return whole[:len(whole)-len(r.b)], true
}

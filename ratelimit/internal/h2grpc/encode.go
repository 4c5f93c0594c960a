package h2grpc

import (
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Indexes of HPACK's static table (RFC 7541, appendix A).
const (
	staticStatus200   = 8
	staticContentType = 31
)

const (
	tableSize   = 4096 // of HPACK's dynamic table unless SETTINGS change it
	statusName  = "grpc-status"
	messageName = "grpc-message"
	// usualFields is the size of the two dynamic entries: the content type and status 0 (RFC 7541, section 4.1).
	usualFields = len("content-type") + len(contentType) + 32 + len(statusName) + len("0") + 32
)

// encoder writes the header blocks of answers. Nearly all blocks are equal, so the encoder keeps only their two common
// fields in the peer's dynamic table and refers to these fields by index. Every other field is a literal that is not
// indexed.
type encoder struct {
	// max is the size of the dynamic table that the peer allows and we use.
	max int
	// update is a new max, with which the next block has to begin; -1: none.
	update int
	// typed: the content type is in the table. indexed: both usual fields are, status 0 at index 62 and the content
	// type at 63.
	typed, indexed bool
}

func newEncoder() encoder { return encoder{max: tableSize, update: -1} }

// resize takes the peer's SETTINGS_HEADER_TABLE_SIZE. A table larger than the default would be of no use.
func (e *encoder) resize(n int) {
	if n >= e.max {
		return
	}
	e.max, e.update = n, n
	if n < usualFields {
		e.typed, e.indexed = false, false // evicted
	}
}

// begin appends the table size update that a block may have to begin with.
func (e *encoder) begin(dst []byte) []byte {
	if e.update >= 0 {
		dst = appendInt(dst, 0x20, 5, uint64(e.update))
		e.update = -1
	}
	return dst
}

// headers appends the block before the message of an answer. h is the header of the request.
func (e *encoder) headers(dst []byte, h *header) []byte {
	dst = append(e.begin(dst), 0x80|staticStatus200)
	if h.encoding != "" {
		dst = appendField(dst, 0, "grpc-encoding", h.encoding)
	}
	if h.subtype != "" {
		return appendField(dst, staticContentType, "", subtype(h.subtype))
	}
	if e.indexed {
		return append(dst, 0x80|63)
	}
	if e.max >= usualFields {
		// With incremental indexing. The next trailers, of whichever call, put status 0 in front of the content type.
		e.typed = true
		return appendText(append(dst, 0x40|staticContentType), contentType)
	}
	return appendField(dst, staticContentType, "", contentType)
}

// trailers appends the block after an answer's message.
func (e *encoder) trailers(dst []byte) []byte {
	dst = e.begin(dst)
	if e.indexed {
		return append(dst, 0x80|62)
	}
	if e.typed {
		e.indexed = true
		return appendText(appendText(append(dst, 0x40), statusName), "0")
	}
	return appendField(dst, 0, statusName, "0")
}

// refusal appends the only block of an answer without a message.
func (e *encoder) refusal(dst []byte, r *refusal) []byte {
	dst = e.begin(dst)
	if r.status == 0 || r.status == http.StatusOK {
		dst = append(dst, 0x80|staticStatus200)
	} else {
		dst = appendField(dst, staticStatus200, "", strconv.Itoa(r.status))
	}
	dst = appendField(dst, staticContentType, "", subtype(r.subtype))
	return r.appendStatus(dst)
}

// failure appends the block after the messages of an answer that ends with a refusal.
func (e *encoder) failure(dst []byte, r *refusal) []byte { return r.appendStatus(e.begin(dst)) }

func (r *refusal) appendStatus(dst []byte) []byte {
	dst = appendField(dst, 0, statusName, strconv.Itoa(int(r.code)))
	return appendField(dst, 0, messageName, percentEncode(r.message))
}

// appendField appends a literal field without indexing. Its name is that of the static entry at index, or the literal
// name for index 0.
func appendField(dst []byte, index uint64, name, value string) []byte {
	dst = appendInt(dst, 0, 4, index)
	if index == 0 {
		dst = appendText(dst, name)
	}
	return appendText(dst, value)
}

func appendText(dst []byte, s string) []byte {
	return append(appendInt(dst, 0, 7, uint64(len(s))), s...)
}

// appendInt appends n with a prefix of so many bits; the other bits are those of first (RFC 7541, section 5.1).
func appendInt(dst []byte, first byte, bits uint, n uint64) []byte {
	limit := uint64(1)<<bits - 1
	if n < limit {
		return append(dst, first|byte(n))
	}
	dst = append(dst, first|byte(limit))
	for n -= limit; n >= 0x80; n >>= 7 {
		dst = append(dst, byte(n)|0x80)
	}
	return append(dst, byte(n))
}

// percentEncode encodes a grpc-message: bytes that are not printable ASCII, and %, become %XX. Invalid UTF-8 becomes
// U+FFFD first.
func percentEncode(s string) string {
	plain := func(c byte) bool { return c >= ' ' && c <= '~' && c != '%' }
	clean := true
	for i := range len(s) {
		clean = clean && plain(s[i])
	}
	if clean {
		return s
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for _, r := range s {
		var text [utf8.UTFMax]byte
		for _, c := range text[:utf8.EncodeRune(text[:], r)] {
			if plain(c) {
				b.WriteByte(c)
			} else {
				b.Write([]byte{'%', hex[c>>4], hex[c&15]})
			}
		}
	}
	return b.String()
}

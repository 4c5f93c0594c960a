package h2grpc

import (
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

// These are indexes of fields in HPACK's static table (RFC 7541, appendix A).
const (
	staticStatus200   = 8
	staticContentType = 31
)

const (
	tableSize   = 4096 // size of HPACK's dynamic table, in bytes, unless SETTINGS change it
	statusName  = "grpc-status"
	messageName = "grpc-message"
	// usualFields is the size of the two fields that the encoder keeps in the dynamic table: the content type, and
	// status 0 (RFC 7541, section 4.1).
	usualFields = len("content-type") + len(contentType) + 32 + len(statusName) + len("0") + 32
)

// encoder encodes the header blocks of answers by HPACK. Nearly all blocks have the same two fields, the content type
// and status 0. The encoder puts them into the client's dynamic table, and then refers to them by their indexes. All
// other fields are literals that are not indexed.
type encoder struct {
	// max is the size of the dynamic table that the client allows and the encoder uses, in bytes.
	max int
	// update is a new size of the dynamic table, which the next block has to announce at its beginning; -1 means that
	// there is none to announce.
	update int
	// typed means that the content type is in the dynamic table. indexed means that both fields are: status 0 at index
	// 62, and the content type at 63.
	typed, indexed bool
}

func newEncoder() encoder { return encoder{max: tableSize, update: -1} }

// resize sets the size of the dynamic table to n, the client's SETTINGS_HEADER_TABLE_SIZE, if n is smaller than the
// present size. A larger table would be of no use to the encoder's two fields.
func (e *encoder) resize(n int) {
	if n >= e.max {
		return
	}
	e.max, e.update = n, n
	if n < usualFields {
		e.typed, e.indexed = false, false // the smaller table has evicted the fields
	}
}

// begin appends the beginning of a block: the new size of the dynamic table, if it has changed.
func (e *encoder) begin(dst []byte) []byte {
	if e.update >= 0 {
		dst = appendInt(dst, 0x20, 5, uint64(e.update))
		e.update = -1
	}
	return dst
}

// headers appends the header block that comes before the message of an answer. h is the header of the request.
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
		// This adds the content type to the dynamic table. The next trailers, of this or another call, add status 0,
		// which moves the content type to index 63.
		e.typed = true
		return appendText(append(dst, 0x40|staticContentType), contentType)
	}
	return appendField(dst, staticContentType, "", contentType)
}

// trailers appends the header block that comes after the message of an answer.
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

// refusal appends the header block of an answer that has no message.
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

// failure appends the header block after the messages of a health watch that ends with a refusal.
func (e *encoder) failure(dst []byte, r *refusal) []byte { return r.appendStatus(e.begin(dst)) }

func (r *refusal) appendStatus(dst []byte) []byte {
	dst = appendField(dst, 0, statusName, strconv.Itoa(int(r.code)))
	return appendField(dst, 0, messageName, percentEncode(r.message))
}

// appendField appends a literal field without indexing. The name is that of the static table's entry at index or, if
// index is 0, the given name.
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

// appendInt appends the integer n in HPACK's form with a prefix of the given number of bits. The other bits of the
// first byte are those of first (RFC 7541, section 5.1).
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

// percentEncode encodes the text of grpc-message: each byte that is not printable ASCII, and %, becomes %XX. Bytes that
// are not valid UTF-8 are replaced by U+FFFD first.
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

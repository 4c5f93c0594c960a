package h2grpc

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
)

const (
	// maxBlock is the longest header block in its encoded form, and maxHeaderList the longest in its decoded form, in
	// bytes; decoded, each field counts as 32 bytes more than its text (RFC 9113, section 6.5.2). maxContinuations is
	// how many CONTINUATION frames a block may have, since empty ones would cost the client nothing.
	maxBlock         = 64 << 10
	maxHeaderList    = 64 << 10
	maxContinuations = 32
	// maxRemembered is the longest block that is remembered, in bytes, and rememberedBlocks how many blocks are
	// remembered on each connection. Few blocks suffice, since thousands of calls from an Envoy have only two different
	// blocks.
	maxRemembered    = 1 << 10
	rememberedBlocks = 4
)

// headerReader decodes the header blocks of a connection, in the order in which they arrive.
type headerReader struct {
	path    string // the path of ShouldRateLimit
	keep    bool   // judge keeps the fields in header.fields, for tracing
	decoder *hpack.Decoder
	fields  []hpack.HeaderField // the fields of the last header block that was decoded
	size    int                 // the size of the last header block's fields, in bytes; 0 if the block was remembered
	// generation counts the changes of HPACK's dynamic table. A block that does not change the table has the same
	// fields as an equal block that was decoded under the same generation.
	generation int
	remembered [rememberedBlocks]struct {
		block      []byte
		generation int
		header     header
	}
	next int // index in remembered for the next header block
}

func newHeaderReader(path string, keep bool) *headerReader {
	r := &headerReader{path: path, keep: keep}
	r.decoder = hpack.NewDecoder(tableSize, func(f hpack.HeaderField) {
		if r.size += int(f.Size()); r.size <= maxHeaderList {
			r.fields = append(r.fields, f)
		}
	})
	return r
}

// read returns the header of a request, given its header block.
func (r *headerReader) read(block []byte) (header, *connError) {
	for i := range r.remembered {
		m := &r.remembered[i]
		if m.generation == r.generation && len(m.block) > 0 && bytes.Equal(m.block, block) {
			r.size = 0
			return m.header, nil
		}
	}
	changes := changesTable(block)
	if changes {
		r.generation++
	}
	if err := r.decode(block); err != nil {
		return header{}, err
	}
	h := r.judge()
	if !changes && len(block) <= maxRemembered {
		m := &r.remembered[r.next]
		r.next = (r.next + 1) % rememberedBlocks
		m.block, m.generation, m.header = append(m.block[:0], block...), r.generation, h
	}
	return h, nil
}

// trailers decodes the header block at the end of a request. Its fields are ignored, but ok is false if they include a
// pseudo-header field or an invalid name.
func (r *headerReader) trailers(block []byte) (ok bool, err *connError) {
	r.generation++
	if err := r.decode(block); err != nil {
		return false, err
	}
	for _, f := range r.fields {
		if f.IsPseudo() || !validName(f.Name) {
			return false, nil
		}
	}
	return true, nil
}

func (r *headerReader) decode(block []byte) *connError {
	clear(r.fields)
	r.fields, r.size = r.fields[:0], 0
	if _, err := r.decoder.Write(block); err != nil {
		return &connError{http2.ErrCodeCompression, reasonCompression, err.Error()}
	}
	if err := r.decoder.Close(); err != nil {
		return &connError{http2.ErrCodeCompression, reasonCompression, err.Error()}
	}
	return nil
}

// judge interprets the fields of the last decoded block as the header of a request.
func (r *headerReader) judge() header {
	if r.size > maxHeaderList {
		return header{length: -1, method: methodOf(fieldCarrier(r.fields).Get(":path"), r.path),
			refusal: &refusal{status: http.StatusRequestHeaderFieldsTooLarge, code: codes.ResourceExhausted,
				message: "the header list is too long"}}
	}
	q := request{header: header{length: -1}}
	for _, f := range r.fields {
		if f.IsPseudo() {
			q.pseudoField(f)
		} else {
			q.regularField(f)
		}
	}
	h := q.header
	if h.malformed = h.malformed || q.pseudo != 3; h.malformed {
		return h
	}
	h.method = methodOf(q.path, r.path)
	if r.keep {
		h.fields = slices.Clone(r.fields)
	}
	switch h.refusal = q.refused(); {
	case h.refusal != nil:
	case h.method == methodUnknown:
		h.refusal = unimplemented(q.path, r.path)
	case h.encoding != "" && encoding.GetCompressor(h.encoding) == nil:
		h.refusal = &refusal{code: codes.Unimplemented,
			message: fmt.Sprintf("grpc: Decompressor is not installed for grpc-encoding %q", h.encoding)}
	}
	if h.refusal != nil {
		h.refusal.subtype = h.subtype
	}
	return h
}

// fieldCarrier lets a propagator of tracing read the fields of a request.
type fieldCarrier []hpack.HeaderField

// Get implements propagation.TextMapCarrier.
func (c fieldCarrier) Get(name string) string {
	for _, f := range c {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (fieldCarrier) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (c fieldCarrier) Keys() (names []string) {
	for _, f := range c {
		names = append(names, f.Name)
	}
	return names
}

// changesTable reports whether a header block changes HPACK's dynamic table. It skips from field to field without
// decoding them (RFC 7541, section 6). For a block that is not valid, it returns true.
func changesTable(b []byte) bool {
	for len(b) > 0 {
		first := b[0]
		var index uint64
		ok := true
		switch {
		case first >= 0x80: // an indexed field
			_, b, ok = readInt(b, 7)
			if !ok {
				return true
			}
			continue
		case first >= 0x20: // a literal field with incremental indexing, or a new size of the table
			return true
		}
		if index, b, ok = readInt(b, 4); !ok {
			return true
		}
		if index == 0 {
			if b, ok = skipText(b); !ok {
				return true
			}
		}
		if b, ok = skipText(b); !ok {
			return true
		}
	}
	return false
}

// readInt reads an integer in HPACK's form with a prefix of the given number of bits (RFC 7541, section 5.1).
func readInt(b []byte, bits uint) (n uint64, rest []byte, ok bool) {
	limit := uint64(1)<<bits - 1
	n = uint64(b[0]) & limit
	if b = b[1:]; n < limit {
		return n, b, true
	}
	for shift := uint(0); len(b) > 0 && shift < 28; shift += 7 {
		c := b[0]
		b = b[1:]
		n += uint64(c&0x7f) << shift
		if c < 0x80 {
			return n, b, true
		}
	}
	return 0, nil, false
}

func skipText(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 {
		return nil, false
	}
	n, b, ok := readInt(b, 7)
	if !ok || n > uint64(len(b)) {
		return nil, false
	}
	return b[n:], true
}

// block is the state of a header block that arrives in several frames. sendQueue.block has its bytes.
type block struct {
	open   bool
	stream uint32
	ends   bool // the HEADERS frame had END_STREAM
	frames int
}

package rls

import (
	"errors"
	"math/bits"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrMalformed is the error of Unmarshal for bytes that are not a RateLimitRequest.
var ErrMalformed = errors.New("rls: malformed RateLimitRequest")

// MaxDescriptors and MaxEntries bound how much of one message Unmarshal decodes; MaxEntries counts the entries of all
// descriptors together. Both are far above any sensible value of the settings MAX_DESCRIPTORS and MAX_ENTRIES.
const (
	MaxDescriptors = 1 << 16
	MaxEntries     = 1 << 18
)

// keepEntries is the number of entries for which a Request keeps its memory between calls. Memory that one outsized
// message has made larger is freed.
const keepEntries = 4096

// Unmarshal decodes one envoy.service.ratelimit.v3.RateLimitRequest. It accepts the same messages as the code that
// protoc generates: unknown fields are skipped, the last of a repeated scalar wins, split messages are merged. The one
// difference is that strings may hold any bytes, not only UTF-8. Envoy passes on a client's header values as they are,
// and with its default failure_mode_deny=false it lets a request pass when the call fails, so that refusing such bytes
// would let clients evade every limit. The strings of r point into b, which must not change while r is in use.
//
// Unmarshal stops before a descriptor that would exceed MaxDescriptors or MaxEntries, and sets Cut: a message of four
// megabytes can hold millions of descriptors. The caller has to refuse such a request.
func (r *Request) Unmarshal(b []byte) error {
	r.Reset()
	for len(b) > 0 {
		tag, n, field, rest, ok := cutField(b)
		if !ok {
			return ErrMalformed
		}
		b = rest
		switch tag {
		case 1<<3 | wireBytes:
			r.Domain = text(field)
		case 2<<3 | wireBytes:
			if len(r.Descriptors) == MaxDescriptors || len(r.entries) >= MaxEntries {
				r.Cut = true
				return nil
			}
			if !r.descriptor(field) {
				return ErrMalformed
			}
		case 3<<3 | wireVarint:
			r.HitsAddend = uint32(n)
		}
	}
	return nil
}

// Reset empties r and keeps its memory for the next Unmarshal.
func (r *Request) Reset() {
	clear(r.entries)
	clear(r.Descriptors) // otherwise the old strings would keep their message's buffer in memory
	if cap(r.entries) > keepEntries {
		r.entries = nil
	}
	if cap(r.Descriptors) > keepEntries/4 {
		r.Descriptors = nil
	}
	r.entries = r.entries[:0]
	r.Descriptors = r.Descriptors[:0]
	r.Domain, r.HitsAddend, r.Cut = "", 0, false
}

func (r *Request) descriptor(b []byte) (ok bool) {
	var d Descriptor
	first := len(r.entries)
	for len(b) > 0 {
		tag, n, field, rest, ok := cutField(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case 1<<3 | wireBytes:
			var e Entry
			if !e.unmarshal(field) {
				return false
			}
			r.entries = append(r.entries, e)
		case 2<<3 | wireBytes:
			if !d.Limit.unmarshal(field) {
				return false
			}
			d.HasLimit = true
		case 3<<3 | wireBytes:
			if !unmarshalUint64Value(field, &d.Hits) {
				return false
			}
			d.HasHits = true
		case 4<<3 | wireVarint:
			d.Negative = n != 0
		}
	}
	// d.Entries stays valid when r.entries grows: it keeps the old array.
	d.Entries = r.entries[first:len(r.entries):len(r.entries)]
	r.Descriptors = append(r.Descriptors, d)
	return true
}

func (e *Entry) unmarshal(b []byte) bool {
	if e.usual(b) {
		return true
	}
	for len(b) > 0 {
		tag, _, field, rest, ok := cutField(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case 1<<3 | wireBytes:
			e.Key = text(field)
		case 2<<3 | wireBytes:
			e.Value = text(field)
		}
	}
	return true
}

// usual decodes b if it has the form that all known clients write: a key and then a value, each of fewer than 128
// bytes. If b has another form, usual returns false and changes nothing.
func (e *Entry) usual(b []byte) bool {
	if len(b) < 4 || b[0] != 1<<3|byte(wireBytes) || b[1] >= 0x80 {
		return false
	}
	end := 2 + int(b[1]) // where the key ends in b
	if len(b) < end+2 || b[end] != 2<<3|byte(wireBytes) || b[end+1] >= 0x80 || end+2+int(b[end+1]) != len(b) {
		return false
	}
	e.Key, e.Value = text(b[2:end]), text(b[end+2:])
	return true
}

func (o *Override) unmarshal(b []byte) bool {
	for len(b) > 0 {
		tag, n, _, rest, ok := cutField(b)
		if !ok {
			return false
		}
		b = rest
		switch tag {
		case 1<<3 | wireVarint:
			o.PerUnit = uint32(n)
		case 2<<3 | wireVarint:
			o.Unit = Unit(int32(n))
		}
	}
	return true
}

func unmarshalUint64Value(b []byte, dst *uint64) bool {
	for len(b) > 0 {
		tag, n, _, rest, ok := cutField(b)
		if !ok {
			return false
		}
		if b = rest; tag == 1<<3|wireVarint {
			*dst = n
		}
	}
	return true
}

const (
	wireVarint = uint64(protowire.VarintType)
	wireBytes  = uint64(protowire.BytesType)
)

// varint reads one base-128 number from the start of b. n is its length in bytes, or 0 if b does not begin with a valid
// number.
func varint(b []byte) (v uint64, n int) {
	if len(b) > 0 && b[0] < 0x80 { // frequent, since tags, lengths and hits are small
		return uint64(b[0]), 1
	}
	v, n = protowire.ConsumeVarint(b)
	return v, max(n, 0)
}

// cutField cuts the first field off a message b that is not empty, and returns what follows as rest. tag is the field's
// number and wire type. For a varint n is its value; for any other field, field is its bytes. Callers ignore fields
// whose number or wire type they do not expect.
func cutField(b []byte) (tag, n uint64, field, rest []byte, ok bool) {
	tag, at := uint64(b[0]), 1
	if tag >= 0x80 { // smaller tags, which are nearly all, need no call
		tag, at = varint(b)
	}
	if at == 0 || bits.Len64(tag>>3) > 29 || tag>>3 == 0 {
		return 0, 0, nil, nil, false
	}
	end := at
	switch tag & 7 {
	case wireBytes:
		size, length := varint(b[at:])
		at += length
		if length == 0 || size > uint64(len(b)-at) {
			return 0, 0, nil, nil, false
		}
		end = at + int(size)
	case wireVarint:
		n, end = varint(b[at:])
		return tag, n, nil, b[at+end:], end > 0
	default:
		if end = protowire.ConsumeFieldValue(protowire.Number(tag>>3), protowire.Type(tag&7), b[at:]); end < 0 {
			return 0, 0, nil, nil, false
		}
		end += at
	}
	return tag, 0, b[at:end:end], b[end:], true
}

// text returns b as a string without copying it. Copying every key and value would be most of the cost of decoding.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

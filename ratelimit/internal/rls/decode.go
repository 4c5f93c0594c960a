package rls

import (
	"errors"
	"math/bits"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrMalformed is the answer to bytes that are no RateLimitRequest.
var ErrMalformed = errors.New("rls: malformed RateLimitRequest")

// MaxDescriptors and MaxEntries, of all descriptors, bound what Unmarshal takes: far above any sensible MAX_DESCRIPTORS
// and MAX_ENTRIES.
const (
	MaxDescriptors = 1 << 16
	MaxEntries     = 1 << 18
)

// A Request keeps its memory for entries between calls, unless one outsized message made it grow beyond this.
const keepEntries = 4096

// Unmarshal decodes one envoy.service.ratelimit.v3.RateLimitRequest. It accepts exactly what the generated code
// accepts: unknown fields are skipped, the last of a repeated scalar wins, split messages merge. But strings may have
// any bytes: an Envoy passes on what a client put into a header, UTF-8 or not, and with its default
// failure_mode_deny=false lets a request pass whose call is refused, so refusing would be a way around every limit. The
// strings of r point into b, which must not change while r is in use.
//
// Unmarshal stops before a descriptor beyond MaxDescriptors or MaxEntries and sets Cut, since four megabytes can have
// millions. Such a request has to be refused.
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
	clear(r.Descriptors) // no string may keep a wire buffer alive
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
	// This slice keeps pointing to the old array when the entries grow.
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

// usual reads an entry in the form that all clients write: a key and a value of less than 128 bytes each, in this
// order. For any other form it changes nothing.
func (e *Entry) usual(b []byte) bool {
	if len(b) < 4 || b[0] != 1<<3|byte(wireBytes) || b[1] >= 0x80 {
		return false
	}
	end := 2 + int(b[1]) // end of the key
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

// varint reads one base-128 number; n is 0 if b has none.
func varint(b []byte) (v uint64, n int) {
	if len(b) > 0 && b[0] < 0x80 { // frequent: tags, lengths and hits are small
		return uint64(b[0]), 1
	}
	v, n = protowire.ConsumeVarint(b)
	return v, max(n, 0)
}

// cutField cuts the first field off a message that is not empty. n is the number of a varint, field the bytes of a
// field with a length. Callers ignore unknown fields, and fields of an unexpected wire type.
func cutField(b []byte) (tag, n uint64, field, rest []byte, ok bool) {
	tag, at := uint64(b[0]), 1
	if tag >= 0x80 { // saves a call for smaller tags, which are nearly all
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

// text reads b in place: copying every key and value would be most of the cost of decoding.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

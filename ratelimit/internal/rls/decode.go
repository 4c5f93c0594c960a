package rls

import (
	"errors"
	"math/bits"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrMalformed is the answer to bytes that are no RateLimitRequest.
var ErrMalformed = errors.New("rls: malformed RateLimitRequest")

// Far above what MAX_DESCRIPTORS and MAX_ENTRIES may sensibly be.
const (
	maxDescriptors = 1 << 16
	maxEntries     = 1 << 18
)

// A Request keeps its arena of entries between calls, unless one outsized message grew it.
const keepEntries = 4096

// Unmarshal decodes one envoy.service.ratelimit.v3.RateLimitRequest. It accepts exactly what the
// generated code accepts: unknown fields are skipped, the last of a repeated scalar wins, split
// messages merge; but strings may hold any bytes. An Envoy passes on what a client put into a header, UTF-8 or
// not, and with its default failure_mode_deny=false lets a request pass whose call is refused: refusing would be
// a way around every limit. The strings of r point into b, which must not change while r is in use.
//
// It stops at maxDescriptors or maxEntries: four megabytes can hold millions, and what has so many is refused anyway.
func (r *Request) Unmarshal(b []byte) error {
	r.Reset()
	for len(b) > 0 && len(r.Descriptors) < maxDescriptors && len(r.entries) < maxEntries {
		tag, n := varint(b)
		if n == 0 {
			return ErrMalformed
		}
		rest := b[n:]
		var ok bool
		switch tag {
		case 1<<3 | wireBytes:
			var s []byte
			if s, b, ok = lengthPrefixed(rest); !ok {
				return ErrMalformed
			}
			r.Domain = text(s)
		case 2<<3 | wireBytes:
			var m []byte
			if m, b, ok = lengthPrefixed(rest); !ok {
				return ErrMalformed
			}
			if err := r.descriptor(m); err != nil {
				return err
			}
		case 3<<3 | wireVarint:
			v, n := varint(rest)
			if n == 0 {
				return ErrMalformed
			}
			r.HitsAddend, b = uint32(v), rest[n:]
		default:
			if b, ok = skip(tag, rest); !ok {
				return ErrMalformed
			}
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
	r.Domain, r.HitsAddend = "", 0
}

func (r *Request) descriptor(b []byte) error {
	var d Descriptor
	first := len(r.entries)
	for len(b) > 0 {
		tag, n := varint(b)
		if n == 0 {
			return ErrMalformed
		}
		rest := b[n:]
		var m []byte
		var ok bool
		switch tag {
		case 1<<3 | wireBytes:
			if m, b, ok = lengthPrefixed(rest); !ok {
				return ErrMalformed
			}
			var e Entry
			if !e.unmarshal(m) {
				return ErrMalformed
			}
			r.entries = append(r.entries, e)
		case 2<<3 | wireBytes:
			if m, b, ok = lengthPrefixed(rest); !ok || !d.Limit.unmarshal(m) {
				return ErrMalformed
			}
			d.HasLimit = true
		case 3<<3 | wireBytes:
			if m, b, ok = lengthPrefixed(rest); !ok || !unmarshalUint64Value(m, &d.Hits) {
				return ErrMalformed
			}
			d.HasHits = true
		case 4<<3 | wireVarint:
			v, n := varint(rest)
			if n == 0 {
				return ErrMalformed
			}
			d.Negative, b = v != 0, rest[n:]
		default:
			if b, ok = skip(tag, rest); !ok {
				return ErrMalformed
			}
		}
	}
	// Growing the arena later leaves this slice on the older array, whose content stays.
	d.Entries = r.entries[first:len(r.entries):len(r.entries)]
	r.Descriptors = append(r.Descriptors, d)
	return nil
}

func (e *Entry) unmarshal(b []byte) bool {
	if e.usual(b) {
		return true
	}
	for len(b) > 0 {
		tag, n := varint(b)
		if n == 0 {
			return false
		}
		rest := b[n:]
		var s []byte
		var ok bool
		switch tag {
		case 1<<3 | wireBytes:
			if s, b, ok = lengthPrefixed(rest); !ok {
				return false
			}
			e.Key = text(s)
		case 2<<3 | wireBytes:
			if s, b, ok = lengthPrefixed(rest); !ok {
				return false
			}
			e.Value = text(s)
		default:
			if b, ok = skip(tag, rest); !ok {
				return false
			}
		}
	}
	return true
}

// usual reads an entry as everybody writes it: a key and a value of less than 128 bytes each, in this
// order. Otherwise it changes nothing.
func (e *Entry) usual(b []byte) bool {
	if len(b) < 4 || b[0] != 1<<3|byte(wireBytes) || b[1] >= 0x80 {
		return false
	}
	end := 2 + int(b[1]) // of the key
	if len(b) < end+2 || b[end] != 2<<3|byte(wireBytes) || b[end+1] >= 0x80 || end+2+int(b[end+1]) != len(b) {
		return false
	}
	e.Key, e.Value = text(b[2:end]), text(b[end+2:])
	return true
}

func (o *Override) unmarshal(b []byte) bool {
	for len(b) > 0 {
		tag, n := varint(b)
		if n == 0 {
			return false
		}
		rest := b[n:]
		switch tag {
		case 1<<3 | wireVarint, 2<<3 | wireVarint:
			v, n := varint(rest)
			if n == 0 {
				return false
			}
			if tag>>3 == 1 {
				o.PerUnit = uint32(v)
			} else {
				o.Unit = Unit(int32(v))
			}
			b = rest[n:]
		default:
			var ok bool
			if b, ok = skip(tag, rest); !ok {
				return false
			}
		}
	}
	return true
}

func unmarshalUint64Value(b []byte, dst *uint64) bool {
	for len(b) > 0 {
		tag, n := varint(b)
		if n == 0 {
			return false
		}
		rest := b[n:]
		if tag == 1<<3|wireVarint {
			if *dst, n = varint(rest); n == 0 {
				return false
			}
			b = rest[n:]
			continue
		}
		var ok bool
		if b, ok = skip(tag, rest); !ok {
			return false
		}
	}
	return true
}

const (
	wireVarint = uint64(protowire.VarintType)
	wireBytes  = uint64(protowire.BytesType)
)

// varint reads one base-128 number; n is 0 when b holds none.
func varint(b []byte) (v uint64, n int) {
	if len(b) > 0 && b[0] < 0x80 { // nearly always: tags, lengths and hits are small
		return uint64(b[0]), 1
	}
	v, n = protowire.ConsumeVarint(b)
	return v, max(n, 0)
}

func lengthPrefixed(b []byte) (field, rest []byte, ok bool) {
	v, n := varint(b)
	if n == 0 || v > uint64(len(b)-n) {
		return nil, nil, false
	}
	end := n + int(v)
	return b[n:end:end], b[end:], true
}

// skip passes over a field this package does not know, or one of an unexpected wire type.
func skip(tag uint64, b []byte) (rest []byte, ok bool) {
	if bits.Len64(tag>>3) > 29 || tag>>3 == 0 {
		return nil, false
	}
	n := protowire.ConsumeFieldValue(protowire.Number(tag>>3), protowire.Type(tag&7), b)
	if n < 0 {
		return nil, false
	}
	return b[n:], true
}

// text reads b in place: copying every key and value would be most of the cost of decoding.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

package rls

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Append appends r, encoded as an envoy.service.ratelimit.v3.RateLimitResponse, to dst. Fields are written in the order
// of their numbers. Append fails only when Metadata cannot be encoded.
func (r *Response) Append(dst []byte) ([]byte, error) {
	dst = appendUint(dst, 1, uint64(r.Overall))
	for i := range r.Statuses {
		dst = append(dst, 2<<3|byte(wireBytes), 0)
		start := len(dst)
		dst = r.Statuses[i].append(dst)
		dst = setLength(dst, start)
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		dst = append(dst, 3<<3|byte(wireBytes), 0)
		start := len(dst)
		dst = appendText(dst, 1, h.Key)
		dst = appendText(dst, 2, h.Value)
		dst = setLength(dst, start)
	}
	if r.Metadata == nil {
		return dst, nil
	}
	dst = append(dst, 6<<3|byte(wireBytes))
	opt := proto.MarshalOptions{Deterministic: true}
	dst = protowire.AppendVarint(dst, uint64(opt.Size(r.Metadata)))
	return opt.MarshalAppend(dst, r.Metadata)
}

// Reset empties r and keeps its memory for the next response.
func (r *Response) Reset() {
	clear(r.Statuses)
	r.Overall, r.Statuses, r.Headers, r.Metadata = UnknownCode, r.Statuses[:0], r.Headers[:0], nil
}

func (s *Status) append(dst []byte) []byte {
	dst = appendUint(dst, 1, uint64(s.Code))
	if s.HasLimit {
		dst = append(dst, 2<<3|byte(wireBytes), 0)
		start := len(dst)
		dst = appendUint(dst, 1, uint64(s.PerUnit))
		dst = appendUint(dst, 2, uint64(s.Unit))
		dst = appendText(dst, 3, s.Name)
		dst = setLength(dst, start)
	}
	dst = appendUint(dst, 3, uint64(s.Remaining))
	if s.HasLimit {
		dst = append(dst, 4<<3|byte(wireBytes), 0)
		start := len(dst)
		dst = appendUint(dst, 1, uint64(s.Reset))
		dst = setLength(dst, start)
	}
	return dst
}

// setLength completes an embedded message that begins at start and ends where dst ends: it writes the message's length
// into the byte before start. If the length needs more than one byte, setLength moves the message to make room.
func setLength(dst []byte, start int) []byte {
	n := len(dst) - start
	if n < 0x80 {
		dst[start-1] = byte(n)
		return dst
	}
	var length [10]byte
	return slices.Replace(dst, start-1, start, protowire.AppendVarint(length[:0], uint64(n))...)
}

// The append functions below support only field numbers less than 16, so that a tag is one byte. As proto3 prescribes,
// they write nothing for a zero value.

func appendUint(dst []byte, field byte, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendVarint(append(dst, field<<3|byte(wireVarint)), v)
}

func appendText(dst []byte, field byte, s string) []byte {
	if s == "" {
		return dst
	}
	dst = protowire.AppendVarint(append(dst, field<<3|byte(wireBytes)), uint64(len(s)))
	return append(dst, s...)
}

package rls

import (
	"math/bits"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Append appends r as an envoy.service.ratelimit.v3.RateLimitResponse, fields in number order.
// It fails only when Metadata cannot be encoded.
func (r *Response) Append(dst []byte) ([]byte, error) {
	dst = appendUint(dst, 1, uint64(r.Overall))
	for i := range r.Statuses {
		s := &r.Statuses[i]
		dst = append(dst, 2<<3|byte(wireBytes))
		dst = protowire.AppendVarint(dst, uint64(s.size()))
		dst = s.append(dst)
	}
	for i := range r.Headers {
		h := &r.Headers[i]
		dst = append(dst, 3<<3|byte(wireBytes))
		dst = protowire.AppendVarint(dst, uint64(sizeText(h.Key)+sizeText(h.Value)))
		dst = appendText(dst, 1, h.Key)
		dst = appendText(dst, 2, h.Value)
	}
	if r.Metadata == nil {
		return dst, nil
	}
	dst = append(dst, 6<<3|byte(wireBytes))
	opt := proto.MarshalOptions{Deterministic: true}
	dst = protowire.AppendVarint(dst, uint64(opt.Size(r.Metadata)))
	return opt.MarshalAppend(dst, r.Metadata)
}

// Reset empties r and keeps its memory.
func (r *Response) Reset() {
	clear(r.Statuses)
	r.Overall, r.Statuses, r.Headers, r.Metadata = UnknownCode, r.Statuses[:0], r.Headers[:0], nil
}

func (s *Status) size() int {
	n := sizeUint(uint64(s.Code)) + sizeUint(uint64(s.Remaining))
	if s.HasLimit {
		n += sizeMessage(s.limitSize()) + sizeMessage(sizeUint(uint64(s.Reset)))
	}
	return n
}

func (s *Status) limitSize() int {
	return sizeUint(uint64(s.PerUnit)) + sizeUint(uint64(s.Unit)) + sizeText(s.Name)
}

func (s *Status) append(dst []byte) []byte {
	dst = appendUint(dst, 1, uint64(s.Code))
	if s.HasLimit {
		dst = append(dst, 2<<3|byte(wireBytes))
		dst = protowire.AppendVarint(dst, uint64(s.limitSize()))
		dst = appendUint(dst, 1, uint64(s.PerUnit))
		dst = appendUint(dst, 2, uint64(s.Unit))
		dst = appendText(dst, 3, s.Name)
	}
	dst = appendUint(dst, 3, uint64(s.Remaining))
	if s.HasLimit {
		dst = append(dst, 4<<3|byte(wireBytes))
		dst = protowire.AppendVarint(dst, uint64(sizeUint(uint64(s.Reset))))
		dst = appendUint(dst, 1, uint64(s.Reset))
	}
	return dst
}

// Every field number here is below 16, so that a tag is one byte; zero values are left out (proto3).

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

func sizeUint(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + sizeVarint(v)
}

func sizeText(s string) int {
	if s == "" {
		return 0
	}
	return 1 + sizeVarint(uint64(len(s))) + len(s)
}

func sizeMessage(n int) int { return 1 + sizeVarint(uint64(n)) + n }

func sizeVarint(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

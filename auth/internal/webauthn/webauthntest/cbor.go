package webauthntest

import (
	"encoding/binary"
	"fmt"
)

// Map is a CBOR map whose pairs are encoded in this order.
type Map []Pair

// Pair is a key and its value.
type Pair struct{ Key, Value any }

// Raw is encoded CBOR, which is written unchanged.
type Raw []byte

// CBOR encodes integers, texts, byte strings, booleans, lists and maps.
func CBOR(v any) []byte {
	switch v := v.(type) {
	case int:
		if v < 0 {
			return head(1, uint64(-1-v))
		}
		return head(0, uint64(v))
	case []byte:
		return append(head(2, uint64(len(v))), v...)
	case string:
		return append(head(3, uint64(len(v))), v...)
	case []any:
		out := head(4, uint64(len(v)))
		for _, item := range v {
			out = append(out, CBOR(item)...)
		}
		return out
	case Map:
		out := head(5, uint64(len(v)))
		for _, p := range v {
			out = append(append(out, CBOR(p.Key)...), CBOR(p.Value)...)
		}
		return out
	case bool:
		if v {
			return []byte{0xf5}
		}
		return []byte{0xf4}
	case Raw:
		return v
	}
	panic(fmt.Sprintf("webauthntest: CBOR of %T", v))
}

func head(major byte, n uint64) []byte {
	switch {
	case n < 24:
		return []byte{major<<5 | byte(n)}
	case n < 1<<8:
		return []byte{major<<5 | 24, byte(n)}
	case n < 1<<16:
		return binary.BigEndian.AppendUint16([]byte{major<<5 | 25}, uint16(n))
	}
	return binary.BigEndian.AppendUint32([]byte{major<<5 | 26}, uint32(n))
}

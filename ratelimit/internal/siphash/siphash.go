// Package siphash implements SipHash-2-4 with 128 bits: a hash that replaces keys that would be too large to keep. Two
// keys with the same hash cannot be found without the process's secret.
package siphash

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
)

// ID is the 128-bit keyed hash of a counter key, used where the key itself would be too large to keep. Two of a million
// keys share an id with a probability below 2^-88, and without the process's secret such a pair cannot be searched for.
type ID struct{ A, B uint64 }

// Secret is the hash's key; every process and every store has its own.
type Secret struct{ k0, k1 uint64 }

func NewSecret() Secret {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return Secret{binary.LittleEndian.Uint64(b[:8]), binary.LittleEndian.Uint64(b[8:])}
}

// Sum returns SipHash-2-4 of p with a 128-bit result. It is implemented here because hash/maphash, the standard
// library's keyed hash, has only 64 bits and must not be relied on against an adversary. It takes 28 ns for a key of 48
// bytes (BenchmarkSum).
func (s Secret) Sum(p []byte) ID {
	v0 := s.k0 ^ 0x736f6d6570736575
	v1 := s.k1 ^ 0x646f72616e646f6d ^ 0xee
	v2 := s.k0 ^ 0x6c7967656e657261
	v3 := s.k1 ^ 0x7465646279746573
	last := uint64(len(p)) << 56
	for len(p) >= 8 {
		m := binary.LittleEndian.Uint64(p)
		v3 ^= m
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
		v0 ^= m
		p = p[8:]
	}
	for i, c := range p {
		last |= uint64(c) << (8 * i)
	}
	v3 ^= last
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	v0 ^= last
	v2 ^= 0xee
	for range 4 {
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	}
	a := v0 ^ v1 ^ v2 ^ v3
	v1 ^= 0xdd
	for range 4 {
		v0, v1, v2, v3 = sipRound(v0, v1, v2, v3)
	}
	return ID{a, v0 ^ v1 ^ v2 ^ v3}
}

func sipRound(v0, v1, v2, v3 uint64) (uint64, uint64, uint64, uint64) {
	v0 += v1
	v1 = bits.RotateLeft64(v1, 13) ^ v0
	v0 = bits.RotateLeft64(v0, 32)
	v2 += v3
	v3 = bits.RotateLeft64(v3, 16) ^ v2
	v0 += v3
	v3 = bits.RotateLeft64(v3, 21) ^ v0
	v2 += v1
	v1 = bits.RotateLeft64(v1, 17) ^ v2
	v2 = bits.RotateLeft64(v2, 32)
	return v0, v1, v2, v3
}

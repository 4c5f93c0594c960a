package siphash

import (
	"encoding/binary"
	"encoding/hex"
	"testing"
)

// The vectors are the first of the reference implementation's vectors_sip128: key 00..0f, input 00..n-1.
func TestSum(t *testing.T) {
	s := Secret{0x0706050403020100, 0x0f0e0d0c0b0a0908}
	f := func(n int, want string) {
		t.Helper()
		in := make([]byte, n)
		for i := range in {
			in[i] = byte(i)
		}
		x := s.Sum(in)
		got := binary.LittleEndian.AppendUint64(nil, x.A)
		got = binary.LittleEndian.AppendUint64(got, x.B)
		if hex.EncodeToString(got) != want {
			t.Errorf("sum of %d bytes = %x, want %s", n, got, want)
		}
	}
	f(0, "a3817f04ba25a8e66df67214c7550293")
	f(1, "da87c1d86b99af44347659119b22fc45")
	f(2, "8177228da4a45dc7fca38bdef60affe4")
	f(3, "9c70b60c5267a94e5f33b6b02985ed51")
}

func BenchmarkSum(b *testing.B) {
	s := NewSecret()
	key := make([]byte, 48)
	for b.Loop() {
		if s.Sum(key) == (ID{}) {
			b.Fatal("all bits are zero")
		}
	}
}

package webauthn

import (
	"encoding/hex"
	"strings"
	"testing"
)

// The examples of RFC 8949, appendix A. What the reader takes is definite, without tags, within int64 and bounded.
func TestCBOR(t *testing.T) {
	read := strings.Fields(`00 17 1818 1903e8 1a000f4240 1b000000e8d4a51000 20 29 3863 3903e7 f90000 f93c00 fa47c35000 ` +
		`f97c00 fb3ff199999999999a fb7ff0000000000000 f4 f5 f6 f7 f0 f8ff 40 4401020304 60 6161 ` +
		`6449455446 62225c 62c3bc 63e6b0b4 64f0908591 80 83010203 8301820203820405 ` +
		`98190102030405060708090a0b0c0d0e0f101112131415161718181819 a0 a201020304 ` +
		`a26161016162820203 826161a161626163 8181818181818180`)
	refused := strings.Fields(`1bffffffffffffffff 3bffffffffffffffff c249010000000000000000 ` +
		`c074323031332d30332d32315432303a30343a30305a c11a514b67b0 d74401020304 f818 62c328 ` +
		`5f42010243030405ff 7f657374726561646d696e67ff 9fff 9f018202039f0405ffff 83018202039f0405ff ` +
		`bf61610161629f0203ffff 826161bf61626163ff 1c ff _ 18 4201 81 a101 5bffffffffffffffff ` +
		`9b0000000100000000 818181818181818180`)
	for i, text := range append(read, refused...) {
		b, err := hex.DecodeString(strings.TrimPrefix(text, "_")) // _ is the empty text
		if err != nil {
			t.Fatal(err)
		}
		r := cborReader{b}
		if got, want := r.skip(maxDepth) && len(r.b) == 0, i < len(read); got != want {
			t.Errorf("%s: read %v, want %v", text, got, want)
		}
	}
}

func TestCBOR_integers(t *testing.T) {
	for text, want := range map[string]int64{
		"\x00": 0, "\x18\x64": 100, "\x20": -1, "\x39\x01\x00": -257, "\x1b\x7f\xff\xff\xff\xff\xff\xff\xff": 1<<63 - 1,
		"\x3b\x7f\xff\xff\xff\xff\xff\xff\xff": -1 << 63,
	} {
		r := cborReader{[]byte(text)}
		if got, ok := r.integer(); !ok || got != want {
			t.Errorf("%x: %d, %v, want %d", text, got, ok, want)
		}
	}
}

func FuzzCBOR(f *testing.F) {
	f.Add([]byte("\xa2\x61a\x01\x61b\x82\x02\x03"))
	f.Add([]byte("\x9b\x00\x00\x00\x01\x00\x00\x00\x00"))
	f.Add([]byte("\xa5\x01\x02\x03\x26\x20\x01\x21\x41x\x22\xf5"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := cborReader{b}
		if r.skip(maxDepth) {
			read := b[:len(b)-len(r.b)]
			again := cborReader{read}
			if !again.skip(maxDepth) || len(again.b) != 0 {
				t.Errorf("%x was read once and not again", read)
			}
		}
		if allocs := testing.AllocsPerRun(1, func() { (&cborReader{b}).skip(maxDepth) }); allocs > 0 {
			t.Errorf("%x: %v allocations", b, allocs)
		}
		if _, err := parseKey(b); err == nil {
			if again := (cborReader{b}); !again.skip(maxDepth) || len(again.b) != 0 {
				t.Errorf("%x is a key and no CBOR", b)
			}
		}
	})
}

func FuzzClientData(f *testing.F) {
	f.Add([]byte(`{"type":"webauthn.get","challenge":"AA","origin":"https://a.test","crossOrigin":false}`))
	f.Add([]byte(`{"type":"webauthn.get","challenge":"AA","origin":"https://a.test","Origin":"b","x":[[{}]]}`))
	f.Add([]byte(`{"type":"webauthn.get","challenge":"AA","origin":"https://a.test","topOrigin":"c"}`))
	f.Add([]byte(`{"type":"x","\u0074ype":"y"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := readClientData(b)
		p := &Policy{Origins: []string{"https://a.test"}, Challenges: [][]byte{{0}}}
		if err == nil && c.check("webauthn.get", p) == nil &&
			(c.kind != "webauthn.get" || c.origin != "https://a.test" || c.cross) {
			t.Errorf("accepted %q", b)
		}
	})
}

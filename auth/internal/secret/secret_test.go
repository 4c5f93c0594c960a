package secret

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

func TestSeal(t *testing.T) {
	older, newer := NewRoot("old"), NewRoot("new", "older still", "old")
	plain := []byte("the text")
	sealed := older.Seal(Outbox, plain, []byte("row 1"))
	if len(sealed) != len(plain)+Overhead || bytes.Contains(sealed, plain) {
		t.Fatalf("sealed as %x", sealed)
	}
	f := func(r *Root, p Purpose, sealed []byte, bound string, wantOld bool, wantErr error) {
		t.Helper()
		have, old, err := r.Open(p, sealed, []byte(bound))
		if err != wantErr || old != wantOld || err == nil && !bytes.Equal(have, plain) {
			t.Errorf("opened %q, old %v, %v; want old %v, %v", have, old, err, wantOld, wantErr)
		}
	}
	f(older, Outbox, sealed, "row 1", false, nil)
	f(newer, Outbox, sealed, "row 1", true, nil)
	f(NewRoot("another"), Outbox, sealed, "row 1", false, ErrOtherRoot)
	f(older, Outbox, sealed, "row 2", false, ErrBroken)
	f(older, SigningKeys, sealed, "row 1", false, ErrOtherRoot) // each purpose names its root separately
	f(older, Outbox, sealed[:len(sealed)-1], "row 1", false, ErrBroken)
	f(older, Outbox, sealed[:Overhead-1], "row 1", false, ErrBroken)
	f(older, Outbox, nil, "row 1", false, ErrBroken)
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if _, _, err := older.Open(Outbox, bad, []byte("row 1")); err == nil {
			t.Errorf("byte %d turned, still opened", i)
		}
	}
	if again := older.Seal(Outbox, plain, []byte("row 1")); bytes.Equal(again, sealed) {
		t.Error("two seals of one text are equal")
	}
}

// What is stored must stay readable: the derivation never changes.
func TestKeysNeverChange(t *testing.T) {
	r := NewRoot("root secret for the test of derivation")
	f := func(have []byte, want string) {
		t.Helper()
		if hex.EncodeToString(have) != want {
			t.Errorf("%x, want %s", have, want)
		}
	}
	f(r.Keys(Refresh)[0], "9ed2094139e3cd0566078dd9d3c0a9328c19bbcf02d90f632e52e6c9ac33a0ce")
	f(r.MAC(OTP, "recovery", "mia@example.org", "048213"),
		"130956520064bcd525a87e125fe14179fed92c8746d1d0fae5d6f9e7b2fbf9a7")
	f(r.MAC(FormerRefresh, "lookup", "abcdefghijkl"),
		"801c72a459802a55c29f03c6e1fa463a2b2e8fb29af9a477c1df7d6972f9bbe3")
	sealed, _ := hex.DecodeString("01a135f5a41092dd45c0213eef85e2464873aea59b910d5d5faf2b228c91333a71edc1aacfbcd2a1ab")
	plain, old, err := r.Open(SigningKeys, sealed, []byte("k1"))
	if err != nil || old || string(plain) != "kept" {
		t.Errorf("opened %q, %v, %v", plain, old, err)
	}
}

func TestMAC(t *testing.T) {
	r := NewRoot("new", "old")
	f := func(a, b []byte, same bool) {
		t.Helper()
		if len(a) != 32 || bytes.Equal(a, b) != same {
			t.Errorf("%x and %x, want same %v", a, b, same)
		}
	}
	f(r.MAC(OTP, "ab", "c"), r.MAC(OTP, "ab", "c"), true)
	f(r.MAC(OTP, "ab", "c"), r.MAC(OTP, "a", "bc"), false)
	f(r.MAC(OTP, "ab", "c"), r.MAC(OTP, "ab", "c", ""), false)
	f(r.MAC(OTP, "ab", "c"), r.MAC(Limits, "ab", "c"), false)
	both := r.MACs(OTP, "ab", "c")
	if len(both) != 2 {
		t.Fatalf("%d MACs", len(both))
	}
	f(both[0], r.MAC(OTP, "ab", "c"), true)
	f(both[1], NewRoot("old").MAC(OTP, "ab", "c"), true)
	f(r.Keys(Refresh)[0], r.Keys(Refresh)[1], false)
}

func TestRootIsNotPrinted(t *testing.T) {
	r := NewRoot("sesame")
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		if text := fmt.Sprintf(format, r); strings.Contains(text, "sesame") || len(text) > 40 {
			t.Errorf("%s prints %s", format, text)
		}
	}
}

//go:build !race

package token

import "testing"

// The race detector makes sync.Pool drop items on purpose, hence the build tag.

func TestSignVerifyAllocations(t *testing.T) {
	rs, es, ed, oct := testKeys(t)
	f := func(k *Key, sign, verify float64) {
		t.Helper()
		set := setFor(t, k)
		claims := testClaims()
		text, err := set.Sign(nil, claims)
		if err != nil {
			t.Fatal(err)
		}
		dst := text
		if n := testing.AllocsPerRun(200, func() { dst, err = set.Sign(dst[:0], claims) }); err != nil || n > sign {
			t.Errorf("%s: Sign allocates %v times, want at most %v (%v)", k, n, sign, err)
		}
		tok := string(text)
		var c Claims
		if n := testing.AllocsPerRun(200, func() { _, err = set.Verify(&c, tok, testNow) }); err != nil || n > verify {
			t.Errorf("%s: Verify allocates %v times, want at most %v (%v)", k, n, verify, err)
		}
	}
	f(oct, 0, 1) // the one is the claims' text
	f(ed, 0, 1)
	f(es, 99, 99) // below: crypto/ecdsa, crypto/rsa
	f(rs, 99, 99)
}

func TestRefreshAllocations(t *testing.T) {
	c := testCodec("key")
	r := testRefresh()
	dst := c.Append(nil, r)
	text := string(dst)
	if n := testing.AllocsPerRun(200, func() { dst = c.Append(dst[:0], r) }); n != 0 {
		t.Errorf("Append allocates %v times, want 0", n)
	}
	var err error
	if n := testing.AllocsPerRun(200, func() { _, err = c.Parse(text) }); n != 0 || err != nil {
		t.Errorf("Parse allocates %v times, want 0 (%v)", n, err)
	}
}

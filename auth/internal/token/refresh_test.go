package token

import (
	"errors"
	"strings"
	"testing"
)

func testCodec(keys ...string) *RefreshCodec {
	var raw [][]byte
	for _, k := range keys {
		raw = append(raw, []byte(k))
	}
	return NewRefreshCodec(raw)
}

func testRefresh() *Refresh {
	return &Refresh{Session: [16]byte{1, 2, 3}, Secret: [16]byte{4, 5, 6}, Counter: 7}
}

// What clients hold must stay valid: the form never changes.
const keptRefresh = "AQECAwAAAAAAAAAAAAAAAAAEBQYAAAAAAAAAAAAAAAAAAAAAAAAAAAejd1NYu9J4gWIQGlSirulH"

func TestRefreshRoundTrip(t *testing.T) {
	c := testCodec("key")
	text := string(c.Append([]byte("in front "), testRefresh()))
	if text = strings.TrimPrefix(text, "in front "); text != keptRefresh || len(text) != RefreshSize {
		t.Errorf("token %s, want %s", text, keptRefresh)
	}
	f := func(c *RefreshCodec, text string, want error) {
		t.Helper()
		have, err := c.Parse(text)
		if !errors.Is(err, want) || err == nil && have != *testRefresh() {
			t.Errorf("%v, %v; want %v", have, err, want)
		}
	}
	f(c, text, nil)
	f(testCodec("newer", "key"), text, nil)
	f(testCodec("newer"), text, ErrRefreshForged)
	f(c, "", ErrRefreshForm)
	f(c, text[:75], ErrRefreshForm)
	f(c, text+"A", ErrRefreshForm)
	f(c, text+"=", ErrRefreshForm)
	f(c, text[:75]+"\n", ErrRefreshForm)
	f(c, text[:75]+"+", ErrRefreshForm)
	f(c, "k3x9p0q7w2ab", ErrRefreshForged) // a token of the replaced service: as unknown as any other
	f(c, "k3x9p0q7w2a", ErrRefreshForm)
	f(c, "K3x9p0q7w2ab", ErrRefreshForm)
	f(c, "AA"+text[2:], ErrRefreshForm) // version 0
}

func TestRefreshForged(t *testing.T) {
	c := testCodec("key")
	text := string(c.Append(nil, testRefresh()))
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	tried := 0
	for i := range text {
		for _, by := range alphabet {
			if bad := text[:i] + string(by) + text[i+1:]; bad != text {
				tried++
				if r, err := c.Parse(bad); err == nil {
					t.Fatalf("%s is taken for %v", bad, r)
				}
			}
		}
	}
	if tried != 63*RefreshSize {
		t.Errorf("tried %d", tried)
	}
	next := testRefresh()
	next.Counter++
	if r, err := c.Parse(string(c.Append(nil, next))); err != nil || r.Counter != 8 ||
		r.SecretHash() != testRefresh().SecretHash() {
		t.Errorf("next is %v, %v", r, err)
	}
	big := Refresh{Counter: 1 << 63}
	if _, err := c.Parse(string(c.Append(nil, &big))); err != ErrRefreshForm {
		t.Errorf("a counter beyond bigint: %v", err)
	}
	if secret := NewRefreshSecret(); secret == NewRefreshSecret() {
		t.Error("two sessions have one secret")
	}
}

func TestOneTime(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		for n := 6; n <= 10; n++ {
			code, err := NewCode(n)
			if err != nil || len(code) != n || strings.Trim(code, "0123456789") != "" {
				t.Fatalf("code %q of %d digits: %v", code, n, err)
			}
			seen[code] = true
		}
	}
	if len(seen) < 490 {
		t.Errorf("only %d of 500 codes differ", len(seen))
	}
	for _, n := range []int{0, 5, 11} {
		if _, err := NewCode(n); err == nil {
			t.Errorf("%d digits are accepted", n)
		}
	}
	text, hash := NewLinkToken()
	if have, ok := LinkTokenHash(text); !ok || have != hash || len(text) != 64 {
		t.Errorf("link token %s", text)
	}
	for _, bad := range []string{"", text[1:], text + "0", "g" + text[1:], "A" + text[1:]} {
		if _, ok := LinkTokenHash(bad); ok {
			t.Errorf("link token %q is accepted", bad)
		}
	}
	if id := NewID(); len(id) != 22 || id == NewID() {
		t.Error("jti")
	}
}

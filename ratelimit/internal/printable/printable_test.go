package printable

import (
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := Text(in); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
		if got := string(Append([]byte("x"), in)); got != "x"+want {
			t.Errorf("Append(x, %q) = %q, want %q", in, got, "x"+want)
		}
	}
	f("", "")
	f("plain", "plain")
	f("café \ufffd 😀", "café \ufffd 😀") // the replacement character itself is a character
	f("bad\xffagent", `bad\xffagent`)
	f("\xc3", `\xc3`)                 // cut in the middle
	f("\xed\xa0\x80", `\xed\xa0\x80`) // half of a surrogate pair
	f("é\xc3\xa9\x80", `éé\x80`)
}

func FuzzText(f *testing.F) {
	f.Add("a\xff\xc3\xa9")
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if !utf8.ValidString(got) || utf8.ValidString(s) && got != s {
			t.Errorf("Text(%q) = %q", s, got)
		}
	})
}

func TestCut(t *testing.T) {
	f := func(s string, most int, want string) {
		t.Helper()
		if got, cut := Cut(s, most); got != want || cut != (s != want) {
			t.Errorf("Cut(%q, %d) = %q %v, want %q", s, most, got, cut, want)
		}
	}
	f("", 0, "")
	f("abc", 3, "abc")
	f("abc", 2, "ab")
	f("abc", 0, "")
	f("aü", 2, "a")
	f("a€", 3, "a")
	f("a\U0001f600", 4, "a")
	f("ü", 1, "")
	f("\xbf\xbf\xbf\xbf\xbf\xbf\xbf", 6, "\xbf\xbf") // no rune begins there
}

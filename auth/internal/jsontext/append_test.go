package jsontext

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestAppendString(t *testing.T) {
	f := func(s, want string) {
		t.Helper()
		if got := string(AppendString([]byte("x"), s)); got != "x"+want {
			t.Errorf("%q: %s, want %s", s, got, want)
		}
	}
	f("", `""`)
	f("plain", `"plain"`)
	f("a\"b\\c\n\r\t\x00\x1f\x7f", `"a\"b\\c\n\r\t\u0000\u001f`+"\x7f"+`"`)
	f("<é> & \u2028\U0001F511", `"<é> & `+"\u2028\U0001F511"+`"`)
	f("a\xffb\xc3", `"a`+"\uFFFD"+`b`+"\uFFFD"+`"`)
	f("\uFFFD", `"`+"\uFFFD"+`"`)
}

// FuzzAppendString_valid: whatever it is, a JSON reader finds it again, and each broken byte is one U+FFFD.
func FuzzAppendString_valid(f *testing.F) {
	f.Add("a\"\\\x01é\xff\U0001F511")
	f.Fuzz(func(t *testing.T, s string) {
		text := AppendString(nil, s)
		var back string
		if err := json.Unmarshal(text, &back); err != nil || !utf8.Valid(text) {
			t.Fatalf("%q: %s: %v", s, text, err)
		}
		if want := string([]rune(s)); back != want {
			t.Errorf("%q came back as %q, want %q", s, back, want)
		}
	})
}

func TestAppendString_Alloc(t *testing.T) {
	b, s := make([]byte, 0, 1024), strings.Repeat("aé\n", 50)
	if n := testing.AllocsPerRun(100, func() { b = AppendString(b[:0], s) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzAppendString(f *testing.F) {
	f.Add("a\xff\"\\\x00\u2028")
	f.Fuzz(func(t *testing.T, s string) {
		var back, want string
		if err := json.Unmarshal(AppendString(nil, s), &back); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		text, _ := json.Marshal(s)
		json.Unmarshal(text, &want)
		if back != want {
			t.Errorf("%q comes back as %q", s, back)
		}
	})
}

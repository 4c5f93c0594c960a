package password

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPolicy(t *testing.T) {
	f := func(p *Policy, password string, reasons []string, message string) {
		t.Helper()
		w := p.Check(password)
		if w == nil {
			w = &Weak{}
		}
		if diff := cmp.Diff(&Weak{reasons, message}, w); diff != "" {
			t.Errorf("%q (-want +have):\n%s", password, diff)
		}
	}
	plain := NewPolicy(0, "", false)
	f(plain, "secret", nil, "")
	f(plain, "äöüäöü", nil, "")
	f(plain, "äöü", []string{"length"}, "Password should be at least 6 characters.")
	f(plain, "", []string{"length"}, "Password should be at least 6 characters.")
	f(NewPolicy(3, "", false), "12345", []string{"length"}, "Password should be at least 6 characters.")

	strict := NewPolicy(8, `abcdefghijklmnopqrstuvwxyz:0123456789`, true)
	f(strict, "abcdefg1x", nil, "")
	const both = "Password should be at least 8 characters. Password should contain at least one character of each: " +
		"abcdefghijklmnopqrstuvwxyz, 0123456789."
	f(strict, "ABC", []string{"length", "characters"}, both)
	f(strict, "A1", []string{"length", "characters"}, both)
	f(strict, "PASSWORD1", []string{"characters", "pwned"},
		"Password should contain at least one character of each: abcdefghijklmnopqrstuvwxyz, 0123456789. Password is "+
			"known to be weak and easy to guess, please choose a different one.")
	f(strict, "Qwerty", []string{"length", "characters", "pwned"},
		both+" Password is known to be weak and easy to guess, please choose a different one.")
}

func TestParseSets(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		if have := parseSets(text); !slices.Equal(have, want) {
			t.Errorf("%q is %q, want %q", text, have, want)
		}
	}
	f("")
	f("::")
	f("abc", "abc")
	f(`abc:0123:!\:?`, "abc", "0123", "!:?")
	f(`:abc::x:`, "abc", "x")
	f(`a\b`, `a\b`)
	f(`a\`, `a\`)
	f(`a\\:b`, `a\`, "b")
	f(`a\\\:b`, `a\:b`)
}

func TestCommon(t *testing.T) {
	lines := strings.Split(strings.TrimSuffix(common, "\n"), "\n")
	if len(lines) < 10_000 || len(common) > 200_000 {
		t.Errorf("%d passwords in %d bytes", len(lines), len(common))
	}
	if !slices.IsSorted(lines) || len(slices.Compact(slices.Clone(lines))) != len(lines) {
		t.Error("the list is not sorted, or has repetitions")
	}
	for _, l := range lines {
		if !isCommon(l) || isCommon(l+"x\x00") {
			t.Errorf("%q is judged wrongly", l)
		}
		if len(l) < minLength || l != strings.ToLower(l) {
			t.Errorf("the list holds %q", l)
		}
	}
	for _, yes := range []string{"123456", "Password", "qwerty", "iloveyou", lines[0], lines[len(lines)-1]} {
		if !isCommon(yes) {
			t.Errorf("%q is not common", yes)
		}
	}
	for _, no := range []string{"", "12345", "sswor", "password\nqwerty", lines[0] + "\n" + lines[1],
		"correct horse battery staple", "\n"} {
		if isCommon(no) {
			t.Errorf("%q is common", no)
		}
	}
}

func BenchmarkCommon(b *testing.B) {
	for b.Loop() {
		if isCommon("correct horse battery") {
			b.Fatal("common")
		}
	}
}

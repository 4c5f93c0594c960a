package limits

import (
	"fmt"
	"testing"
)

func TestPattern(t *testing.T) {
	f := func(value, text string, want bool) {
		t.Helper()
		_, p := parseValue(value)
		if p == nil {
			t.Errorf("%q is no pattern", value)
			return
		}
		if got := p.match(text); got != want {
			t.Errorf("%q matches %q: %v, want %v", value, text, got, want)
		}
	}
	f("*", "", true)
	f("a**b", "ab", true)
	f("a**b", "axb", true)
	f("a*b*c*d", "abcd", true)
	f("a*b*c*d", "acbd", false)
	f("*ab*ab*", "ab", false)
	f("*ab*ab*", "abab", true)
	f("*a", "ba", true)
	f("/x/*", "/x/\xff\x00", true)
	f(`a\*b*`, "a*bc", true)
	f(`a\*b*`, `a\*bc`, false)
	f(`CORP\\*`, `CORP\eve`, true)
	f(`CORP\\*`, `CORP\\*`, true)
	f(`C:\dir\\*`, `C:\dir\x`, true)
}

func TestParseValue_literal(t *testing.T) {
	f := func(value, want string) {
		t.Helper()
		if got, p := parseValue(value); p != nil || got != want {
			t.Errorf("%q is %q (pattern %v), want %q", value, got, p != nil, want)
		}
	}
	f("", "")
	f("plain", "plain")
	f(`back\slash`, `back\slash`)
	f(`two\\slashes`, `two\\slashes`)
	f(`a\*`, "a*")
	f(`a\\\*b\\`, `a\*b\\`)
}

// The index must choose what a scan chooses.
func TestPatterns_index(t *testing.T) {
	var values []string
	for i := range 300 {
		values = append(values, []string{
			fmt.Sprintf("/api/v%d/*", i%97), fmt.Sprintf("*%d", i), fmt.Sprintf("/api/*/%d", i%10), fmt.Sprintf("%d*", i),
		}[i%4])
	}
	all := make([]*pattern, len(values))
	for i, v := range values {
		_, all[i] = parseValue(v)
	}
	indexed := indexPatterns(all)
	if indexed.byPrefix == nil {
		t.Fatal("not indexed")
	}
	scanned := patterns{all: all}
	hits := 0
	for _, v := range []string{"", "/api/v8/", "/api/v96/x/9", "/api/q/3", "299", "12", "nothing", "/api/", "/", "2", "x277"} {
		a, b := indexed.first(v), scanned.first(v)
		if a != b {
			t.Errorf("%q: the index finds %d, a scan %d", v, a, b)
		}
		if a < len(all) {
			hits++
		}
	}
	if hits < 4 {
		t.Errorf("only %d of the values match anything", hits)
	}
}

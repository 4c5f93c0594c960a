package limits

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/rls"
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
			fmt.Sprintf("/api/v%d/*", i%97), fmt.Sprintf("*%d", i), fmt.Sprintf("/api/*/%d", i%10),
			fmt.Sprintf("%d*", i),
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
	for _, v := range []string{"", "/api/v8/", "/api/v96/x/9", "/api/q/3", "299", "12", "nothing", "/api/", "/", "2",
		"x277"} {
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

// manyStars is a domain whose only key has n patterns.
func manyStars(n int, value func(i int) string) File {
	var b strings.Builder
	b.WriteString("domain: wild\ndescriptors:\n")
	for i := range n {
		fmt.Fprintf(&b, "- {key: w, value: '%s', rate_limit: {unit: minute, requests_per_unit: %d}}\n", value(i), i)
	}
	return File{"wild.yaml", []byte(b.String())}
}

// Patterns with a common beginning are compared up to a bound, and the load reports where it stopped; many that
// a value must be searched for are loaded with a warning of what they cost.
func TestLoad_manyPatterns(t *testing.T) {
	f := func(file File, want ...string) {
		t.Helper()
		_, warnings, err := Load(context.Background(), []File{file}, Options{})
		if err != nil || len(warnings) != len(want) {
			t.Errorf("%v, %d warnings %.400v, want %d", err, len(warnings), warnings, len(want))
			return
		}
		for i, w := range warnings {
			if !strings.Contains(w.String(), want[i]) {
				t.Errorf("%s\nwant %s", w, want[i])
			}
		}
	}
	ends := func(i int) string { return fmt.Sprintf("*x%d.", i) }
	inside := func(i int) string { return fmt.Sprintf("*x%d.*", i) }
	f(manyStars(2000, ends))
	f(manyStars(5000, ends), "ever match is not checked")
	f(manyStars(20_000, func(i int) string { return fmt.Sprintf("/v%d/*", i) }))
	f(manyStars(100, inside))
	f(manyStars(2000, inside),
		"wild.yaml:3:19: domain \"wild\", descriptor w_*x0.*: 2000 patterns of key \"w\" from here on hold a text "+
			"between two stars; a value of 60 KiB is searched for each, which costs a call up to about 16ms")
	f(manyStars(2000, func(i int) string { return fmt.Sprintf("/v%d/*x*", i) })) // one prefix, one search
}

// BenchmarkLoadStars loads patterns that begin with a star.
func BenchmarkLoadStars(b *testing.B) {
	f := manyStars(50_000, func(i int) string { return fmt.Sprintf("*x%d.", i) })
	for b.Loop() {
		mustLoad(b, Options{}, f)
	}
}

// BenchmarkPatterns_inside is the measurement behind costInside: 2,000 patterns with a text between two
// stars, none of which is in a value of 60 KiB.
func BenchmarkPatterns_inside(b *testing.B) {
	d := mustLoad(b, Options{}, manyStars(2000, func(i int) string { return fmt.Sprintf("*x%d.*", i) })).Domain("wild")
	entries := []rls.Entry{{Key: "w", Value: strings.Repeat("/api/v1/orders?", 4<<10)}}
	for b.Loop() {
		d.Find(entries)
	}
}

// The estimate follows what a request costs: with the length of its values, and with the
// patterns they are searched for.
func TestRules_Cost(t *testing.T) {
	plain := mustLoad(t, Options{},
		File{"f.yaml", []byte("domain: d\ndescriptors: [{key: k, value: /a/*, " + perMinute("1") + "}]")})
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n- key: other\n- key: below\n  descriptors:\n")
	for i := range 2000 {
		fmt.Fprintf(&b, "  - {key: k, value: '*bot%d*', %s}\n", i, perMinute("1"))
	}
	searched := mustLoad(t, Options{}, File{"f.yaml", []byte(b.String())})
	if got := plain.Cost(60 << 10); got > time.Millisecond {
		t.Errorf("60 KiB without patterns to search for: %v, want less than a millisecond", got)
	}
	if got := searched.Cost(60 << 10); got < 10*time.Millisecond || got > 30*time.Millisecond {
		t.Errorf("60 KiB and 2000 patterns: %v, want about 16 ms", got)
	}
	if got := searched.Cost(100); got > 100*time.Microsecond {
		t.Errorf("100 bytes and 2000 patterns: %v, want some 26 µs", got)
	}
}

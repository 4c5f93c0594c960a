package stats

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gatehouse/ratelimit/internal/printable"
)

func TestAppendKey(t *testing.T) {
	f := func(in, want string) {
		t.Helper()
		if got := string(appendKey(nil, []byte(in))); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	f("d.k_v.k2", "d.k_v.k2")
	f("my.domain.k_a:b|c", "my.domain.k_a_b_c")
	f("d.ip_10.0.0.1", "d.ip_10_0_0_1")
	f("d.ip_10.0.0.1.k2_1.2.3.4", "d.ip_10_0_0_1.k2_1_2_3_4")
	f("1.2.3.4.5.6.7.8", "1_2_3_4.5_6_7_8")
	f("1.2.3", "1.2.3")
	f("1..2.3.4", "1..2.3.4")
	f("1234.5.6.7", "1234_5_6_7")
	f("1.2.3.4567", "1_2_3_4567")
	f("1.2345.6.7.8", "1.2345_6_7_8")
	f("d.k_a\nb:1|c\x00\x7f", "d.k_a_b_1_c__")
	f("w_foo* bär", "w_foo* bär")
	f("", "")
}

func TestTags(t *testing.T) {
	r := NewRegistry(Options{Settings: Settings{ExtraTags: map[string]string{"ver": "1.2:3|4", "az": "b", "": "x",
		"none": "", "k\n": "v\n"}}})
	f := func(own []Tag, want string) {
		t.Helper()
		if d := cmp.Diff(want, r.seriesOf("n", own).Plain()); d != "" {
			t.Error(d)
		}
	}
	f(nil, "n.__az=b.__k_=v_.__ver=1_2_3_4")
	f([]Tag{{"code", "success"}}, "n.__az=b.__code=success.__k_=v_.__ver=1_2_3_4")
	f([]Tag{{"ver", "own"}}, "n.__az=b.__k_=v_.__ver=own")
	if n := r.Counter("reserved_tag").Value(); n != 1 {
		t.Errorf("reserved_tag = %d, want 1 (az)", n)
	}
}

var ipv4Pattern = regexp.MustCompile(`[0-9]{1,3}(\.[0-9]{1,3}){3}`)

// FuzzKey holds the hand-written scan against a regular expression, and that no byte survives
// which could end a metric name or a line.
func FuzzKey(f *testing.F) {
	for _, s := range []string{"d.k_v", "1.2.3.4", "1234.5.6.7.8", "a\nb:1|c", "1.2.3.4567.8.9", "...1.1.1.1...",
		"10.0.0.1.10.0.0.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got := appendKey(nil, []byte(in))
		if !utf8.ValidString(in) {
			in = string(printable.Append(nil, in))
		}
		if len(got) != len(in) {
			t.Fatalf("%q: length changed: %q", in, got)
		}
		if i := bytes.IndexFunc(
			got, func(c rune) bool { return c < 0x20 || c == ':' || c == '|' || c == 0x7f }); i >= 0 {
			t.Fatalf("%q: byte %q got through", in, got[i])
		}
		want := ipv4Pattern.ReplaceAllStringFunc(in, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
		b := []byte(want)
		for i, c := range b {
			if c == ':' || c == '|' || c < 0x20 || c == 0x7f {
				b[i] = '_'
			}
		}
		if tag := cleanTag(in); strings.ContainsAny(tag, ".:|\n\r") {
			t.Fatalf("tag %q became %q", in, tag)
		}
		if !bytes.Equal(got, b) {
			t.Fatalf("%q became %q, want %q", in, got, b)
		}
	})
}

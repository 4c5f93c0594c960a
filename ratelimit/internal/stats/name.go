package stats

import (
	"slices"
	"strings"
	"unicode/utf8"

	"gatehouse/ratelimit/internal/printable"
)

// Tag is a name and a value that are attached to a metric.
type Tag struct{ Name, Value string }

// Series is the name and the tags of one metric.
type Series struct {
	// Name is the metric's name: words separated by dots, without tags.
	Name string
	// Tags are the metric's own tags and those of EXTRA_TAGS, sorted by name and cleaned. Series share them: do not
	// change them.
	Tags []Tag

	suffix string // Tags in the form that plain statsd has
}

// Plain returns the name with its tags in the form for a plain statsd: `name.__k=v`.
func (s Series) Plain() string {
	if s.suffix == "" {
		return s.Name
	}
	return s.Name + s.suffix
}

// reservedTags are the names of tags that Lyft's statsd relay sets itself.
var reservedTags = map[string]bool{
	"asg": true, "az": true, "backend": true, "canary": true, "host": true, "period": true,
	"region": true, "shard": true, "window": true, "source": true, "project": true,
	"facet": true, "envoyservice": true,
}

// seriesOf returns the series with the given name, the tags in own and EXTRA_TAGS. A tag in own replaces an extra tag
// with the same name.
func (r *Registry) seriesOf(name string, own []Tag) Series {
	tags := r.extra
	if len(own) > 0 {
		all := make(map[string]string, len(own)+len(r.extra))
		for _, t := range r.extra {
			all[t.Name] = t.Value
		}
		for _, t := range own {
			all[t.Name] = t.Value
		}
		tags = cleanTags(all)
	}
	return Series{Name: name, Tags: tags, suffix: suffixOf(tags)}
}

func suffixOf(tags []Tag) string {
	var b strings.Builder
	for _, t := range tags {
		b.WriteString(".__")
		b.WriteString(t.Name)
		b.WriteByte('=')
		b.WriteString(t.Value)
	}
	return b.String()
}

// cleanTags returns tags sorted by name, without empty ones. Characters that would end a name or a line become `_`.
func cleanTags(m map[string]string) []Tag {
	var tags []Tag
	for k, v := range m {
		k, v = cleanTag(k), cleanTag(v)
		if k != "" && v != "" {
			tags = append(tags, Tag{k, v})
		}
	}
	slices.SortFunc(tags, func(a, b Tag) int { return strings.Compare(a.Name, b.Name) })
	return tags
}

func cleanTag(s string) string {
	return strings.Map(func(c rune) rune {
		if c == '.' || c == ':' || c == '|' || c < 0x20 || c == 0x7f {
			return '_'
		}
		return c
	}, s)
}

// appendKey appends a rule's key in the form that metric names have. `:`, `|` and control characters become `_`, and so
// do the dots in a text that looks like an IPv4 address; other dots stay and separate parts of the name. Invalid UTF-8
// becomes \xNN, since the page for Prometheus must be UTF-8.
func appendKey(dst, key []byte) []byte {
	start := len(dst)
	if utf8.Valid(key) {
		dst = append(dst, key...)
	} else {
		dst = printable.Append(dst, string(key))
	}
	out := dst[start:]
	for i := 0; i < len(out); i++ {
		switch c := out[i]; {
		case c == ':' || c == '|' || c < 0x20 || c == 0x7f:
			out[i] = '_'
		case isDigit(c):
			// An address may begin inside a longer run of digits, as a regular expression would find it: 1234.5.6.7
			// contains 234.5.6.7.
			run := digits(out, i)
			i += max(0, run-3)
			run = min(run, 3)
			if dots, end := ipv4(out, i, run); end > 0 {
				for _, d := range dots {
					out[d] = '_'
				}
				i = end - 1
			} else {
				i += run - 1
			}
		}
	}
	return dst
}

// ipv4 returns the offsets of the three dots of an IPv4 address whose first number is b[i:i+run], and the offset of the
// address's end; end is 0 if there is no address.
func ipv4(b []byte, i, run int) (dots [3]int, end int) {
	i += run
	for g := range dots {
		if i >= len(b) || b[i] != '.' {
			return dots, 0
		}
		dots[g] = i
		n := digits(b, i+1)
		if n == 0 || (n > 3 && g < 2) {
			return dots, 0
		}
		i += 1 + min(n, 3)
	}
	return dots, i
}

func digits(b []byte, i int) int {
	n := 0
	for i+n < len(b) && isDigit(b[i+n]) {
		n++
	}
	return n
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

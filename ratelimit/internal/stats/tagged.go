package stats

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/cactus/go-statsd-client/v5/statsd"
)

// name returns a series' name in a line and the tags after the value. In a tagged line, the first mogrifier that matches
// is applied, and the series' own tags come first.
func (s *Statsd) name(m Series) (string, []statsd.Tag) {
	if !s.tagged {
		return m.Plain(), nil
	}
	tags := make([]statsd.Tag, 0, len(m.Tags)+4)
	for _, tag := range m.Tags {
		tags = append(tags, statsd.Tag{tag.Name, tag.Value})
	}
	for i := range s.mogrifiers {
		if name, more, ok := s.mogrifiers[i].apply(m.Name); ok {
			for _, tag := range more {
				tags = append(tags, statsd.Tag{tag.Name, tag.Value})
			}
			return name, tags
		}
	}
	return m.Name, tags
}

// Mogrifier renames the names that its pattern matches and makes tags of the pattern's groups.
type Mogrifier struct {
	pattern *regexp.Regexp
	name    string
	tags    []Tag
}

// NewMogrifier takes a regular expression, which matches anywhere in a name (use anchors), the new name, and tags
// "k:v,k2:v2" in the order of the output. $0 in name and values is the whole match, $1 and so on its groups; other
// numbers stay unchanged.
func NewMogrifier(pattern, name, tags string) (Mogrifier, error) {
	p, err := regexp.Compile(pattern)
	if err != nil {
		return Mogrifier{}, err
	}
	m := Mogrifier{pattern: p, name: name}
	for item := range strings.SplitSeq(tags, ",") {
		if strings.TrimSpace(item) == "" {
			continue
		}
		k, v, _ := strings.Cut(item, ":")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if k == "" || v == "" {
			return Mogrifier{}, fmt.Errorf("item %q is not name:value", strings.TrimSpace(item))
		}
		m.tags = append(m.tags, Tag{k, v})
	}
	return m, nil
}

// apply returns the new name and tags; ok reports whether the pattern matches.
func (m *Mogrifier) apply(name string) (string, []Tag, bool) {
	at := m.pattern.FindStringSubmatchIndex(name)
	if at == nil {
		return "", nil, false
	}
	tags := make([]Tag, len(m.tags))
	for i, t := range m.tags {
		tags[i] = Tag{t.Name, expand(t.Value, name, at, tagValue)}
	}
	return expand(m.name, name, at, nil), tags, true
}

// tagValue replaces by `_` the comma, which would begin another tag. Names have no `|` and no control byte.
func tagValue(s string) string { return strings.ReplaceAll(s, ",", "_") }

// expand replaces the groups' numbers in template by the groups of name at `at`.
func expand(template, name string, at []int, clean func(string) string) string {
	var b strings.Builder
	for template != "" {
		text, rest, found := strings.Cut(template, "$")
		b.WriteString(text)
		if !found {
			break
		}
		n := 0
		for n < len(rest) && isDigit(rest[n]) {
			n++
		}
		group, err := strconv.Atoi(rest[:n])
		if err != nil || group >= len(at)/2 {
			b.WriteString("$" + rest[:n])
		} else if from, to := at[2*group], at[2*group+1]; from >= 0 { // a group without a match is empty
			value := name[from:to]
			if clean != nil {
				value = clean(value)
			}
			b.WriteString(value)
		}
		template = rest[n:]
	}
	return b.String()
}

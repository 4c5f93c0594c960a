package limits

import (
	"slices"
	"strings"
)

// Wildcards are indexed by their prefixes if there are more than scanPatterns of them, and more than perLength for each
// length of prefix that occurs. A scan costs 5 ns for each wildcard; the index costs 12 ns for each length
// (BenchmarkPatterns).
const (
	scanPatterns = 6
	perLength    = 3
)

// patterns finds the first wildcard, in configuration order, that matches a value. If there are many, they are indexed
// by their literal prefix, the text before the first star: a value is looked up once for each length of prefix that
// occurs, so that only the few wildcards that can match cost time.
type patterns struct {
	all      []*pattern
	byPrefix []prefixes // nil when all patterns are scanned
}

// prefixes has the patterns whose literal prefixes have the same length.
type prefixes struct {
	length  int
	numbers map[string][]int32 // prefix -> indexes of its patterns in patterns.all, ascending
}

func indexPatterns(all []*pattern) patterns {
	if len(all) > scanPatterns {
		if ix := buildIndex(all); len(all) > perLength*len(ix.byPrefix) {
			return ix
		}
	}
	return patterns{all: all}
}

func buildIndex(all []*pattern) patterns {
	ps := patterns{all: all}
	byLength := map[int]int{} // length of prefix -> index in byPrefix
	for i, p := range all {
		n := len(p.prefix)
		at, known := byLength[n]
		if !known {
			at = len(ps.byPrefix)
			byLength[n] = at
			ps.byPrefix = append(ps.byPrefix, prefixes{n, map[string][]int32{}})
		}
		m := ps.byPrefix[at].numbers
		m[p.prefix] = append(m[p.prefix], int32(i))
	}
	slices.SortFunc(ps.byPrefix, func(a, b prefixes) int { return a.length - b.length })
	return ps
}

// first returns the index of the first pattern that matches a value; len(ps.all) if none does.
func (ps *patterns) first(value string) int {
	if ps.byPrefix == nil {
		for i, p := range ps.all {
			if p.match(value) {
				return i
			}
		}
		return len(ps.all)
	}
	best := len(ps.all)
	for i := range ps.byPrefix {
		x := &ps.byPrefix[i]
		if x.length > len(value) {
			break
		}
		for _, n := range x.numbers[value[:x.length]] {
			if int(n) >= best {
				break
			}
			if ps.all[n].match(value) {
				best = int(n)
				break
			}
		}
	}
	return best
}

// candidates returns the greatest number of patterns that the method first may compare with a value.
func (ps *patterns) candidates(value string) (n int) {
	if ps.byPrefix == nil {
		return len(ps.all)
	}
	for i := range ps.byPrefix {
		if x := &ps.byPrefix[i]; x.length <= len(value) {
			n += len(x.numbers[value[:x.length]])
		}
	}
	return n
}

// searched returns for how many patterns with a text between two stars, at most, one value has to be searched. Without
// an index, it counts all such patterns; with an index, it adds up, over the lengths of prefixes, the greatest number
// of such patterns that share one prefix of that length.
func (ps *patterns) searched() (n int) {
	inside := func(numbers []int32) (n int) {
		for _, i := range numbers {
			if len(ps.all[i].middle) > 0 {
				n++
			}
		}
		return n
	}
	if ps.byPrefix == nil {
		for _, p := range ps.all {
			if len(p.middle) > 0 {
				n++
			}
		}
		return n
	}
	for _, x := range ps.byPrefix {
		most := 0
		for _, numbers := range x.numbers {
			most = max(most, inside(numbers))
		}
		n += most
	}
	return n
}

// joined returns the pieces of the pattern with the text in star between them. Adjacent stars of the pattern count as
// one.
func (p *pattern) joined(star string) string {
	pieces := append([]string{p.prefix}, p.middle...)
	return strings.Join(append(pieces, p.suffix), star)
}

// pattern is a configured value with stars, cut at them.
type pattern struct {
	prefix, suffix string
	middle         []string // the pieces between stars, none empty
	least          int      // len(prefix) + len(suffix)
	escaped        bool     // the configured text has a backslash before a star
}

// match reports whether v begins with the prefix, ends with the suffix, and has the middle pieces in between, in order
// and without overlap. Taking the leftmost occurrence of each piece is enough: the further left a piece is found, the
// more room is left for the next.
func (p *pattern) match(v string) bool {
	if len(v) < p.least || v[:len(p.prefix)] != p.prefix || v[len(v)-len(p.suffix):] != p.suffix {
		return false
	}
	if len(p.middle) == 0 {
		return true
	}
	rest := v[len(p.prefix) : len(v)-len(p.suffix)]
	for _, m := range p.middle {
		i := strings.Index(rest, m)
		if i < 0 {
			return false
		}
		rest = rest[i+len(m):]
	}
	return true
}

// parseValue cuts a configured value at its stars. For a value without a star it returns the literal text and a nil
// pattern. A backslash directly before a star makes the star literal. Of several backslashes before a star, each pair
// stands for one backslash. Elsewhere a backslash stands for itself.
func parseValue(value string) (literal string, p *pattern) {
	if !strings.Contains(value, "*") {
		return value, nil
	}
	var pieces []string
	var piece []byte
	escaped, wild := false, false
	for i := 0; i < len(value); {
		slashes := i
		for slashes < len(value) && value[slashes] == '\\' {
			slashes++
		}
		n := slashes - i
		switch {
		case slashes == len(value) || value[slashes] != '*':
			piece = append(piece, value[i:slashes]...)
			if slashes < len(value) {
				piece = append(piece, value[slashes])
				slashes++
			}
			i = slashes
		default:
			escaped = escaped || n > 0
			piece = append(piece, value[i:i+n/2]...)
			if n%2 == 1 {
				piece = append(piece, '*')
			} else {
				wild = true
				pieces = append(pieces, string(piece))
				piece = piece[:0]
			}
			i = slashes + 1
		}
	}
	if !wild {
		return string(piece), nil
	}
	p = &pattern{prefix: pieces[0], suffix: string(piece), escaped: escaped}
	p.least = len(p.prefix) + len(p.suffix)
	for _, m := range pieces[1:] {
		if m != "" {
			p.middle = append(p.middle, m)
		}
	}
	return p.prefix, p
}

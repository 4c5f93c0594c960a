package limits

import (
	"slices"
	"strings"
)

// A scan costs 5 ns for each wildcard, the index 12 ns for each length of prefix that occurs (BenchmarkPatterns). So
// wildcards are indexed when there are more than scanPatterns, and more than perLength for each length.
const (
	scanPatterns = 6
	perLength    = 3
)

// patterns finds the first wildcard, in configuration order, that matches a value. Many wildcards are indexed by their
// literal prefix: a value is looked up once for each length of prefix that occurs, so hundreds of wildcards cost as
// much as the few that can match.
type patterns struct {
	all      []*pattern
	byPrefix []prefixes // nil when all patterns are scanned
}

// prefixes is the patterns whose prefixes have one length.
type prefixes struct {
	length  int
	numbers map[string][]int32 // prefix -> indexes in all, ascending
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
	byLength := map[int]int{} // index in byPrefix
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

// first returns the index of the first pattern that matches, len(ps.all) when none does.
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

// candidates returns with how many patterns, at most, first compares a value.
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

// searched returns how many patterns with a text between two stars, at most, require a search in one value: without an
// index all of them, otherwise those with the most frequent prefix of each length.
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

// joined returns the pattern's pieces joined by star; adjacent stars are one.
func (p *pattern) joined(star string) string {
	pieces := append([]string{p.prefix}, p.middle...)
	return strings.Join(append(pieces, p.suffix), star)
}

// pattern is a value with wildcards, cut at its stars when it is compiled.
type pattern struct {
	prefix, suffix string
	middle         []string // the pieces between stars, none empty
	least          int      // len(prefix) + len(suffix)
	escaped        bool     // the text has a backslash before a star
}

// match reports whether v begins with the prefix, ends with the suffix without overlap, and has the middle pieces in
// between, in order. Leftmost search is enough: a piece found earlier leaves more room for the next.
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

// parseValue cuts a configured value at its stars. For a value without a wildcard it returns the literal text and a nil
// pattern. A backslash directly before a star makes the star literal; of several backslashes before a star each pair
// stands for one. Elsewhere a backslash is a backslash.
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

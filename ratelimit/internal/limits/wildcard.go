package limits

import "strings"

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

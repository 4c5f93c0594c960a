// Package sfvtest parses the structured fields of HTTP that tests expect: lists of strings with integer parameters (RFC
// 9651). Everything else that the RFC allows is an error.
package sfvtest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Member is one string of a list.
type Member struct {
	Name string
	// Keys are the keys of Params in their order.
	Keys   []string
	Params map[string]int64
}

// ParseList parses the value of one field (RFC 9651, section 4.2).
func ParseList(field string) ([]Member, error) {
	p := parser{strings.Trim(field, " ")}
	var list []Member
	for p.rest != "" {
		m, err := p.member()
		if err != nil {
			return nil, fmt.Errorf("sfvtest: %w before %q in %q", err, p.rest, field)
		}
		list = append(list, m)
		p.rest = strings.TrimLeft(p.rest, " \t")
		if p.rest == "" {
			break
		}
		after, ok := strings.CutPrefix(p.rest, ",")
		if p.rest = strings.TrimLeft(after, " \t"); !ok || p.rest == "" {
			return nil, fmt.Errorf("sfvtest: %q does not go on with a further member", field)
		}
	}
	return list, nil
}

type parser struct{ rest string }

func (p *parser) member() (m Member, err error) {
	if m.Name, err = p.text(); err != nil {
		return m, err
	}
	m.Params = map[string]int64{}
	for strings.HasPrefix(p.rest, ";") {
		p.rest = strings.TrimLeft(p.rest[1:], " ")
		key := p.take(func(c byte, first bool) bool {
			return 'a' <= c && c <= 'z' || c == '*' ||
				!first && ('0' <= c && c <= '9' || strings.IndexByte("_-.", c) >= 0)
		})
		after, ok := strings.CutPrefix(p.rest, "=")
		if p.rest = after; key == "" || !ok {
			return m, errors.New("no key and value")
		}
		digits := p.take(func(c byte, first bool) bool { return '0' <= c && c <= '9' || first && c == '-' })
		if len(strings.TrimPrefix(digits, "-")) > 15 {
			return m, errors.New("an integer of more than 15 digits")
		}
		value, err := strconv.ParseInt(digits, 10, 64)
		if err != nil {
			return m, err
		}
		if _, twice := m.Params[key]; twice {
			return m, fmt.Errorf("the key %s twice", key)
		}
		m.Keys, m.Params[key] = append(m.Keys, key), value
	}
	return m, nil
}

func (p *parser) text() (string, error) {
	if !strings.HasPrefix(p.rest, `"`) {
		return "", errors.New("no string")
	}
	var b strings.Builder
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			p.rest = p.rest[i+1:]
			return b.String(), nil
		case c == '\\':
			if i++; i == len(p.rest) || p.rest[i] != '"' && p.rest[i] != '\\' {
				return "", errors.New("an escape of another character")
			}
			b.WriteByte(p.rest[i])
		case c < ' ' || c > '~':
			return "", errors.New("a byte that is not printable ASCII")
		default:
			b.WriteByte(c)
		}
	}
	return "", errors.New("a string without end")
}

// take removes the longest beginning of p.rest whose bytes the function allowed accepts, and returns it.
func (p *parser) take(allowed func(c byte, first bool) bool) string {
	n := 0
	for n < len(p.rest) && allowed(p.rest[n], n == 0) {
		n++
	}
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	return taken
}

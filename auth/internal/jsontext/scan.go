package jsontext

import (
	"errors"
	"unicode/utf16"
	"unicode/utf8"
)

// A scanner of JSON for tokens and keys: it makes one pass over the text, accepts only what RFC 8259 allows, refuses
// equal member names, compared without escapes (RFC 7515 section 4 leaves a choice, but two readers of one token must
// never disagree), and builds no unused values. encoding/json takes the last of two equal names, ignores the case of
// names and repairs invalid UTF-8.

const (
	MaxDepth   = 32  // nested arrays and objects
	MaxMembers = 256 // of the outermost object
)

var (
	ErrSyntax    = errors.New("not valid JSON")
	ErrDepth     = errors.New("JSON nested too deeply")
	ErrDuplicate = errors.New("JSON member given twice")
	ErrMembers   = errors.New("too many JSON members")
)

// Members calls f with every member of text, which must be an object. The value is the member's raw JSON. It stops at
// the first error of f.
func Members(text string, f func(name, value string) error) error {
	if !utf8.ValidString(text) {
		return ErrSyntax
	}
	var few [24]string
	seen := few[:0]
	i := skipSpace(text, 0)
	if i >= len(text) || text[i] != '{' {
		return ErrSyntax
	}
	i = skipSpace(text, i+1)
	if i < len(text) && text[i] == '}' {
		return atEnd(text, i+1)
	}
	for {
		if len(seen) == MaxMembers {
			return ErrMembers
		}
		end, err := skipString(text, i)
		if err != nil {
			return err
		}
		name, err := Unquote(text[i:end])
		if err != nil {
			return err
		}
		for _, s := range seen {
			if s == name {
				return ErrDuplicate
			}
		}
		seen = append(seen, name)
		i = skipSpace(text, end)
		if i >= len(text) || text[i] != ':' {
			return ErrSyntax
		}
		i = skipSpace(text, i+1)
		end, err = skipValue(text, i, 1)
		if err != nil {
			return err
		}
		if err := f(name, text[i:end]); err != nil {
			return err
		}
		var more bool
		if i, more = comma(text, end); !more {
			if i, err = closing(text, i, '}'); err != nil {
				return err
			}
			return atEnd(text, i)
		}
	}
}

// Elements calls f with every element of text, which must be an array and was checked before.
func Elements(text string, f func(value string) error) error {
	if text == "" || text[0] != '[' {
		return ErrSyntax
	}
	i := skipSpace(text, 1)
	if i < len(text) && text[i] == ']' {
		return atEnd(text, i+1)
	}
	for {
		end, err := skipValue(text, i, 1)
		if err != nil {
			return err
		}
		if err := f(text[i:end]); err != nil {
			return err
		}
		var more bool
		if i, more = comma(text, end); !more {
			if i, err = closing(text, i, ']'); err != nil {
				return err
			}
			return atEnd(text, i)
		}
	}
}

// comma reports whether a comma follows at i; next is the index of the next member or element, or of the other
// character.
func comma(text string, i int) (next int, more bool) {
	i = skipSpace(text, i)
	if i < len(text) && text[i] == ',' {
		return skipSpace(text, i+1), true
	}
	return i, false
}

// closing returns the index behind a bracket, which must be at i.
func closing(text string, i int, bracket byte) (int, error) {
	if i >= len(text) || text[i] != bracket {
		return 0, ErrSyntax
	}
	return i + 1, nil
}

func atEnd(text string, i int) error {
	if skipSpace(text, i) != len(text) {
		return ErrSyntax
	}
	return nil
}

func skipSpace(text string, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\t' || text[i] == '\n' || text[i] == '\r') {
		i++
	}
	return i
}

// skipValue returns the index behind the value that starts at i.
func skipValue(text string, i, depth int) (int, error) {
	if i >= len(text) {
		return 0, ErrSyntax
	}
	switch c := text[i]; {
	case c == '"':
		return skipString(text, i)
	case c == '-' || '0' <= c && c <= '9':
		return skipNumber(text, i)
	case c == '{' || c == '[':
		return skipNested(text, i, depth)
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if len(text)-i >= len(word) && text[i:i+len(word)] == word {
			return i + len(word), nil
		}
	}
	return 0, ErrSyntax
}

func skipNested(text string, i, depth int) (int, error) {
	if depth >= MaxDepth {
		return 0, ErrDepth
	}
	object := text[i] == '{'
	last := byte(']')
	if object {
		last = '}'
	}
	i = skipSpace(text, i+1)
	if i < len(text) && text[i] == last {
		return i + 1, nil
	}
	for {
		var err error
		if object {
			if i, err = skipString(text, i); err != nil {
				return 0, err
			}
			i = skipSpace(text, i)
			if i >= len(text) || text[i] != ':' {
				return 0, ErrSyntax
			}
			i = skipSpace(text, i+1)
		}
		if i, err = skipValue(text, i, depth+1); err != nil {
			return 0, err
		}
		var more bool
		if i, more = comma(text, i); !more {
			return closing(text, i, last)
		}
	}
}

func skipString(text string, i int) (int, error) {
	if i >= len(text) || text[i] != '"' {
		return 0, ErrSyntax
	}
	for i++; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			return i + 1, nil
		case c < 0x20:
			return 0, ErrSyntax
		case c == '\\':
			i++
			if i >= len(text) {
				return 0, ErrSyntax
			}
			switch text[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				if _, ok := hex4(text, i+1); !ok {
					return 0, ErrSyntax
				}
				i += 4
			default:
				return 0, ErrSyntax
			}
		}
	}
	return 0, ErrSyntax
}

func skipNumber(text string, i int) (int, error) {
	digits := func() bool {
		start := i
		for i < len(text) && '0' <= text[i] && text[i] <= '9' {
			i++
		}
		return i > start
	}
	if text[i] == '-' {
		i++
	}
	start := i
	if !digits() || text[start] == '0' && i > start+1 {
		return 0, ErrSyntax
	}
	if i < len(text) && text[i] == '.' {
		i++
		if !digits() {
			return 0, ErrSyntax
		}
	}
	if i < len(text) && (text[i] == 'e' || text[i] == 'E') {
		i++
		if i < len(text) && (text[i] == '+' || text[i] == '-') {
			i++
		}
		if !digits() {
			return 0, ErrSyntax
		}
	}
	return i, nil
}

func hex4[T string | []byte](text T, i int) (rune, bool) {
	if i+4 > len(text) {
		return 0, false
	}
	var r rune
	for _, c := range []byte(text[i : i+4]) {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// Unquote returns the text of a JSON string that skipString has accepted. It refuses half a surrogate pair, which has
// no UTF-8 form.
func Unquote(value string) (string, error) {
	if len(value) < 2 || value[0] != '"' {
		return "", ErrSyntax
	}
	in := value[1 : len(value)-1]
	for i := 0; ; i++ {
		if i == len(in) {
			return in, nil
		}
		if in[i] == '\\' {
			break
		}
	}
	out := make([]byte, 0, len(in))
	for i := 0; i < len(in); i++ {
		if in[i] != '\\' {
			out = append(out, in[i])
			continue
		}
		i++
		switch c := in[i]; c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, _ := hex4(in, i+1)
			i += 4
			if utf16.IsSurrogate(r) {
				if i+2 >= len(in) || in[i+1] != '\\' || in[i+2] != 'u' {
					return "", ErrSyntax
				}
				low, _ := hex4(in, i+3)
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					return "", ErrSyntax
				}
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, c)
		}
	}
	return string(out), nil
}

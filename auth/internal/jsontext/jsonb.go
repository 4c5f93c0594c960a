package jsontext

import (
	"bytes"
	"errors"
	"unicode/utf8"
)

// These are limits of PostgreSQL's jsonb. Without a check, PostgreSQL would refuse the row when it is written.
const (
	jsonbDepth    = 100
	jsonbDigits   = 1000
	jsonbExponent = 3 // digits
)

// CheckJSONB refuses JSON that encoding/json accepts but PostgreSQL does not: U+0000, half surrogate pairs, huge
// numbers, deep nesting. It does not check the syntax, which encoding/json does.
func CheckJSONB(text []byte) error {
	trimmed := bytes.TrimLeft(text, " \t\r\n")
	if len(trimmed) == 0 {
		return errors.New("unexpected end of JSON input")
	}
	if trimmed[0] != '{' {
		return errors.New("it is not an object")
	}
	if !utf8.Valid(text) {
		return errors.New("it is not UTF-8")
	}
	depth, number := 0, 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c >= '0' && c <= '9' || number > 0 && (c == '.' || c == '-' || c == '+') {
			if number++; number > jsonbDigits {
				return errors.New("a number has too many digits")
			}
			continue
		}
		if number > 0 && (c == 'e' || c == 'E') {
			from := i + 1
			for from < len(text) && (text[from] == '+' || text[from] == '-' || text[from] == '0') {
				from++
			}
			to := from
			for to < len(text) && text[to] >= '0' && text[to] <= '9' {
				to++
			}
			if to-from > jsonbExponent {
				return errors.New("a number is too large")
			}
		}
		number = 0
		switch c {
		case '{', '[':
			if depth++; depth > jsonbDepth {
				return errors.New("it is nested too deeply")
			}
		case '}', ']':
			depth--
		case '"':
			end, err := checkEscapes(text, i+1, false)
			if err != nil {
				return err
			}
			i = end
		}
	}
	return nil
}

// checkEscapes checks the escapes in the JSON string that begins at text[from], and returns the index of the string's
// end. It refuses half surrogate pairs and, unless nul is set, U+0000.
func checkEscapes[T string | []byte](text T, from int, nul bool) (end int, err error) {
	high := false // the escape just before was a high surrogate
	for i := from; i < len(text); i++ {
		if text[i] != '\\' {
			if high {
				return 0, ErrHalfPair
			}
			if text[i] == '"' {
				return i, nil
			}
			continue
		}
		if i++; i >= len(text) || text[i] != 'u' || i+4 >= len(text) {
			if high {
				return 0, ErrHalfPair
			}
			continue
		}
		r, ok := hex4(text, i+1)
		switch {
		case ok && r == 0 && !nul:
			return 0, errors.New(`a text contains \u0000`)
		case r >= 0xdc00 && r <= 0xdfff:
			if !high {
				return 0, ErrHalfPair
			}
			high = false
		case high:
			return 0, ErrHalfPair
		case r >= 0xd800 && r <= 0xdbff:
			high = true
		}
		i += 4
	}
	return len(text), nil // not closed, which is a syntax error
}

var ErrHalfPair = errors.New("a text contains half of a surrogate pair")

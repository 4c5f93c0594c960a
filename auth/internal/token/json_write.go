package token

import (
	"unicode/utf8"
	"unsafe"
)

const hexDigits = "0123456789abcdef"

// appendString appends s as a JSON string. What is not UTF-8 becomes U+FFFD; '<', '>' and '&' stay as
// they are, since no token is ever part of a page.
func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	done := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(dst, s[done:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			done = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[done:i]...)
			dst = append(dst, "\uFFFD"...)
			done = i + 1
		}
		i += n
	}
	dst = append(dst, s[done:]...)
	return append(dst, '"')
}

// appendObject appends raw, which must be one JSON object, without white space between its parts
// (PostgreSQL prints jsonb with blanks). Nothing and null become the empty object.
func appendObject(dst, raw []byte) ([]byte, error) {
	// text lives no longer than raw and nobody writes to either meanwhile.
	text := unsafe.String(unsafe.SliceData(raw), len(raw))
	start := skipSpace(text, 0)
	if start == len(text) || text[start:] == "null" {
		return append(dst, '{', '}'), nil
	}
	if text[start] != '{' || !utf8.ValidString(text) {
		return dst, errJSON
	}
	end, err := skipValue(text, start, 1)
	if err != nil {
		return dst, err
	}
	if err := atEnd(text, end); err != nil {
		return dst, err
	}
	quoted := false
	done := start
	for i := start; i < end; i++ {
		switch c := text[i]; {
		case quoted:
			if c == '\\' {
				i++
			} else if c == '"' {
				quoted = false
			}
		case c == '"':
			quoted = true
		case c == ' ' || c == '\n' || c == '\t' || c == '\r':
			dst = append(dst, text[done:i]...)
			done = i + 1
		}
	}
	return append(dst, text[done:end]...), nil
}

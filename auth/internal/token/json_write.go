package token

import (
	"unicode/utf8"
	"unsafe"

	"gatehouse/auth/internal/quote"
)

// appendString appends s as a JSON string.
func appendString(dst []byte, s string) []byte { return quote.AppendString(dst, s) }

// appendObject appends raw, which must be one JSON object, without white space between its parts
// (PostgreSQL prints jsonb with blanks). Nothing and null become the empty object.
func AppendObject(dst, raw []byte) ([]byte, error) {
	// text lives no longer than raw and nobody writes to either meanwhile.
	text := unsafe.String(unsafe.SliceData(raw), len(raw))
	start := skipSpace(text, 0)
	if start == len(text) || text[start:] == "null" {
		return append(dst, '{', '}'), nil
	}
	if text[start] != '{' || !utf8.ValidString(text) {
		return dst, ErrSyntax
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

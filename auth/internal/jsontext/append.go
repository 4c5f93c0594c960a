// Package jsontext scans and writes JSON text without building values. Claims, keys and request bodies are checked and
// read in one pass; tokens, key sets and answers are written by appending, without an allocation for each value.
package jsontext

import (
	"unicode/utf8"
	"unsafe"
)

const hex = "0123456789abcdef"

// AppendString appends s as a JSON string (RFC 8259 section 7). Invalid UTF-8 becomes U+FFFD. It does not escape '<',
// '>' and '&', since the JSON is never part of an HTML page.
func AppendString(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				b = append(append(b, s[from:i]...), "\uFFFD"...)
				from = i + 1
			}
			i += n
			continue
		}
		if c >= ' ' && c != '"' && c != '\\' {
			i++
			continue
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}

// AppendStrings appends a list as a JSON array of strings.
func AppendStrings(b []byte, list []string) []byte {
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendString(b, s)
	}
	return append(b, ']')
}

// AppendObject appends raw, which must be a JSON object, without the white space between its parts (PostgreSQL prints
// jsonb with spaces). If raw is empty or null, it appends the empty object.
func AppendObject(dst, raw []byte) ([]byte, error) {
	// text is not used after raw, and neither is changed in the meantime.
	text := unsafe.String(unsafe.SliceData(raw), len(raw))
	start := skipSpace(text, 0)
	if start == len(text) || text[start:] == "null" {
		return append(dst, '{', '}'), nil
	}
	if text[start] != '{' || !utf8.ValidString(text) {
		return dst, ErrSyntax
	}
	end, err := skipValue(text, start, 2) // depth 2: the object is a member of the claims
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

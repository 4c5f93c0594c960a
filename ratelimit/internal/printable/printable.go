// Package printable makes text of any bytes fit to leave the daemon. Keys and values of a request may hold
// whatever a client put into a header; what goes out must be UTF-8.
package printable

import "unicode/utf8"

// Text is s for everything that leaves the daemon and must be UTF-8 (dynamic metadata, names of statistics, logs,
// traces, JSON): bytes that are no UTF-8 are written as \xNN. The result is s itself where all of it is.
func Text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string(Append(nil, s))
}

// Append appends Text(s).
func Append(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, '\\', 'x', hex[s[0]>>4], hex[s[0]&15])
		} else {
			dst = append(dst, s[:n]...)
		}
		s = s[n:]
	}
	return dst
}

// Cut is s, or as many whole runes of it as fit into so many bytes.
func Cut(s string, most int) (text string, cut bool) {
	if len(s) <= most {
		return s, false
	}
	n := most
	for least := max(0, most-utf8.UTFMax); n > least && !utf8.RuneStart(s[n]); {
		n--
	}
	return s[:n], true
}

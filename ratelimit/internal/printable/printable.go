// Package printable makes texts of any bytes fit to leave the daemon. Keys and values of a request may have any bytes
// that a client put into a header; the daemon's output must be UTF-8.
package printable

import "unicode/utf8"

// Text returns s with invalid UTF-8 written as \xNN, for all output that must be UTF-8 (dynamic metadata, names of
// statistics, logs, traces, JSON). It returns s itself if all of it is valid.
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

// Cut returns s if s has at most as many bytes as the parameter most says; otherwise as many whole runes of s as fit.
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

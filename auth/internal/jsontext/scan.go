package jsontext

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// This file is a scanner of JSON for tokens and keys. It makes one pass over the text, and builds no values that are
// not used. It accepts only what RFC 8259 allows, and refuses objects with two members of the same name, compared after
// unescaping: RFC 7515 section 4 leaves a choice, but two readers of one token must never disagree. encoding/json, in
// contrast, takes the last of two equal names, ignores the case of names and repairs invalid UTF-8.

const (
	MaxDepth   = 32  // of nested arrays and objects
	MaxMembers = 256 // of the outermost object
)

var (
	ErrSyntax    = errors.New("not valid JSON")
	ErrObject    = errors.New("not a JSON object")
	ErrDepth     = errors.New("JSON nested too deeply")
	ErrDuplicate = errors.New("JSON member given twice")
	ErrMembers   = errors.New("too many JSON members")
)

// Members calls f with every member of text, which must be an object. value is the member's raw JSON. Members stops at
// the first error of f.
func Members(text string, f func(name, value string) error) error {
	if !utf8.ValidString(text) {
		return ErrSyntax
	}
	i := skipSpace(text, 0)
	if i >= len(text) || text[i] != '{' {
		return ErrObject
	}
	var few [24]string
	seen := few[:0]
	add := func(quoted string) error {
		name, err := Unquote(quoted)
		if err == nil && slices.Contains(seen, name) {
			err = fmt.Errorf("%w: %.20q", ErrDuplicate, name)
		}
		seen = append(seen, name)
		return err
	}
	i, err := walk(text, i, 1, visitor{members: MaxMembers, name: add, value: func(value string) error {
		return f(seen[len(seen)-1], value)
	}})
	if err != nil {
		return err
	}
	return atEnd(text, i)
}

// Elements calls f with every element of text, which must be an array that was checked before.
func Elements(text string, f func(value string) error) error {
	if text == "" || text[0] != '[' {
		return ErrSyntax
	}
	i, err := walk(text, 0, 1, visitor{value: f})
	if err != nil {
		return err
	}
	return atEnd(text, i)
}

// Strings returns the elements of text, which must be an array of strings that was checked before.
func Strings(text string) (all []string, err error) {
	err = Elements(text, func(value string) error {
		s, err := Unquote(value)
		all = append(all, s)
		return err
	})
	return all, err
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

// skipValue returns the index after the value that starts at i; depth is the nesting depth of the value, if it is an
// array or object.
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
		return walk(text, i, depth, visitor{})
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if len(text)-i >= len(word) && text[i:i+len(word)] == word {
			return i + len(word), nil
		}
	}
	return 0, ErrSyntax
}

// visitor holds functions that walk calls while it scans an object or array. walk calls name with the quoted name of
// each member, before the member's value, and calls value with each value. A function that is nil is not called.
type visitor struct {
	name, value func(text string) error
	members     int // maximum number of members; 0: any number
}

// walk returns the index after the object or array that starts at i, and calls the functions of v.
func walk(text string, i, depth int, v visitor) (int, error) {
	if depth > MaxDepth {
		return 0, ErrDepth
	}
	object, last := text[i] == '{', byte(']')
	if object {
		last = '}'
	}
	i = skipSpace(text, i+1)
	if i < len(text) && text[i] == last {
		return i + 1, nil
	}
	for n := 1; ; n++ {
		if v.members > 0 && n > v.members {
			return 0, ErrMembers
		}
		if object {
			end, err := skipString(text, i)
			if err == nil && v.name != nil {
				err = v.name(text[i:end])
			}
			if err != nil {
				return 0, err
			}
			if i = skipSpace(text, end); i >= len(text) || text[i] != ':' {
				return 0, ErrSyntax
			}
			i = skipSpace(text, i+1)
		}
		end, err := skipValue(text, i, depth+1)
		if err == nil && v.value != nil {
			err = v.value(text[i:end])
		}
		if err != nil {
			return 0, err
		}
		switch i = skipSpace(text, end); {
		case i < len(text) && text[i] == ',':
			i = skipSpace(text, i+1)
		case i < len(text) && text[i] == last:
			return i + 1, nil
		default:
			return 0, ErrSyntax
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

// Unquote returns the text of a JSON string that skipString has accepted. It refuses half a surrogate pair, which UTF-8
// cannot represent.
func Unquote(value string) (string, error) {
	if len(value) < 2 || value[0] != '"' {
		return "", ErrSyntax
	}
	if strings.IndexByte(value, '\\') < 0 {
		return value[1 : len(value)-1], nil
	}
	if _, err := checkEscapes(value, 1, true); err != nil {
		return "", ErrSyntax
	}
	var text string
	err := json.Unmarshal([]byte(value), &text)
	return text, err
}

package locale

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Strings are one file's texts by key, such as mails.invite.subject or months.0.
type Strings map[string]*Text

// Parse reads a file of strings: objects and lists of objects, lists and texts. Strings that are no templates are left
// out and are in the error, each with the file and the line. Strings are nil where the file itself can't be read.
func Parse(file string, data []byte) (Strings, error) {
	data = bytes.TrimPrefix(data, []byte("\uFEFF"))
	if !utf8.Valid(data) {
		return nil, fmt.Errorf("%s: it is not UTF-8", file)
	}
	r := reader{file: file, data: data, d: json.NewDecoder(bytes.NewReader(data)), strings: Strings{}}
	first, err := r.d.Token()
	if err == nil && first != json.Delim('{') {
		err = errors.New("it is no JSON object")
	}
	if err == nil {
		err = r.value("", first)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("it ends before its last brace is closed")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.where(), err)
	}
	return r.strings, errors.Join(r.bad...)
}

// mostDeep bounds how deep a file is nested.
const mostDeep = 8

type reader struct {
	file    string
	data    []byte
	d       *json.Decoder
	strings Strings
	bad     []error
	deep    int
}

func (r *reader) where() string {
	return r.file + ":" + strconv.Itoa(1+bytes.Count(r.data[:r.d.InputOffset()], []byte("\n")))
}

// value reads what begins with token under the key.
func (r *reader) value(key string, token json.Token) error {
	switch token := token.(type) {
	case string:
		t, err := ParseText(token)
		if err != nil {
			r.bad = append(r.bad, fmt.Errorf("%s: %s: %w", r.where(), key, err))
			return nil
		}
		t.where = r.where()
		r.strings[key] = t
		return nil
	case json.Delim:
		return r.members(key, token == '[')
	}
	return fmt.Errorf("%s is no text", key)
}

func (r *reader) members(key string, list bool) error {
	if r.deep++; r.deep > mostDeep {
		return errors.New("it is nested too deep")
	}
	defer func() { r.deep-- }()
	for i := 0; r.d.More(); i++ {
		name := strconv.Itoa(i)
		token, err := r.d.Token()
		if err == nil && !list {
			name = token.(string) // the decoder takes nothing else for a name
			token, err = r.d.Token()
		}
		if err != nil {
			return err
		}
		if err := r.value(strings.TrimPrefix(key+"."+name, "."), token); err != nil {
			return err
		}
	}
	_, err := r.d.Token() // the closing bracket
	return err
}

// Unknown returns the keys that English doesn't have: nothing reads them.
func (s Strings) Unknown() []string {
	known := builtIns["en"]()
	var unknown []string
	for key := range s {
		if known[key] == nil {
			unknown = append(unknown, key)
		}
	}
	slices.Sort(unknown)
	return unknown
}

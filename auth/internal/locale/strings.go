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

// Strings are the texts of one file by their keys, such as mails.invite.subject or months.0.
type Strings map[string]*Text

// Parse reads a file of texts, which consists of objects and lists that may contain objects, lists and texts. Texts
// that are not valid templates are left out; the error names each of them with file and line. The Strings are nil if
// the file is not valid JSON.
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

// mostDeep is how many levels deep the objects and lists of a file may be nested.
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

// value reads the value that begins with token, and stores its texts under the key.
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
			name = token.(string) // cannot fail: the decoder accepts only a string as a name
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

// Unknown returns the keys of texts that no code uses: the keys that the English texts do not have.
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

package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode"

	"gatehouse/auth/internal/address"
)

const (
	maxSubject = 1024
	maxDepth   = 32 // of values that are stored
)

// jsonObject is a JSON object in a provider's answer; its numbers are json.Number. A member that is missing or has an
// unexpected type reads as empty and never causes a panic.
type jsonObject map[string]any

var errNoObject = errors.New("the answer is no JSON object")

func decode(body []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if err := d.Decode(into); err != nil || string(bytes.TrimSpace(body)) == "null" {
		return errNoObject // the decoder's error would quote the answer
	}
	if _, err := d.Token(); err != io.EOF {
		return errNoObject
	}
	return nil
}

func decodeObject(body []byte) (jsonObject, error) {
	var o jsonObject
	err := decode(body, &o)
	return o, err
}

// lookup returns the value at a path of member names, separated by dots; a number is an index into an array. It returns
// nil if there is no such value.
func (o jsonObject) lookup(path string) any {
	var v any = map[string]any(o)
	for name := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(in) {
				return nil
			}
			v = in[i]
		default:
			return nil
		}
	}
	return v
}

func (o jsonObject) textAt(path string) string {
	s, _ := o.lookup(path).(string)
	return s
}

// isTrue reports whether the value at path is the JSON true.
func (o jsonObject) isTrue(path string) bool { return o.lookup(path) == true }

// isTrueOrText is isTrue, but also accepts the text "true", for providers that write flags as text.
func (o jsonObject) isTrueOrText(path string) bool {
	v := o.lookup(path)
	return v == true || v == "true"
}

// idAt returns the string at path, or the digits of the whole number there.
func (o jsonObject) idAt(path string) string {
	switch v := o.lookup(path).(type) {
	case string:
		return v
	case json.Number:
		if strings.Trim(v.String(), "0123456789") == "" { // so that each number has only one spelling
			return v.String()
		}
	}
	return ""
}

// eachObject calls f with every object in the array at path.
func (o jsonObject) eachObject(path string, f func(jsonObject)) {
	list, _ := o.lookup(path).([]any)
	for _, v := range list {
		if m, ok := v.(map[string]any); ok {
			f(m)
		}
	}
}

// set stores v in d.Data under each of the names, which are separated by spaces, unless v is empty.
func (d *Profile) set(names string, v any) {
	if v = boundedValue(v, 0); v == nil {
		return
	}
	if d.Data == nil {
		d.Data = map[string]any{}
	}
	for name := range strings.FieldsSeq(names) {
		d.Data[name] = v
	}
}

func (d *Profile) setCustom(name string, v any) {
	if v = boundedValue(v, 0); v == nil {
		return
	}
	custom, ok := d.Data["custom_claims"].(map[string]any)
	if !ok {
		custom = map[string]any{}
		d.Data["custom_claims"] = custom
	}
	custom[noNUL(name)] = v
}

// addEmail adds an address to the profile, unless text cannot be an address.
func (d *Profile) addEmail(text string, verified, primary bool) {
	a, err := address.Email(text)
	if err != nil {
		d.BadEmail = d.BadEmail || text != ""
		return
	}
	d.Emails = append(d.Emails, Email{Address: a, Verified: verified, Primary: primary})
}

// boundedValue returns v in a form that can be stored: without U+0000, which PostgreSQL's jsonb refuses. It returns nil
// for null, for "" and for values that are nested too deeply.
func boundedValue(v any, depth int) any {
	if depth > maxDepth {
		return nil
	}
	switch v := v.(type) {
	case string:
		if v = noNUL(v); v == "" && depth == 0 {
			return nil
		}
		return v
	case map[string]any:
		m := make(map[string]any, len(v))
		for name, value := range v {
			m[noNUL(name)] = boundedValue(value, depth+1)
		}
		return m
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = boundedValue(v[i], depth+1)
		}
		return list
	}
	return v
}

func noNUL(s string) string { return strings.ReplaceAll(s, "\x00", "") }

func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

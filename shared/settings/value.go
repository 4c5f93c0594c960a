package settings

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// parser parses a text into a field of one type.
type parser struct {
	set  func(field reflect.Value, text string) error
	want string // says what a text should be; "": the error of set says so
}

func parserOf[T any](parse func(string) (T, error), want string) parser {
	set := func(field reflect.Value, text string) error {
		value, err := parse(text)
		if err == nil {
			field.Set(reflect.ValueOf(value))
		}
		return err
	}
	return parser{set, want}
}

// parsers has a parser for each type that a field may have.
var parsers = map[reflect.Type]parser{
	reflect.TypeFor[string](): parserOf(func(s string) (string, error) { return s, nil }, ""),
	reflect.TypeFor[bool]():   parserOf(strconv.ParseBool, "not a yes or no: true, false, 1, 0"),
	reflect.TypeFor[int](): parserOf(func(s string) (int, error) {
		n, err := strconv.ParseInt(s, 0, strconv.IntSize)
		return int(n), err
	}, integer),
	reflect.TypeFor[int64](): parserOf(func(s string) (int64, error) { return strconv.ParseInt(s, 0, 64) },
		integer),
	reflect.TypeFor[uint32](): parserOf(func(s string) (uint32, error) {
		n, err := strconv.ParseUint(s, 0, 32)
		return uint32(n), err
	}, integer),
	reflect.TypeFor[float32](): parserOf(func(s string) (float32, error) {
		n, err := strconv.ParseFloat(s, 32)
		return float32(n), err
	}, number),
	reflect.TypeFor[float64](): parserOf(func(s string) (float64, error) { return strconv.ParseFloat(s, 64) },
		number),
	reflect.TypeFor[time.Duration](): parserOf(time.ParseDuration,
		"not a duration, such as 10s, 150us, 1h30m: a number needs its unit"),
	reflect.TypeFor[[]string]():          parserOf(func(s string) ([]string, error) { return List(s), nil }, ""),
	reflect.TypeFor[map[string]string](): parserOf(Map, ""),
}

// inSeconds is the parser of durations if Options.Seconds is set.
var inSeconds = parserOf(Seconds, "not a duration: a number of seconds, or 10s, 150us, 1h30m")

const (
	integer = "not a whole number, such as 10 or 0x10"
	number  = "not a number, such as 0.8"
)

// fill sets every field to its variable's value or, if that is unset, to its default. A field without a default stays
// unchanged. An invalid value is reported as an error, and the field becomes zero.
func (r *Report) fill(into any, seconds bool) {
	walk(reflect.ValueOf(into).Elem(), "", nil, func(f Field, _ reflect.StructTag, field reflect.Value) {
		p, ok := parsers[field.Type()]
		if !ok {
			panic(fmt.Sprintf("settings: %s: a %s has no parser", f.Name, field.Type())) // a bug in the struct
		}
		if seconds && field.Type() == reflect.TypeFor[time.Duration]() {
			p = inSeconds
		}
		text, set := r.env[f.Name]
		if !set {
			text = f.Default
		}
		if text == "" {
			return
		}
		if err := p.set(field, text); err != nil {
			field.SetZero()
			r.unreadable(f, text, p.want, err)
		}
	})
}

// unreadable adds the error that a text is not a value of its field.
func (r *Report) unreadable(f Field, text, want string, err error) {
	switch {
	case want == "" && f.Secret:
		want = "not a list of name:value"
	case want == "":
		want = err.Error()
	case errors.Is(err, strconv.ErrRange):
		want = "out of range"
	case want == integer && strings.HasPrefix(text, "tcp://"):
		want += " (Kubernetes sets such variables for each service: enableServiceLinks: false)"
	}
	r.Wrong(f.Name, "%s", want)
	f.failed = true
	r.fields[f.Name] = f
}

// Seconds parses a whole number, in seconds, or a Go duration.
func Seconds(s string) (time.Duration, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		if errors.Is(err, strconv.ErrRange) {
			return 0, err
		}
		return time.ParseDuration(s)
	}
	d := time.Duration(n) * time.Second
	if d/time.Second != time.Duration(n) {
		return 0, strconv.ErrRange
	}
	return d, nil
}

// List splits a text at commas, trims the items and drops empty ones.
func List(s string) []string {
	var items []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// Map parses "k1:v1,k2:v2". Each item is split at its first colon, so that values may contain colons.
func Map(s string) (map[string]string, error) {
	m := map[string]string{}
	for _, item := range List(s) {
		k, v, ok := strings.Cut(item, ":")
		k, v = strings.TrimSpace(k), strings.TrimSpace(v)
		if !ok || k == "" {
			return nil, fmt.Errorf("item %q is not name:value", short(item))
		}
		if _, twice := m[k]; twice {
			return nil, fmt.Errorf("%q is given twice", short(k))
		}
		m[k] = v
	}
	return m, nil
}

// check checks every field against its tags min, max and oneof.
func (r *Report) check(into any) {
	walk(reflect.ValueOf(into).Elem(), "", nil, func(f Field, tag reflect.StructTag, v reflect.Value) {
		if r.fields[f.Name].failed {
			return
		}
		if words := strings.Fields(tag.Get("oneof")); len(words) > 0 && v.String() != "" {
			r.oneOf(f.Name, words, tag.Get("fold") != "", v)
		}
		for _, bound := range []string{"min", "max"} {
			limit := tag.Get(bound)
			if limit == "" {
				continue
			}
			order, err := compare(v, limit)
			if err != nil {
				panic("settings: " + f.Name + ": " + err.Error()) // a bug in the struct
			}
			if bound == "min" && !(order >= 0) {
				r.Wrong(f.Name, "must be at least %s", limit)
			} else if bound == "max" && !(order <= 0) {
				r.Wrong(f.Name, "must be at most %s", limit)
			}
		}
	})
}

// oneOf checks that a value is one of the texts in the list words, and gives it the spelling that it has there.
// Otherwise it adds an error that lists the allowed texts.
func (r *Report) oneOf(name string, words []string, fold bool, v reflect.Value) {
	for _, w := range words {
		if w == v.String() || fold && strings.EqualFold(w, v.String()) {
			v.SetString(w)
			return
		}
	}
	text := "must be " + words[0]
	if n := len(words); n > 1 {
		text = "must be " + strings.Join(words[:n-1], ", ") + " or " + words[n-1]
	}
	r.Wrong(name, "%s", text)
}

// compare returns the difference v - limit. It returns NaN if v is NaN.
func compare(v reflect.Value, limit string) (float64, error) {
	if v.Type() == reflect.TypeFor[time.Duration]() {
		d, err := time.ParseDuration(limit)
		return float64(v.Int() - int64(d)), err
	}
	l, err := strconv.ParseFloat(limit, 64)
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		return float64(v.Int()) - l, err
	case reflect.Uint32:
		return float64(v.Uint()) - l, err
	case reflect.Float32, reflect.Float64:
		return v.Float() - l, err
	}
	return 0, fmt.Errorf("a %s has no bounds", v.Type())
}

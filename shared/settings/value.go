package settings

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

// parsers turn texts into values. A mistake goes to the report and leaves zero, so that the
// library goes on to the next field.
type parsers struct {
	report  *Report
	name    string // the variable at hand
	seconds bool   // bare numbers are durations too
}

func (p *parsers) byType() map[reflect.Type]env.ParserFunc {
	m := map[reflect.Type]env.ParserFunc{}
	add(m, p, strconv.ParseBool, "not a yes or no: true, false, 1, 0")
	add(m, p, func(s string) (int, error) { n, err := strconv.ParseInt(s, 0, strconv.IntSize); return int(n), err }, integer)
	add(m, p, func(s string) (int64, error) { return strconv.ParseInt(s, 0, 64) }, integer)
	add(m, p, func(s string) (uint32, error) { n, err := strconv.ParseUint(s, 0, 32); return uint32(n), err }, integer)
	add(m, p, func(s string) (float32, error) { n, err := strconv.ParseFloat(s, 32); return float32(n), err }, "not a number, such as 0.8")
	add(m, p, func(s string) (float64, error) { return strconv.ParseFloat(s, 64) }, "not a number, such as 0.8")
	if p.seconds {
		add(m, p, Seconds, "not a duration: a number of seconds, or 10s, 150us, 1h30m")
	} else {
		add(m, p, time.ParseDuration, "not a duration, such as 10s, 150us, 1h30m: a number needs its unit")
	}
	add(m, p, func(s string) ([]string, error) { return List(s), nil }, "")
	add(m, p, Map, "")
	return m
}

const integer = "not a whole number, such as 10 or 0x10"

// add registers a parser; its own error text is used where want is empty.
func add[T any](m map[reflect.Type]env.ParserFunc, p *parsers, parse func(string) (T, error), want string) {
	m[reflect.TypeFor[T]()] = func(s string) (any, error) {
		v, err := parse(s)
		if err == nil {
			return v, nil
		}
		text := want
		switch {
		case text == "" && p.report.fields[p.name].Secret:
			text = "not a list of name:value"
		case text == "":
			text = err.Error()
		case errors.Is(err, strconv.ErrRange):
			text = "out of range"
		case want == integer && strings.HasPrefix(s, "tcp://"):
			text += " (Kubernetes sets such variables for each service: enableServiceLinks: false)"
		}
		p.report.Wrong(p.name, "%s", text)
		p.report.fields[p.name] = failed(p.report.fields[p.name])
		var zero T
		return zero, nil
	}
}

// failed marks a field that no further check may judge.
func failed(f Field) Field {
	f.failed = true
	return f
}

// Seconds reads a whole number of seconds or a Go duration.
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

// List splits at commas, trims each item and drops blank ones.
func List(s string) []string {
	var items []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}

// Map reads "k1:v1,k2:v2": items are split at their first colon, so that values may hold more.
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

// check holds every field against its tags min, max and oneof.
func (r *Report) check(into any) {
	walk(reflect.ValueOf(into).Elem(), "", func(f Field, tag reflect.StructTag, v reflect.Value) {
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

// oneOf replaces the value by the spelling of the list, or says what there is.
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

// compare gives v - limit, not a number when v is none.
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

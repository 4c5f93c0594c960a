package settings

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Field is one environment variable, which sets one field of a settings struct.
type Field struct {
	Name, Default string
	// Secret values are never shown, and may come from a file that NAME_FILE names. Of URL values, which may come from
	// a file too, only the credentials are hidden.
	Secret, URL bool
	// Index is the index of the struct's field, for reflect's FieldByIndex.
	Index []int

	failed bool
}

// Fields returns the variables of the struct to which the argument points, in the order of the struct's fields. It is
// for the tables of documentation and their tests.
func Fields(of any) ([]Field, error) {
	v := reflect.ValueOf(of)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("settings: %T is not a pointer to a struct", of)
	}
	var all []Field
	seen := map[string]bool{}
	var err error
	walk(v.Elem(), "", nil, func(f Field, _ reflect.StructTag, _ reflect.Value) {
		if seen[f.Name] {
			err = fmt.Errorf("settings: two fields are named %s", f.Name)
		}
		seen[f.Name] = true
		all = append(all, f)
	})
	return all, err
}

// walk calls visit for every field of v that has a variable, also in nested structs. prefix is the beginning of the
// names of v's variables, and index is the index of v itself in the outermost struct.
func walk(v reflect.Value, prefix string, index []int, visit func(Field, reflect.StructTag, reflect.Value)) {
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		name, _, _ := strings.Cut(sf.Tag.Get("env"), ",")
		switch {
		case sf.Type.Kind() == reflect.Struct:
			walk(v.Field(i), prefix+sf.Tag.Get("envPrefix"), append(slices.Clip(index), i), visit)
		case name != "" && name != "-":
			secret := sf.Tag.Get("secret")
			visit(Field{
				Name: prefix + name, Default: sf.Tag.Get("envDefault"),
				Secret: secret != "", URL: secret == "url", Index: append(slices.Clip(index), i),
			}, sf.Tag, v.Field(i))
		}
	}
}

// hidden is shown instead of a value that must not be shown.
const hidden = "***"

// MaskURL returns s without the user information of the URL, and without the values of its query parameters username
// and password, so that the address of a store may be logged. If it is unclear which part is secret, MaskURL hides
// more: everything up to the last @ if a password contains an @, or everything if that @ comes after a question mark.
func MaskURL(s string) string {
	scheme, rest, ok := strings.Cut(s, "://")
	if ok {
		scheme += "://"
	} else {
		scheme, rest = "", s
	}
	rest, query, _ := strings.Cut(rest, "?")
	if strings.Contains(query, "@") {
		return scheme + hidden
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = hidden + rest[at:]
	}
	if query == "" {
		return scheme + rest
	}
	pairs := strings.Split(query, "&")
	for i, p := range pairs {
		if k, _, _ := strings.Cut(p, "="); k != "db" {
			pairs[i] = k + "=" + hidden
		}
	}
	return scheme + rest + "?" + strings.Join(pairs, "&")
}

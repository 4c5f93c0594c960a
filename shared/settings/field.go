package settings

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Field is one variable of a settings struct.
type Field struct {
	Name, Default string
	// Secret values are never shown and may come from NAME_FILE; of URL values only the credentials are hidden.
	Secret, URL bool
	// Index is the field's index for reflect's FieldByIndex.
	Index []int

	failed bool
}

// Fields lists the variables of a pointer to a struct, in the order of the struct, for tables in pages and their tests.
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

// walk visits every field that has a variable; nested structs have an envPrefix. prefix and index are those of v.
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

// hidden replaces values that must not be shown.
const hidden = "***"

// MaskURL hides the user information of a URL, and the values of its query's username and password, so that a store's
// address may be logged. Where it is unclear which part is secret, MaskURL hides more: up to the last @ when a password
// contains one, everything when that @ comes after a question mark.
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

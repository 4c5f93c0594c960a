package settingstest

import (
	stdcmp "cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/settings"
)

// Mapping sets each variable of the settings struct C, one at a time, to a valid value other than its default. It
// checks that the variable's field gets the value, and that no other field changes. load reads an environment with the
// given variables in addition to the required ones. o are options for comparing two values of C. except has the
// variables that need other variables, or values that types and tags do not describe; the caller tests these itself.
func Mapping[C any](t *testing.T, load func(environ ...string) (C, error), except map[string]bool, o ...cmp.Option) {
	t.Helper()
	defaults, err := load()
	if err != nil {
		t.Fatal(err)
	}
	fields, err := settings.Fields(new(C))
	if err != nil {
		t.Fatal(err)
	}
	excepted := maps.Clone(except)
	for _, f := range fields {
		delete(excepted, f.Name)
		if except[f.Name] {
			continue
		}
		want := defaults
		field := reflect.ValueOf(&want).Elem().FieldByIndex(f.Index)
		tag := reflect.TypeFor[C]().FieldByIndex(f.Index).Tag
		text, err := change(field, tag)
		if err != nil {
			t.Errorf("%s: %v", f.Name, err)
			continue
		}
		got, err := load(f.Name + "=" + text)
		if err != nil {
			t.Errorf("%s=%s: %v", f.Name, text, err)
		} else if d := cmp.Diff(want, got, o...); d != "" {
			t.Errorf("%s=%s: want (-), got (+):\n%s", f.Name, text, d)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(excepted)) {
		t.Errorf("%s is an exception and no variable", name)
	}
}

// change gives a field another value that its tags allow, and returns the value as text.
func change(field reflect.Value, tag reflect.StructTag) (text string, err error) {
	before := field.Interface()
	set := func(value any, as string) {
		field.Set(reflect.ValueOf(value))
		text = as
	}
	switch now := before.(type) {
	case bool:
		set(!now, strconv.FormatBool(!now))
	case int:
		set(now+step(now, tag), strconv.Itoa(now+step(now, tag)))
	case int64:
		n := now + int64(step(int(now), tag))
		set(n, strconv.FormatInt(n, 10))
	case uint32:
		n := now + uint32(step(int(now), tag))
		set(n, strconv.FormatUint(uint64(n), 10))
	case float32:
		set(stdcmp.Or(now/2, 0.5), fmt.Sprint(stdcmp.Or(now/2, 0.5)))
	case float64:
		set(stdcmp.Or(now/2, 0.5), fmt.Sprint(stdcmp.Or(now/2, 0.5)))
	case time.Duration:
		set(now+time.Millisecond, (now + time.Millisecond).String())
	case string:
		other := now + "x"
		for _, word := range strings.Fields(tag.Get("oneof")) {
			if other = word; word != now {
				break
			}
		}
		set(other, other)
	case []string:
		set([]string{"one", "two"}, "one,two")
	case map[string]string:
		set(map[string]string{"one": "1", "two": "2:2"}, "one:1,two:2:2")
	}
	if reflect.DeepEqual(before, field.Interface()) {
		return "", fmt.Errorf("a %s has no other value here", field.Type())
	}
	return text, nil
}

// step returns 1, or -1 if the number now has reached the maximum in the tag max.
func step(now int, tag reflect.StructTag) int {
	if most, err := strconv.Atoi(tag.Get("max")); err == nil && now >= most {
		return -1
	}
	return 1
}

// Rooms returns the struct types in C that have variables and are declared by other packages, each with the names of
// its variables. The daemon passes such a struct as a whole to the package that declares it.
func Rooms[C any](t *testing.T) map[reflect.Type][]string {
	t.Helper()
	fields, err := settings.Fields(new(C))
	if err != nil {
		t.Fatal(err)
	}
	rooms := map[reflect.Type][]string{}
	for _, f := range fields {
		of := reflect.TypeFor[C]()
		if n := len(f.Index) - 1; n > 0 {
			of = of.FieldByIndex(f.Index[:n]).Type
		}
		if of.PkgPath() != reflect.TypeFor[C]().PkgPath() {
			rooms[of] = append(rooms[of], f.Name)
		}
	}
	return rooms
}

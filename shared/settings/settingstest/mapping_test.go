package settingstest

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/settings"
	"gatehouse/shared/settings/settingstest/roomtest"
)

type everyType struct {
	Bool     bool              `env:"BOOL" envDefault:"true"`
	Int      int               `env:"INT" envDefault:"7" max:"7"`
	Int64    int64             `env:"INT64" min:"0"`
	Uint32   uint32            `env:"UINT32"`
	Float32  float32           `env:"FLOAT32" envDefault:"0.8" max:"1"`
	Float64  float64           `env:"FLOAT64" envDefault:"1" max:"1"`
	Duration time.Duration     `env:"DURATION" envDefault:"1s" min:"1s"`
	Text     string            `env:"TEXT"`
	Word     string            `env:"WORD" envDefault:"a" oneof:"a b"`
	List     []string          `env:"LIST"`
	Map      map[string]string `env:"MAP"`
	Room     roomtest.Settings `envPrefix:"ROOM_"`
}

// Mapping reads back what it sets, whatever the type.
func TestMapping(t *testing.T) {
	read := map[string]bool{}
	Mapping(t, func(environ ...string) (c everyType, err error) {
		for _, e := range environ {
			name, _, _ := strings.Cut(e, "=")
			read[name] = true
		}
		return c, settings.Load(&c, environ, settings.Options{}).Err()
	}, map[string]bool{"BOOL": true})
	if len(read) != 12 || read["BOOL"] || !read["ROOM_SIZE"] {
		t.Errorf("read %v", read)
	}
}

// TestChange_sameValue: a field without another value is an error.
func TestChange_sameValue(t *testing.T) {
	var c struct {
		Only string `oneof:"one"`
	}
	c.Only = "one"
	if _, err := change(reflect.ValueOf(&c).Elem().Field(0), reflect.TypeOf(c).Field(0).Tag); err == nil {
		t.Error("no error")
	}
}

func TestRooms(t *testing.T) {
	want := map[reflect.Type][]string{reflect.TypeFor[roomtest.Settings](): {"ROOM_ADDR", "ROOM_SIZE"}}
	if d := cmp.Diff(want, Rooms[everyType](t), cmp.Comparer(func(a, b reflect.Type) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

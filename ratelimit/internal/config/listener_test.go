package config

import (
	"reflect"
	"testing"
)

// The listener of a health check is the daemon's: fields and tags are equal.
func TestLoadListener(t *testing.T) {
	small, all := reflect.TypeFor[Listener](), reflect.TypeFor[Listen]()
	for i := range small.NumField() {
		field := small.Field(i)
		if of, there := all.FieldByName(field.Name); !there || of.Tag != field.Tag {
			t.Errorf("%s is `%s`, want `%s`", field.Name, field.Tag, of.Tag)
		}
	}
	l, err := LoadListener([]string{"HOST=::", "PORT=8088", "DEBUG_TOKEN=short", "KVSTORE_AUTH_FILE=/not/there"})
	if err != nil || l.Host != "::" || l.Port != 8088 {
		t.Errorf("%+v %v", l, err)
	}
	if _, err := LoadListener([]string{"PORT=http"}); err == nil {
		t.Error("PORT=http is accepted")
	}
}

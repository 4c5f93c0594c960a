package logging

import (
	"errors"
	"log/slog"
	"testing"
	"time"
)

func TestLevel(t *testing.T) {
	f := func(word string, want slog.Level) {
		t.Helper()
		if got := Level(word); got != want {
			t.Errorf("%q is %v, want %v", word, got, want)
		}
	}
	f("panic", 16)
	f("Fatal", 12)
	f("ERROR", slog.LevelError)
	f("warn", slog.LevelWarn)
	f("Warning", slog.LevelWarn)
	f("info", slog.LevelInfo)
	f("debug", slog.LevelDebug)
	f("trace", -8)
	f("loud", slog.LevelInfo)
}

func TestCleanAttr(t *testing.T) {
	f := func(value any, want string) {
		t.Helper()
		if got := CleanAttr(slog.Any("k", value)); got.Key != "k" || got.Value.String() != want {
			t.Errorf("%v became %v, want %s", value, got, want)
		}
	}
	f(1500*time.Microsecond, "1.5ms")
	f("to redis://u:p@h:1/0 and http://me@h", "to redis://***@h:1/0 and http://***@h")
	f("u:p@h", "u:p@h")
	f(errors.New("dial postgres://:secret@h/d: refused"), "dial postgres://***@h/d: refused")
	f(7, "7")
	f([]string{"a"}, "[a]")
}

package daemon

import (
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gatehouse/shared/logging"
)

func TestLogger_text(t *testing.T) {
	var b strings.Builder
	log := newLogger(&b, "trace", "text")
	log.Warn("one \"two\"\nthree", "n", 1, "text", "a b", "error", errors.New("dial redis://u:p@h:1: refused"))
	log.With("a", 1).WithGroup("g").Info("reached redis://:secret@h:1/0", "b", 2)
	log.Log(t.Context(), logging.LevelTrace, "t")
	log.Log(t.Context(), logging.LevelFatal, "f")
	log.Log(t.Context(), logging.LevelPanic, "p")
	log.Debug("d")
	log.Error("e")
	got := regexp.MustCompile(`time="[0-9T:+Z-]{20,25}"`).ReplaceAllString(b.String(), "time=T")
	want := `time=T level=warning msg="one \"two\"\nthree" n=1 text="a b" error="dial redis://***@h:1: refused"
time=T level=info msg="reached redis://***@h:1/0" a=1 g.b=2
time=T level=trace msg="t"
time=T level=fatal msg="f"
time=T level=panic msg="p"
time=T level=debug msg="d"
time=T level=error msg="e"
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestLogger_json(t *testing.T) {
	var b strings.Builder
	newLogger(&b, "info", "JSON").Warn("to redis://u:p@h", "error", errors.New("x"), "url", "redis://u:p@h",
		"took", 1500*time.Microsecond)
	var got map[string]any
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatal(err)
	}
	if _, err := time.Parse(time.RFC3339Nano, got["@timestamp"].(string)); err != nil {
		t.Error(err)
	}
	delete(got, "@timestamp")
	if d := cmp.Diff(map[string]any{"level": "warning", "@message": "to redis://***@h", "error": "x",
		"url": "redis://***@h", "took": "1.5ms"}, got); d != "" {
		t.Error(d)
	}
}

func TestLogger_levels(t *testing.T) {
	all := []slog.Level{logging.LevelTrace, slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError,
		logging.LevelFatal, logging.LevelPanic}
	f := func(level string, lines int) {
		t.Helper()
		var b strings.Builder
		log := newLogger(&b, level, "")
		for _, l := range all {
			log.Log(t.Context(), l, "x")
		}
		if n := strings.Count(b.String(), "\n"); n != lines {
			t.Errorf("%s: %d lines, want %d", level, n, lines)
		}
	}
	f("trace", 7)
	f("Debug", 6)
	f("INFO", 5)
	f("warn", 4)
	f("WARNING", 4)
	f("error", 3)
	f("fatal", 2)
	f("panic", 1)
}

package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/auth/internal/config"
)

// Both handlers write the same about the same record.
func TestFlatJSON(t *testing.T) {
	at := time.Date(2026, 11, 21, 18, 0, 0, 123456789, time.FixedZone("CET", 3600))
	f := func(flat bool, level slog.Level, message string, attrs ...slog.Attr) {
		t.Helper()
		var have, want bytes.Buffer
		l := NewLogger(&have, config.Log{Level: "trace", Format: "json"})
		r := slog.NewRecord(at, level, message, 0)
		r.AddAttrs(attrs...)
		if _, ok := appendRecord(nil, r); ok != flat {
			t.Errorf("flat is %v", ok)
		}
		general := slog.NewJSONHandler(&want, &slog.HandlerOptions{Level: slog.Level(-8), ReplaceAttr: cleanAttr})
		if err := errors.Join(l.Handler().Handle(t.Context(), r), general.Handle(t.Context(), r)); err != nil {
			t.Fatal(err)
		}
		var h, w map[string]any
		if json.Unmarshal(have.Bytes(), &h) != nil || json.Unmarshal(want.Bytes(), &w) != nil ||
			!reflect.DeepEqual(h, w) {
			t.Errorf("%s, the general handler says %s", have.Bytes(), want.Bytes())
		}
	}
	f(true, slog.LevelInfo, "request", slog.String("route", "/user"), slog.Int("status", 200),
		slog.Duration("duration", 1234567))
	f(true, slog.LevelWarn, "a \"quoted\" line\n", slog.String("key \u00fc", "\x00\xff <b>&"), slog.Int64("n", -1<<63))
	f(true, slog.LevelError, "", slog.String("url", "postgres://me:secret@db/me"))
	f(true, slog.LevelInfo+1, "between the levels")
	f(true, 12, "fatal")
	f(false, slog.LevelInfo, "error", slog.Any("error", errors.New("dial postgres://me:secret@db/me: refused")))
	f(false, slog.LevelInfo, "group", slog.Group("g", slog.Int("a", 1)))
	f(false, slog.LevelDebug, "others", slog.Bool("b", true), slog.Float64("f", 1.5), slog.Time("t", at),
		slog.Any("list", []string{"a"}))

	var out bytes.Buffer
	l := NewLogger(&out, config.Log{Level: "info", Format: "json"})
	l.With("who", "ann").WithGroup("g").Info("with", "a", 1)
	var h map[string]any
	if err := json.Unmarshal(out.Bytes(), &h); err != nil || h["who"] != "ann" ||
		!reflect.DeepEqual(h["g"], map[string]any{"a": 1.0}) {
		t.Errorf("%s", &out)
	}
}

func logRequest(l *slog.Logger) {
	l.LogAttrs(context.Background(), slog.LevelInfo, "request",
		slog.String("method", "GET"), slog.String("route", "/user"), slog.Int("status", 200),
		slog.Duration("duration", 1234*time.Microsecond),
		slog.String("request_id", "f3b6a1de-3a2c-4f6e-9d07-5b2f6f6f7a10"),
		slog.String("ip", "203.0.113.9"), slog.String("user", "d673abe5-64a7-4b5b-9344-6d91bb04ef60"))
}

// The line that each request writes.
func BenchmarkLog(b *testing.B) {
	for _, format := range []string{"json", "text"} {
		b.Run(format, func(b *testing.B) {
			l := NewLogger(io.Discard, config.Log{Level: "info", Format: format})
			b.ReportAllocs()
			for b.Loop() {
				logRequest(l.Logger)
			}
		})
	}
}

// On a full disk the log goes to standard error, line by line.
func TestLog_fullDisk(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	var stderr bytes.Buffer
	l := NewLogger(&stderr, config.Log{Level: "info", Format: "json", File: "/dev/full"})
	l.Info("one")
	l.Info("two")
	if got := stderr.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, `"msg":"two"`) {
		t.Errorf("standard error has %q", got)
	}
}

// filling has room for a number of bytes; full, it fails.
type filling struct {
	bytes.Buffer
	room int
}

func (w *filling) Write(p []byte) (int, error) {
	n, _ := w.Buffer.Write(p[:min(w.room, len(p))])
	if w.room -= n; n < len(p) {
		return n, syscall.ENOSPC
	}
	return n, nil
}

// A line that did not fit ends before the next one begins, and standard error gets no line twice.
func TestLog_tornLine(t *testing.T) {
	t.Parallel()
	file, stderr := &filling{room: 6}, &bytes.Buffer{}
	o := logOut{w: file, stderr: stderr}
	write := func(line string) {
		if n, err := o.Write([]byte(line)); n != len(line) || err != nil {
			t.Errorf("%q: %d, %v", line, n, err)
		}
	}
	write("one\n")
	write("two\n")
	write("three\n")
	file.room = 100
	write("four\n")
	write("five\n")
	if got := file.String() + "|" + stderr.String(); got != "one\ntw\nfour\nfive\n|two\nthree\n" {
		t.Errorf("%q", got)
	}
	file = &filling{room: 2}
	o = logOut{w: file, stderr: file}
	if n, err := o.Write([]byte("one\n")); n != 2 || err == nil || file.String() != "on" {
		t.Errorf("without a log file: %d, %v, %q", n, err, file)
	}
}

func TestLogHidesCredentials(t *testing.T) {
	f := func(format, want string) {
		t.Helper()
		var text bytes.Buffer
		l := NewLogger(&text, config.Log{Level: "warn", Format: format})
		l.Info("not shown")
		l.Warn("m", "url", "postgres://u:hunter2@h/d", "error", errors.New("dial smtp://a:hunter3@h: refused"),
			slog.Group("g", "at", "x://y@z"), "took", 1500*time.Microsecond)
		l.level.Set(slog.LevelDebug)
		l.Debug("shown")
		if got := text.String(); strings.Contains(got, "hunter") || strings.Contains(got, "not shown") ||
			!strings.Contains(got, "shown") || !strings.Contains(got, want) {
			t.Error(got)
		}
	}
	f("json",
		`"level":"warn","msg":"m","url":"postgres://***@h/d","error":"dial smtp://***@h: refused","g":{"at":"x://***@z"},"took":"1.5ms"`)
	f("text", `level=warn msg=m url=postgres://***@h/d error="dial smtp://***@h: refused" g.at=x://***@z took=1.5ms`)
}

package daemon

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"

	"gatehouse/auth/internal/jsontext"
	"gatehouse/shared/logging"
)

// flatJSON is a slog.Handler for records whose values are texts, integers and durations, such as the line for each
// request. It writes them exactly as the general JSON handler would, in a third of the time (BenchmarkLog). It passes
// all other records to the general handler.
type flatJSON struct {
	slog.Handler
	out io.Writer
}

var lineBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1<<10); return &b }}

// Handle implements slog.Handler.
func (h flatJSON) Handle(ctx context.Context, r slog.Record) error {
	buf := lineBuffers.Get().(*[]byte)
	defer lineBuffers.Put(buf)
	line, flat := appendRecord((*buf)[:0], r)
	*buf = line
	if !flat {
		return h.Handler.Handle(ctx, r)
	}
	_, err := h.out.Write(line)
	return err
}

// appendRecord appends the line of a record. flat is false if the record needs the general handler.
func appendRecord(b []byte, r slog.Record) (_ []byte, flat bool) {
	if r.Time.IsZero() {
		return b, false
	}
	b = r.Time.UTC().AppendFormat(append(b, `{"time":"`...), "2006-01-02T15:04:05.999999999Z07:00")
	b = append(append(append(b, `","level":"`...), lowerLevel(r.Level)...), `","msg":`...)
	b = jsontext.AppendString(b, r.Message)
	flat = true
	r.Attrs(func(a slog.Attr) bool {
		b = append(jsontext.AppendString(append(b, ','), a.Key), ':')
		switch a.Value.Kind() {
		case slog.KindString:
			b = jsontext.AppendString(b, logging.HideCredentials(a.Value.String()))
		case slog.KindInt64:
			b = strconv.AppendInt(b, a.Value.Int64(), 10)
		case slog.KindDuration:
			b = jsontext.AppendString(b, a.Value.Duration().String())
		default:
			flat = false
		}
		return flat
	})
	return append(b, "}\n"...), flat
}

func lowerLevel(l slog.Level) string {
	switch l {
	case slog.LevelInfo:
		return "info"
	case slog.LevelWarn:
		return "warn"
	case slog.LevelError:
		return "error"
	}
	return strings.ToLower(l.String())
}

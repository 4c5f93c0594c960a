package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/grpclog"

	"gatehouse/shared/logging"
)

// newLogger returns a logger that writes lines to w. level is one of the words for LOG_LEVEL; an unknown word means
// info. format is json, in upper or lower case, for lines of JSON; anything else means text.
func newLogger(w io.Writer, level, format string) *slog.Logger {
	o := &slog.HandlerOptions{Level: logging.Level(level), ReplaceAttr: jsonAttr}
	if strings.EqualFold(format, "json") {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	t := &textHandler{out: &textOut{w: w}}
	o.ReplaceAttr = textAttr
	t.attrs = slog.NewTextHandler(&t.out.line, o)
	return slog.New(t)
}

// Report writes the reason why the daemon does not start, or ends. It writes plain text or, with LOG_FORMAT=json, a
// line of the log, which it writes whatever the log level, since a program reads it.
func Report(w io.Writer, environ []string, level slog.Level, text string) {
	for _, e := range environ {
		if format, ok := strings.CutPrefix(e, "LOG_FORMAT="); ok && strings.EqualFold(format, "json") {
			newLogger(w, "trace", format).Log(context.Background(), level, text)
			return
		}
	}
	if level == slog.LevelWarn {
		text = "warning: " + text
	}
	fmt.Fprintln(w, "ratelimit:", text)
}

// levelName returns the word for a level in a line of the log.
func levelName(l slog.Level) string {
	switch {
	case l >= logging.LevelPanic:
		return "panic"
	case l >= logging.LevelFatal:
		return "fatal"
	case l >= slog.LevelError:
		return "error"
	case l >= slog.LevelWarn:
		return "warning"
	case l >= slog.LevelInfo:
		return "info"
	case l >= slog.LevelDebug:
		return "debug"
	}
	return "trace"
}

// jsonAttr renames the time, message and level of a record to the names that log pipelines expect: @timestamp, @message
// and level.
func jsonAttr(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 {
		switch a.Key {
		case slog.TimeKey:
			a.Key = "@timestamp"
		case slog.MessageKey:
			a.Key = "@message"
		case slog.LevelKey:
			if l, ok := a.Value.Any().(slog.Level); ok {
				return slog.String(a.Key, levelName(l))
			}
		}
	}
	return logging.CleanAttr(a)
}

// textAttr removes the time, level and message of a record, because textHandler writes them itself.
func textAttr(groups []string, a slog.Attr) slog.Attr {
	if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey) {
		return slog.Attr{}
	}
	return logging.CleanAttr(a)
}

// textHandler is a slog.Handler that writes `time="…" level=… msg="…"`, followed by the attributes as slog's
// TextHandler writes them.
type textHandler struct {
	out   *textOut
	attrs slog.Handler // writes the attributes into out.line
}

// textOut is the output that all handlers of one logger share.
type textOut struct {
	mu   sync.Mutex
	w    io.Writer
	line bytes.Buffer
}

// Enabled implements slog.Handler.
func (h *textHandler) Enabled(ctx context.Context, l slog.Level) bool { return h.attrs.Enabled(ctx, l) }

// Handle implements slog.Handler.
func (h *textHandler) Handle(ctx context.Context, r slog.Record) error {
	h.out.mu.Lock()
	defer h.out.mu.Unlock()
	b := &h.out.line
	b.Reset()
	b.WriteString(`time="` + r.Time.Format(time.RFC3339) + `" level=` + levelName(r.Level) +
		` msg=` + strconv.Quote(logging.HideCredentials(r.Message)) + " ")
	if err := h.attrs.Handle(ctx, r); err != nil {
		return err
	}
	line := append(bytes.TrimRight(b.Bytes(), " \n"), '\n')
	_, err := h.out.w.Write(line)
	return err
}

// WithAttrs implements slog.Handler.
func (h *textHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return &textHandler{out: h.out, attrs: h.attrs.WithAttrs(as)}
}

// WithGroup implements slog.Handler.
func (h *textHandler) WithGroup(name string) slog.Handler {
	return &textHandler{out: h.out, attrs: h.attrs.WithGroup(name)}
}

// takeGRPCLog turns the errors that grpc-go logs into lines of this daemon's log. It must be called before anything
// else of grpc-go. It does nothing if grpc-go's own logging variables are set.
func takeGRPCLog(log *slog.Logger, environ []string) {
	if !slices.ContainsFunc(environ, func(e string) bool { return strings.HasPrefix(e, "GRPC_GO_LOG_") }) {
		grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, grpcErrors{log}))
	}
}

type grpcErrors struct{ log *slog.Logger }

// Write implements io.Writer. grpc-go writes a line that consists of a date, a level and the text.
func (g grpcErrors) Write(line []byte) (int, error) {
	text := string(line)
	if _, after, ok := strings.Cut(text, "ERROR: "); ok {
		text = after
	}
	g.log.Warn("grpc: " + strings.TrimSpace(text))
	return len(line), nil
}

package telemetry

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
)

// Diagnostics sends the OpenTelemetry SDK's own messages to log, for the whole process: errors and warnings as such,
// other messages at the given level. Without it the SDK writes to standard error in a form of its own.
func Diagnostics(log *slog.Logger, level slog.Level) {
	log = log.With("component", "opentelemetry")
	h := sdkHandler{log.Handler(), level}
	otel.SetLogger(logr.FromSlogHandler(h))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("opentelemetry: " + err.Error())
	}))
}

// sdkHandler converts the levels of the SDK's records: logr's verbosity 1 is the SDK's warning, 4 its information, 8
// every change inside it. They arrive as slog levels -1, -4 and -8.
type sdkHandler struct {
	slog.Handler
	level slog.Level
}

func (h sdkHandler) levelOf(l slog.Level) slog.Level {
	switch {
	case l >= slog.LevelInfo:
		return l
	case l >= -1:
		return slog.LevelWarn
	}
	return h.level
}

// Enabled implements slog.Handler.
func (h sdkHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, h.levelOf(l))
}

// Handle implements slog.Handler.
func (h sdkHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = h.levelOf(r.Level)
	r.Message = "opentelemetry: " + r.Message
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h sdkHandler) WithAttrs(as []slog.Attr) slog.Handler {
	return sdkHandler{h.Handler.WithAttrs(as), h.level}
}

// WithGroup implements slog.Handler.
func (h sdkHandler) WithGroup(name string) slog.Handler {
	return sdkHandler{h.Handler.WithGroup(name), h.level}
}

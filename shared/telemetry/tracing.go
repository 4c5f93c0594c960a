// Package telemetry sets up the OpenTelemetry SDK as both daemons use it: it samples spans, exports them over OTLP,
// writes the SDK's own messages to the daemon's log, and ends in bounded time. Package metrics below it does the same
// for metrics.
//
// A daemon with tracing calls the package as follows. Without tracing it holds nil instead of a tracer, so that tracing
// costs its requests only one comparison:
//
//	telemetry.Diagnostics(log, slog.LevelDebug)
//	tracing, err := telemetry.StartTracing(ctx, telemetry.TracingOptions{
//		Protocol: "http", SamplingRate: 1, Log: log,
//		Resource: []attribute.KeyValue{semconv.ServiceName("RateLimit")},
//	})
//	...
//	ctx = tracing.Propagator.Extract(ctx, propagation.HeaderCarrier(r.Header))
//	ctx, span := tracing.Tracer("ratelimit").Start(ctx, "POST /json", trace.WithSpanKind(trace.SpanKindServer))
//	defer span.End()
//	...
//	tracing.Stop(5 * time.Second) // after the last request
//
// Standard environment variables set the exporter's endpoint, headers, certificates, time-out and compression
// (OTEL_EXPORTER_OTLP_* and OTEL_EXPORTER_OTLP_TRACES_*), the batches (OTEL_BSP_*) and the limits of one span
// (OTEL_SPAN_*). The SDK reads them from the process's environment and ignores values that it does not understand.
// [CheckEnvironment] reports such values, so that a daemon can refuse to start.
//
// The package sets no global tracer or propagator. Only Diagnostics is process-wide.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/contrib/propagators/b3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TracingOptions are the settings of a daemon for tracing.
type TracingOptions struct {
	// Protocol is http (OTLP as protobuf over HTTP) or grpc.
	Protocol string
	// SamplingRate is the share of traces, 0 to 1, that are recorded, chosen by trace ID. It decides for traces that
	// begin in this daemon; for other traces, the caller has decided.
	SamplingRate float64
	// StandardSampler leaves the decision to OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG instead. If they are
	// unset, every trace that begins in this daemon is recorded.
	StandardSampler bool
	// Resource describes the process, above all by its service.name. Its attributes take precedence over
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES, which take precedence over Default.
	Resource, Default []attribute.KeyValue
	// Headers are sent with each export instead of OTEL_EXPORTER_OTLP_HEADERS, for secrets that come from a file; nil
	// leaves the variable in effect.
	Headers map[string]string
	// Log gets a line when an outage of the collector begins and when it is over.
	Log *slog.Logger
}

// Tracing makes spans and exports them. All methods are safe for concurrent use.
type Tracing struct {
	// Propagator reads and writes the trace context of callers: W3C trace context and baggage, B3 in one header or
	// several. Where both are present, W3C wins.
	Propagator propagation.TextMapPropagator

	provider *sdktrace.TracerProvider
	exporter *exporter
}

// StartTracing sets up the exporter. It does not wait for a collector. An error means that the environment or o is
// invalid.
func StartTracing(ctx context.Context, o TracingOptions) (*Tracing, error) {
	out, err := newExporter(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	res, err := Resource(ctx, o.Resource, o.Default)
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	e := &exporter{SpanExporter: out, log: o.Log, protocol: o.Protocol}
	e.ctx, e.cancel = context.WithCancel(context.Background())
	with := []sdktrace.TracerProviderOption{sdktrace.WithBatcher(e), sdktrace.WithResource(res)}
	if !o.StandardSampler {
		with = append(with, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(o.SamplingRate))))
	}
	return &Tracing{Propagator: Propagator(), exporter: e, provider: sdktrace.NewTracerProvider(with...)}, nil
}

// Propagator returns the value of Tracing.Propagator.
func Propagator() propagation.TextMapPropagator {
	// The last propagator that finds a context wins.
	return propagation.NewCompositeTextMapPropagator(
		b3.New(b3.WithInjectEncoding(b3.B3SingleHeader|b3.B3MultipleHeader)),
		propagation.TraceContext{}, propagation.Baggage{},
	)
}

// Tracer returns the tracer of one instrumentation scope. Call it once and keep the result, since the look-up takes a
// lock.
func (t *Tracing) Tracer(scope string) trace.Tracer { return t.provider.Tracer(scope) }

// Spans returns how many spans the collector has accepted, and how many it has not. Spans that were dropped because the
// queue was full (OTEL_BSP_MAX_QUEUE_SIZE) are in neither number.
func (t *Tracing) Spans() (sent, lost uint64) { return t.exporter.sent.Load(), t.exporter.lost.Load() }

// Stop exports the recorded spans and ends everything within patience. An error says that spans were lost.
func (t *Tracing) Stop(patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, before := t.Spans()
	err := t.provider.Shutdown(ctx)
	t.exporter.cancel() // gives up exports that still wait for the collector
	_, after := t.Spans()
	if errors.Is(err, context.DeadlineExceeded) || err == nil && after > before {
		return errors.New("tracing: the collector did not take the last spans")
	}
	return err
}

// Resource merges the attributes that describe the process. The attributes in sure take precedence over the variable
// OTEL_RESOURCE_ATTRIBUTES, which takes precedence over the attributes in fallback.
func Resource(ctx context.Context, sure, fallback []attribute.KeyValue) (*resource.Resource, error) {
	return resource.New(ctx,
		resource.WithTelemetrySDK(), resource.WithAttributes(fallback...), resource.WithFromEnv(),
		resource.WithAttributes(sure...))
}

func newExporter(ctx context.Context, o TracingOptions) (sdktrace.SpanExporter, error) {
	local := Local("TRACES")
	switch o.Protocol {
	case "http":
		var with []otlptracehttp.Option
		if local { // the specification's default; the SDK's own default is https
			with = append(with, otlptracehttp.WithEndpointURL("http://localhost:4318/v1/traces"))
		}
		if o.Headers != nil {
			with = append(with, otlptracehttp.WithHeaders(o.Headers))
		}
		return otlptracehttp.New(ctx, with...)
	case "grpc":
		var with []otlptracegrpc.Option
		if local {
			with = append(with, otlptracegrpc.WithEndpointURL("http://localhost:4317"))
		}
		if o.Headers != nil {
			with = append(with, otlptracegrpc.WithHeaders(o.Headers))
		}
		return otlptracegrpc.New(ctx, with...)
	}
	return nil, fmt.Errorf("there is no protocol %q, only http and grpc", o.Protocol)
}

// Local reports whether the environment names no collector for a signal (TRACES or METRICS), so that the
// specification's default applies: http on this host.
func Local(signal string) bool {
	for _, n := range []string{"ENDPOINT", "INSECURE", "CERTIFICATE"} {
		if strings.TrimSpace(os.Getenv(otlpPrefix+n)) != "" ||
			strings.TrimSpace(os.Getenv(otlpPrefix+signal+"_"+n)) != "" {
			return false
		}
	}
	return true
}

// exporter counts spans, logs an outage of the collector once, and stops when Tracing stops. The SDK's batcher would
// log each batch that failed.
type exporter struct {
	sdktrace.SpanExporter
	log      *slog.Logger
	protocol string
	ctx      context.Context // ends exports that are under way
	cancel   context.CancelFunc

	sent, lost atomic.Uint64
	away       atomic.Bool // the collector did not accept the last batch
}

// ExportSpans implements sdktrace.SpanExporter. It handles every error itself and returns nil.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		e.lost.Add(uint64(len(spans)))
	} else {
		e.sent.Add(uint64(len(spans)))
	}
	switch was := e.away.Swap(err != nil); {
	case err != nil && !was:
		e.log.Warn("tracing: the collector takes no spans; they are dropped", "protocol", e.protocol, "error", err)
	case err == nil && was:
		e.log.Info("tracing: the collector takes spans again", "lost", e.lost.Load())
	}
	return nil
}

// Diagnostics writes the OpenTelemetry SDK's own messages to log, for the whole process: errors and warnings at their
// levels, other messages at the given level. Without it, the SDK writes to standard error in a format of its own.
func Diagnostics(log *slog.Logger, level slog.Level) {
	log = log.With("component", "opentelemetry")
	h := sdkHandler{log.Handler(), level}
	otel.SetLogger(logr.FromSlogHandler(h))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("opentelemetry: " + err.Error())
	}))
}

// sdkHandler converts the levels of the SDK's log records. The SDK logs by logr's verbosity: 1 is a warning, 4
// information, 8 every change inside the SDK. These arrive as slog levels -1, -4 and -8.
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

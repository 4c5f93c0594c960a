// Package metrics sets up the metrics of the OpenTelemetry SDK: they are pushed over OTLP, or served in the text format
// of Prometheus. It is separate from package telemetry, so that a daemon with only tracing does not link it.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"gatehouse/shared/telemetry"
)

// Options are the settings of a daemon for metrics.
type Options struct {
	// Protocol is http or grpc: metrics are pushed over OTLP, every OTEL_METRIC_EXPORT_INTERVAL (60 s). With "",
	// nothing is pushed, and Metrics is an http.Handler that serves the metrics.
	Protocol string
	// Resource, Default, Headers and Log are as in telemetry.TracingOptions.
	Resource, Default []attribute.KeyValue
	Headers           map[string]string
	Log               *slog.Logger
}

// Metrics collects metrics, and pushes or serves them. All methods are safe for concurrent use.
type Metrics struct {
	provider *sdkmetric.MeterProvider
	exporter *metricExporter         // nil: metrics are served
	reader   *sdkmetric.ManualReader // nil: metrics are pushed
	log      *slog.Logger
}

// Start sets up the exporter. It does not wait for a collector. An error means that the environment or o is invalid.
func Start(ctx context.Context, o Options) (*Metrics, error) {
	res, err := telemetry.Resource(ctx, o.Resource, o.Default)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	m := &Metrics{log: o.Log}
	with := []sdkmetric.Option{sdkmetric.WithResource(res)}
	if o.Protocol == "" {
		m.reader = sdkmetric.NewManualReader()
		with = append(with, sdkmetric.WithReader(m.reader))
	} else {
		out, err := newMetricExporter(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		m.exporter = &metricExporter{Exporter: out, log: o.Log, protocol: o.Protocol}
		m.exporter.ctx, m.exporter.cancel = context.WithCancel(context.Background())
		with = append(with, sdkmetric.WithReader(sdkmetric.NewPeriodicReader(m.exporter)))
	}
	m.provider = sdkmetric.NewMeterProvider(with...)
	return m, nil
}

// Meter returns the meter of one instrumentation scope.
func (m *Metrics) Meter(scope string) metric.Meter { return m.provider.Meter(scope) }

// ServeHTTP serves the metrics in the text format of Prometheus (version 0.0.4), at any path.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m.reader == nil {
		http.Error(w, "the figures are pushed", http.StatusNotFound)
		return
	}
	var all metricdata.ResourceMetrics
	if err := m.reader.Collect(r.Context(), &all); err != nil {
		m.log.Warn("metrics: some metrics could not be read", "error", err)
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(appendExposition(nil, &all)) // an error means that the client has gone
}

// Stop exports the last values and ends everything within patience.
func (m *Metrics) Stop(patience time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := m.provider.Shutdown(ctx)
	if m.exporter == nil {
		return err
	}
	m.exporter.cancel() // gives up exports that still wait for the collector
	if errors.Is(err, context.DeadlineExceeded) || err == nil && m.exporter.away.Load() {
		return errors.New("metrics: the collector did not accept the last metrics")
	}
	return err
}

func newMetricExporter(ctx context.Context, o Options) (sdkmetric.Exporter, error) {
	local := telemetry.Local("METRICS")
	switch o.Protocol {
	case "http":
		var with []otlpmetrichttp.Option
		if local { // the specification's default; the SDK's own default is https
			with = append(with, otlpmetrichttp.WithEndpointURL("http://localhost:4318/v1/metrics"))
		}
		if o.Headers != nil {
			with = append(with, otlpmetrichttp.WithHeaders(o.Headers))
		}
		return otlpmetrichttp.New(ctx, with...)
	case "grpc":
		var with []otlpmetricgrpc.Option
		if local {
			with = append(with, otlpmetricgrpc.WithEndpointURL("http://localhost:4317"))
		}
		if o.Headers != nil {
			with = append(with, otlpmetricgrpc.WithHeaders(o.Headers))
		}
		return otlpmetricgrpc.New(ctx, with...)
	}
	return nil, fmt.Errorf("there is no protocol %q, only http and grpc", o.Protocol)
}

// metricExporter logs an outage of the collector once, and stops when Metrics stops.
type metricExporter struct {
	sdkmetric.Exporter
	log      *slog.Logger
	protocol string
	ctx      context.Context // ends exports that are under way
	cancel   context.CancelFunc
	mu       sync.Mutex  // one export at a time, so that exports are sent in order
	away     atomic.Bool // the collector did not accept the last export
}

// Export implements sdkmetric.Exporter. It handles every error itself. Sums are cumulative, so a lost export loses a
// data point but no counts.
func (e *metricExporter) Export(ctx context.Context, all *metricdata.ResourceMetrics) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	e.mu.Lock()
	defer e.mu.Unlock()
	err := e.Exporter.Export(ctx, all)
	switch was := e.away.Swap(err != nil); {
	case err != nil && !was:
		e.log.Warn("metrics: the collector accepts no metrics", "protocol", e.protocol, "error", err)
	case err == nil && was:
		e.log.Info("metrics: the collector accepts metrics again")
	}
	return nil
}

package config

import (
	"strings"

	"gatehouse/shared/settings"
	"gatehouse/shared/telemetry"
)

// telemetryConfig has the settings of traces and metrics. The standard variables of OpenTelemetry,
// OTEL_EXPORTER_OTLP_*, name the collector.
type telemetryConfig struct {
	// true: spans of requests, and of their statements and calls, are exported over OTLP to
	// `OTEL_EXPORTER_OTLP_ENDPOINT` or, if it is unset, to this host.
	Tracing bool `env:"AUTH_TRACING_ENABLED" envDefault:"false" restart:"true"`
	// The only value is `opentelemetry`.
	TracingExporter string `env:"AUTH_TRACING_EXPORTER" envDefault:"opentelemetry" oneof:"opentelemetry" fold:"true" restart:"true"`
	// true: metrics of requests, sign-ins, hashing, outbox, outgoing calls, database pool, keys and the
	// Go runtime are exported.
	Metrics bool `env:"AUTH_METRICS_ENABLED" envDefault:"false" restart:"true"`
	// `opentelemetry`: pushed over OTLP, every `OTEL_METRIC_EXPORT_INTERVAL` (60000 ms). `prometheus`: scraped from a
	// listener of its own.
	MetricsExporter string `env:"AUTH_METRICS_EXPORTER" envDefault:"opentelemetry" oneof:"opentelemetry prometheus" fold:"true" restart:"true"`
	// Address of the listener for `prometheus`, which needs no token; its path is `/`.
	PullHost string `env:"OTEL_EXPORTER_PULL_HOST" envDefault:"0.0.0.0" restart:"true"`
	// Port of the listener for `prometheus`; 0: any free port.
	PullPort int `env:"OTEL_EXPORTER_PULL_PORT" envDefault:"9100" min:"0" max:"65535" restart:"true"`
	// http/protobuf (port 4318) or grpc (port 4317).
	Protocol string `env:"OTEL_EXPORTER_OTLP_PROTOCOL" envDefault:"http/protobuf" oneof:"http/protobuf grpc" restart:"true"`
	// Headers that are sent with each export, as `name=value,name=value`; values are percent-encoded.
	Headers string `env:"OTEL_EXPORTER_OTLP_HEADERS" secret:"true" restart:"true"`
	// true: the OpenTelemetry SDK logs its work at level info; false: at level debug. It always logs its warnings.
	Debug bool `env:"DEBUG" envDefault:"false" restart:"true"`
}

// Transport returns the name of the protocol that package telemetry uses.
func (c *telemetryConfig) Transport() string {
	before, _, _ := strings.Cut(c.Protocol, "/")
	return before
}

// Scraped reports whether metrics are scraped from a listener instead of being pushed.
func (c *telemetryConfig) Scraped() bool { return c.Metrics && c.MetricsExporter == "prometheus" }

// checkTelemetry checks the standard variables of OpenTelemetry, since the SDK would ignore errors in them.
func (c *Config) checkTelemetry(r *settings.Report) {
	t := &c.Telemetry
	said := map[string]bool{} // errors that concern both exporters are reported once
	check := func(signal string) {
		for _, mistake := range telemetry.CheckEnvironment(signal, t.Transport(), r.Text) {
			if !said[mistake] {
				said[mistake] = true
				r.Clash("%s", mistake)
			}
		}
	}
	if t.Tracing {
		check("TRACES")
	}
	if t.Metrics && !t.Scraped() {
		check("METRICS")
	}
	if t.Scraped() && t.PullPort != 0 && t.PullPort == c.API.Port {
		r.Clash("OTEL_EXPORTER_PULL_PORT and PORT are both %d", c.API.Port)
	}
}

package config

import (
	"gatehouse/shared/settings"
	"gatehouse/shared/telemetry"
)

// Tracing says what is traced and how. OpenTelemetry's standard variables, OTEL_EXPORTER_OTLP_*, say where spans are
// sent.
type Tracing struct {
	// true: spans of requests are exported over OTLP to OTEL_EXPORTER_OTLP_ENDPOINT; without one to this host.
	Enabled bool `env:"TRACING_ENABLED" envDefault:"false"`
	// http (protobuf, port 4318) or grpc (port 4317).
	Protocol string `env:"TRACING_EXPORTER_PROTOCOL" envDefault:"http" oneof:"http grpc"`
	// Resource attribute service.name.
	ServiceName string `env:"TRACING_SERVICE_NAME" envDefault:"RateLimit"`
	// Resource attribute service.namespace.
	ServiceNamespace string `env:"TRACING_SERVICE_NAMESPACE"`
	// Resource attribute service.instance.id; unset: a random UUID for each start.
	ServiceInstanceID string `env:"TRACING_SERVICE_INSTANCE_ID"`
	// Share of traces that are recorded, 0 to 1, where a trace begins here; a caller's choice is followed.
	SamplingRate float64 `env:"TRACING_SAMPLING_RATE" envDefault:"1" min:"0" max:"1"`
	// true: spans hold the text of whole requests and answers, which may be personal data.
	RequestText bool `env:"TRACING_REQUEST_TEXT" envDefault:"false"`
	// name=value,name=value sent with each export, values percent-encoded;
	// OTEL_EXPORTER_OTLP_HEADERS_FILE reads them from a file.
	Headers string `env:"OTEL_EXPORTER_OTLP_HEADERS" secret:"true"`
}

// checkTracing checks that the SDK understands the standard variables, since the SDK ignores errors.
func (c *Config) checkTracing(r *settings.Report) {
	if !c.Tracing.Enabled {
		return
	}
	for _, mistake := range telemetry.CheckEnvironment("TRACES", c.Tracing.Protocol, r.Text) {
		r.Clash("%s", mistake)
	}
}

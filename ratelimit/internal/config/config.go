// Package config reads the daemon's settings from the environment, checks them against each other, and converts them to
// the settings of the packages that use them.
package config

import (
	"time"

	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/source"
	"gatehouse/shared/settings"
	"gatehouse/shared/telemetry"
)

// Config has all settings of the daemon, each from an environment variable. The tables in docs/settings.md are made
// from these structs: the comment of a field is the text for operators. The fields' tags are described in package
// settings.
type Config struct {
	Rules     Rules
	XDS       XDS
	Listen    Listen
	TLS       TLS
	Process   Process
	Answer    Answer
	Counting  Counting
	KVStore   KVStore `envPrefix:"KVSTORE_"`
	KVShared  KVShared
	PerSecond KVStore `envPrefix:"KVSTORE_PERSECOND_"`
	MCache    MCache  `envPrefix:"MCACHE_"`
	Stats     Stats
	Tracing   Tracing
}

// Rules says where the rules come from.
type Rules struct {
	// Where rules come from: FILE, or GRPC_XDS_SOTW: a control plane (xDS).
	Type string `env:"CONFIG_TYPE" envDefault:"FILE" oneof:"FILE GRPC_XDS_SOTW"`
	// true: listeners open before the first valid rules; until then decisions are refused.
	ForceStart bool `env:"FORCE_START_WITHOUT_INITIAL_CONFIG" envDefault:"false"`
	Files      source.Settings
}

// Listen has the settings of the listeners for HTTP, gRPC and debugging, and their bounds.
type Listen struct {
	// Address of the HTTP listener: /json and /healthcheck.
	Host string `env:"HOST" envDefault:"0.0.0.0"`
	// Port of the HTTP listener; 0 takes a free one.
	Port int `env:"PORT" envDefault:"8080" min:"0" max:"65535"`
	// Address of the gRPC listener.
	GRPCHost string `env:"GRPC_HOST" envDefault:"0.0.0.0"`
	// Port of the gRPC listener; 0 takes a free one.
	GRPCPort int `env:"GRPC_PORT" envDefault:"8081" min:"0" max:"65535"`
	// Path of a unix socket for gRPC; when set, GRPC_HOST and GRPC_PORT are ignored.
	GRPCUDS string `env:"GRPC_UDS"`
	// Mode of the socket GRPC_UDS, in octal: 0660 lets owner and group connect; unset: what the umask leaves.
	GRPCUDSMode string `env:"GRPC_UDS_MODE"`
	// Address of the debug listener: profiles, rules, statistics, unauthenticated but for DEBUG_TOKEN. Give 127.0.0.1
	// where the network is not trusted.
	DebugHost string `env:"DEBUG_HOST" envDefault:"0.0.0.0"`
	// Port of the debug listener; 0 takes a free one.
	DebugPort int `env:"DEBUG_PORT" envDefault:"6070" min:"0" max:"65535"`
	Debug     server.DebugSettings
	Observe   observe.Settings
	GRPC      server.GRPCSettings
	// Implementation of the gRPC server: native decides on the goroutine that reads a connection; grpc-go is the
	// library's server, for comparison.
	GRPCServer string `env:"GRPC_SERVER" envDefault:"native" oneof:"native grpc-go"`
	HTTP       server.HTTPSettings
	Caps       service.Caps
}

// Process has the settings that concern the process as a whole.
type Process struct {
	// Lowest level that is logged: panic, fatal, error, warn (or warning), info, debug or trace, in any case. debug and
	// trace log ten requests a second, with values.
	LogLevel string `env:"LOG_LEVEL" envDefault:"WARN" oneof:"PANIC FATAL ERROR WARN WARNING INFO DEBUG TRACE" fold:"true"`
	// json: one object per line with @timestamp, @message and level; anything else: text.
	LogFormat string `env:"LOG_FORMAT" envDefault:"text"`
	// true: unhealthy until a configuration with at least one domain is loaded, and again while the loaded one has no
	// domain.
	HealthyWithConfig bool `env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" envDefault:"false"`
	// Pause between turning unhealthy on SIGTERM or SIGINT and closing the listeners: longer than the
	// balancer's probe interval.
	DrainDelay time.Duration `env:"DRAIN_DELAY" envDefault:"0s" min:"0s"`
	// Time that calls in flight get after DRAIN_DELAY; then they are cut. DRAIN_DELAY + DRAIN_TIMEOUT should be below
	// the supervisor's patience (Kubernetes: 30s).
	DrainTimeout time.Duration `env:"DRAIN_TIMEOUT" envDefault:"15s" min:"0s"`
	// Heap size, in bytes, below which no garbage is collected; costs that much memory under load; with
	// GRPC_SERVER=grpc-go 67108864 saves a tenth of the CPU. 0: off. GOMEMLIMIT and the container's memory limit take
	// precedence.
	HeapFloor int64 `env:"HEAP_FLOOR_BYTES" envDefault:"25165824" min:"0"`
}

// Answer has the settings for the content of answers: verdicts, headers, and bounds on requests.
type Answer struct {
	Service service.Settings
	// Requests for a domain without rules: allow, or deny (every status OVER_LIMIT).
	UnknownDomain string `env:"UNKNOWN_DOMAIN" envDefault:"allow" oneof:"allow deny" fold:"true"`
	// true: answers ask Envoy to add headers that describe the limits, in LIMIT_RESPONSE_HEADERS_STYLE.
	Headers bool `env:"LIMIT_RESPONSE_HEADERS_ENABLED" envDefault:"false"`
	// legacy: the three headers named below; draft: RateLimit-Policy and RateLimit of
	// draft-ietf-httpapi-ratelimit-headers-11.
	HeadersStyle string `env:"LIMIT_RESPONSE_HEADERS_STYLE" envDefault:"legacy" oneof:"legacy draft" fold:"true"`
	HeaderNames  decide.HeaderNames
}

// Load reads all settings from an environment. The report has the warnings. The error lists every error found; c must
// not be used then.
func Load(environ []string) (c Config, r *settings.Report, err error) {
	r = settings.Load(&c, environ, settingNames)
	c.check(r)
	return c, r, r.Err()
}

// Listener has the settings that the command health needs. They are fields of Listen alone, so that no other setting,
// and no secret, has to be present.
type Listener struct {
	Host string `env:"HOST" envDefault:"0.0.0.0"`
	Port int    `env:"PORT" envDefault:"8080" min:"0" max:"65535"`
}

// LoadListener reads a Listener from an environment.
func LoadListener(environ []string) (l Listener, err error) {
	err = settings.Load(&l, environ, settingNames).Err()
	return l, err
}

// Tracing has the settings of tracing. Where spans are sent is set by OpenTelemetry's standard variables,
// OTEL_EXPORTER_OTLP_*.
type Tracing struct {
	// true: spans of requests are exported over OTLP to OTEL_EXPORTER_OTLP_ENDPOINT; without one to this host.
	Enabled bool `env:"TRACING_ENABLED" envDefault:"false"`
	// Protocol by which spans are exported: http (protobuf, port 4318) or grpc (port 4317).
	Protocol string `env:"TRACING_EXPORTER_PROTOCOL" envDefault:"http" oneof:"http grpc"`
	// Resource attribute service.name.
	ServiceName string `env:"TRACING_SERVICE_NAME" envDefault:"RateLimit"`
	// Resource attribute service.namespace.
	ServiceNamespace string `env:"TRACING_SERVICE_NAMESPACE"`
	// Resource attribute service.instance.id; unset: a random UUID for each start.
	ServiceInstanceID string `env:"TRACING_SERVICE_INSTANCE_ID"`
	// Share, 0 to 1, of the traces that begin in this daemon that are recorded; other traces are as the caller decided.
	SamplingRate float64 `env:"TRACING_SAMPLING_RATE" envDefault:"1" min:"0" max:"1"`
	// true: spans hold the text of whole requests and answers, which may be personal data.
	RequestText bool `env:"TRACING_REQUEST_TEXT" envDefault:"false"`
	// name=value,name=value sent with each export, values percent-encoded;
	// OTEL_EXPORTER_OTLP_HEADERS_FILE reads them from a file.
	Headers string `env:"OTEL_EXPORTER_OTLP_HEADERS" secret:"true"`
}

// checkTracing checks the values of OpenTelemetry's standard variables, because its SDK ignores errors in them.
func (c *Config) checkTracing(r *settings.Report) {
	if !c.Tracing.Enabled {
		return
	}
	for _, mistake := range telemetry.CheckEnvironment("TRACES", c.Tracing.Protocol, r.Text) {
		r.Clash("%s", mistake)
	}
}

// Package config reads the daemon's settings from the environment, holds them against each other, and puts them in the
// words of the rooms that take them.
package config

import (
	"time"

	"gatehouse/shared/settings"
)

// Config is every setting of the daemon, from the environment. The first line of a
// comment is what docs/settings.md says about the variable; a test compares names and defaults there.
// Tags are those of package settings.
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
	// Rules are read from RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY/*.yaml and *.yml.
	Root string `env:"RUNTIME_ROOT" envDefault:"/srv/runtime_data/current"`
	// Directory below RUNTIME_ROOT; may be empty.
	Subdirectory string `env:"RUNTIME_SUBDIRECTORY"`
	// Directory below that; `.` for that itself.
	AppDirectory string `env:"RUNTIME_APPDIRECTORY" envDefault:"config"`
	// true: files and directories whose names begin with a dot are not read.
	IgnoreDotFiles bool `env:"RUNTIME_IGNOREDOTFILES" envDefault:"false"`
	// true: RUNTIME_ROOT is a symlink and a swap of it reloads; false: any change in the directory does.
	WatchRoot bool `env:"RUNTIME_WATCH_ROOT" envDefault:"true"`
	// true: a reload that finds no file at all is refused; false: it removes every limit, with a loud warning.
	RefuseEmpty bool `env:"RUNTIME_REFUSE_EMPTY" envDefault:"false"`
	// true: several files may add top-level entries to one domain; false: a second file of a domain is refused.
	MergeDomains bool `env:"MERGE_DOMAIN_CONFIG" envDefault:"false"`
}

// Listen is the three listeners and their bounds.
type Listen struct {
	// Address of the HTTP listener: /json and /healthcheck.
	Host string `env:"HOST" envDefault:"0.0.0.0"`
	// Its port; 0 takes a free one.
	Port int `env:"PORT" envDefault:"8080" min:"0" max:"65535"`
	// Address of the gRPC listener.
	GRPCHost string `env:"GRPC_HOST" envDefault:"0.0.0.0"`
	// Its port; 0 takes a free one.
	GRPCPort int `env:"GRPC_PORT" envDefault:"8081" min:"0" max:"65535"`
	// Path of a unix socket for gRPC; when set, GRPC_HOST and GRPC_PORT are ignored.
	GRPCUDS string `env:"GRPC_UDS"`
	// Mode of that socket, in octal: 0660 lets owner and group connect; unset: what the umask leaves.
	GRPCUDSMode string `env:"GRPC_UDS_MODE"`
	// Address of the debug listener: profiles, rules, statistics, unauthenticated. Give 127.0.0.1 where the network is not trusted.
	DebugHost string `env:"DEBUG_HOST" envDefault:"0.0.0.0"`
	// Its port; 0 takes a free one.
	DebugPort int `env:"DEBUG_PORT" envDefault:"6070" min:"0" max:"65535"`
	// Age at which a gRPC connection gets GOAWAY, plus or minus 10 %, so that balancing evens out; 0: never.
	GRPCMaxAge time.Duration `env:"GRPC_MAX_CONNECTION_AGE" envDefault:"24h" min:"0s"`
	// What such a connection gets to finish its calls before it is cut; 0: for ever.
	GRPCMaxAgeGrace time.Duration `env:"GRPC_MAX_CONNECTION_AGE_GRACE" envDefault:"1h" min:"0s"`
	// How long a gRPC connection may be silent before the server pings it.
	GRPCKeepaliveTime time.Duration `env:"GRPC_KEEPALIVE_TIME" envDefault:"1m" min:"1s"`
	// How long the peer has to answer before the connection is dropped.
	GRPCKeepaliveTimeout time.Duration `env:"GRPC_KEEPALIVE_TIMEOUT" envDefault:"20s" min:"1s"`
	// Shortest pause between pings that a client may send, with streams or without; more often ends its connection.
	GRPCMinPing time.Duration `env:"GRPC_KEEPALIVE_MIN_TIME" envDefault:"5s" min:"0s"`
	// Server of gRPC: native decides on the goroutine that reads a connection; grpc-go is the library's, for comparison.
	GRPCServer string `env:"GRPC_SERVER" envDefault:"native" oneof:"native grpc-go"`
	// Calls that a gRPC connection may have open; more are refused (REFUSED_STREAM), and a client that knows waits.
	GRPCMaxStreams int `env:"GRPC_MAX_CONCURRENT_STREAMS" envDefault:"1024" min:"1" max:"1000000"`
	// true: the gRPC reflection service is served, for grpcurl and the like.
	GRPCReflection bool `env:"GRPC_REFLECTION" envDefault:"false"`
	// Longest body of /json, in bytes; beyond it 413.
	HTTPMaxBody int64 `env:"HTTP_MAX_BODY_BYTES" envDefault:"1048576" min:"1"`
	// Time a client has to send the header of an HTTP request.
	HTTPHeaderTimeout time.Duration `env:"HTTP_READ_HEADER_TIMEOUT" envDefault:"5s" min:"1ms"`
	// Time a client has to send a whole HTTP request.
	HTTPReadTimeout time.Duration `env:"HTTP_READ_TIMEOUT" envDefault:"15s" min:"1ms"`
	// Time a decision over HTTP may take: HTTP callers bring no deadline. The store's failure mode answers then.
	HTTPRequestTimeout time.Duration `env:"HTTP_REQUEST_TIMEOUT" envDefault:"10s" min:"1ms"`
	// Time from the end of an HTTP request's header to the end of its answer. Longer than HTTP_REQUEST_TIMEOUT.
	HTTPWriteTimeout time.Duration `env:"HTTP_WRITE_TIMEOUT" envDefault:"30s" min:"1ms"`
	// How long a kept-alive HTTP connection may rest between requests.
	HTTPIdleTimeout time.Duration `env:"HTTP_IDLE_TIMEOUT" envDefault:"2m" min:"1ms"`
	// Descriptors of one request; more are refused with INVALID_ARGUMENT or 400.
	MaxDescriptors int `env:"MAX_DESCRIPTORS" envDefault:"256" min:"1"`
	// Entries of one descriptor; more are refused.
	MaxEntries int `env:"MAX_ENTRIES" envDefault:"64" min:"1"`
	// Bytes of one domain, key or value; more are refused. Envoy's headers hold at most 60 KiB.
	MaxTextBytes int `env:"MAX_TEXT_BYTES" envDefault:"65536" min:"1"`
}

// Process is what concerns the process as a whole.
type Process struct {
	// panic, fatal, error, warn (or warning), info, debug or trace, in any case. debug and trace log ten requests a second, with values.
	LogLevel string `env:"LOG_LEVEL" envDefault:"WARN" oneof:"PANIC FATAL ERROR WARN WARNING INFO DEBUG TRACE" fold:"true"`
	// json: one object per line with @timestamp, @message and level; anything else: text.
	LogFormat string `env:"LOG_FORMAT" envDefault:"text"`
	// true: unhealthy until a configuration with at least one domain is loaded, and while one without is.
	HealthyWithConfig bool `env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" envDefault:"false"`
	// Pause between turning unhealthy on SIGTERM or SIGINT and closing the listeners: longer than the balancer's probe interval.
	DrainDelay time.Duration `env:"DRAIN_DELAY" envDefault:"0s" min:"0s"`
	// Time that calls in flight get after that; then they are cut. DRAIN_DELAY + DRAIN_TIMEOUT should be below the supervisor's patience (Kubernetes: 30s).
	DrainTimeout time.Duration `env:"DRAIN_TIMEOUT" envDefault:"15s" min:"0s"`
	// Heap, in bytes, below which the garbage collector rests; costs that much memory under load and saves a tenth of the CPU. 0: off. GOMEMLIMIT and the container's limit win.
	HeapFloor int64 `env:"HEAP_FLOOR_BYTES" envDefault:"67108864" min:"0"`
}

// Answer changes verdicts and answers.
type Answer struct {
	// true: every answer is OK; what would have been refused is counted.
	Shadow bool `env:"SHADOW_MODE" envDefault:"false"`
	// true: every rule is in quota mode: a request is over its limit only when all its descriptors are.
	Quota bool `env:"QUOTA_MODE" envDefault:"false"`
	// true: answers carry dynamic_metadata.
	DynamicMetadata bool `env:"RESPONSE_DYNAMIC_METADATA" envDefault:"false"`
	// Requests for a domain without rules: allow, or deny (every status OVER_LIMIT).
	UnknownDomain string `env:"UNKNOWN_DOMAIN" envDefault:"allow" oneof:"allow deny" fold:"true"`
	// true: answers ask Envoy to add headers that describe the limits, in LIMIT_RESPONSE_HEADERS_STYLE.
	Headers bool `env:"LIMIT_RESPONSE_HEADERS_ENABLED" envDefault:"false"`
	// legacy: the three headers named below; draft: RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11.
	HeadersStyle string `env:"LIMIT_RESPONSE_HEADERS_STYLE" envDefault:"legacy" oneof:"legacy draft" fold:"true"`
	// true: answers that are OVER_LIMIT carry Retry-After, with either style or with none.
	RetryAfter bool `env:"LIMIT_RETRY_AFTER_ENABLED" envDefault:"false"`
	// Header with the limit.
	LimitHeader string `env:"LIMIT_LIMIT_HEADER" envDefault:"RateLimit-Limit"`
	// Header with the hits that remain.
	RemainingHeader string `env:"LIMIT_REMAINING_HEADER" envDefault:"RateLimit-Remaining"`
	// Header with the seconds to the end of the window.
	ResetHeader string `env:"LIMIT_RESET_HEADER" envDefault:"RateLimit-Reset"`
}

// Load reads the environment. The report holds the warnings; the error lists every error found, and the config is not
// usable then.
func Load(environ []string) (c Config, r *settings.Report, err error) {
	r = settings.Load(&c, environ, settingNames)
	c.check(r)
	return c, r, r.Err()
}

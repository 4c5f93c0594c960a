package main

import "time"

// statsConfig is where statistics go (spec 2.7).
type statsConfig struct {
	// true: statistics are only shown at /stats; wins over all sinks.
	Disable bool `env:"DISABLE_STATS" envDefault:"false"`
	// true: plain statsd; false: JSON lines on standard output.
	Statsd bool `env:"USE_STATSD" envDefault:"true"`
	// The statsd server. While it is away counts are kept and nothing waits for it.
	Host string `env:"STATSD_HOST" envDefault:"localhost"`
	// Its port.
	Port int `env:"STATSD_PORT" envDefault:"8125" min:"1" max:"65535"`
	// tcp or udp, to the statsd server.
	Protocol string `env:"STATSD_PROTOCOL" envDefault:"tcp" oneof:"tcp udp" fold:"true"`
	// Pause between flushes of counters and gauges; times go out within a second.
	FlushInterval time.Duration `env:"STATS_FLUSH_INTERVAL" envDefault:"10s" min:"1ms"`
	// name:value,name:value put on every metric as `.__name=value`.
	ExtraTags map[string]string `env:"EXTRA_TAGS"`
	// Series whose names hold values of requests (detailed_metric, value_to_metric, overrides, unknown domains); beyond it they share one series named _overflow.
	MaxDynamicKeys int `env:"STATS_MAX_DYNAMIC_KEYS" envDefault:"10000" min:"1"`
	// Such a series is forgotten after this long without a hit.
	DynamicIdle time.Duration `env:"STATS_DYNAMIC_IDLE" envDefault:"10m" min:"1s"`
}

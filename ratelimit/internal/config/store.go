package config

import (
	"time"

	"gatehouse/ratelimit/internal/counter/redis"
)

// Counting is how hits are counted, on every backend.
type Counting struct {
	// redis (or kvstore), memcache, or memory: counts of this process only. Unset: redis with KVSTORE_URL, memory without.
	Backend string `env:"BACKEND_TYPE" oneof:"redis kvstore memory memcache" fold:"true"`
	// Counters that the memory backend holds at most; then those least used against their limits are dropped, never one at its limit.
	MemoryMaxKeys int `env:"MEMORY_MAX_KEYS" envDefault:"1000000" min:"1"`
	// Bytes for the cache of counters that are over their limit, which spares the store their hits; 0: off; less than 524288 counts as that. All taken at start, at most 16 GiB.
	LocalCache int `env:"LOCAL_CACHE_SIZE_IN_BYTES" envDefault:"0" min:"0" max:"17179869184"`
	// A random number of seconds below this, and below a tenth of the window, is added to each key's time to live; 0 or less: none.
	JitterMax int64 `env:"EXPIRATION_JITTER_MAX_SECONDS" envDefault:"300"`
	// Share of a limit from which on hits count as near_limit.
	NearRatio float32 `env:"NEAR_LIMIT_RATIO" envDefault:"0.8" min:"0" max:"1"`
	// Put before every key, verbatim: separates deployments that share a store.
	KeyPrefix string `env:"CACHE_KEY_PREFIX"`
	// plain: keys as the replaced service writes them, so that both can share a store; escaped: unambiguous ones.
	KeyFormat string `env:"CACHE_KEY_FORMAT" envDefault:"plain" oneof:"plain escaped" fold:"true"`
	// true: when one descriptor of a request is over its limit, no counter of that request grows.
	StopWhenOver bool `env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" envDefault:"false"`
	// Answer while the store fails: error (Envoy's failure_mode_deny decides), allow or deny. A domain's on_store_failure wins.
	FailureMode string `env:"STORE_FAILURE_MODE" envDefault:"error" oneof:"error allow deny" fold:"true"`
	// Age of an unanswered batch at which the store counts as dead and callers are answered at once; 0: only KVSTORE_TIMEOUT or MCACHE_TIMEOUT counts.
	Stall time.Duration `env:"STORE_STALL" envDefault:"250ms" min:"0s"`
}

// KVStore is one key-value store; KVSTORE_PERSECOND_ is the same for limits per second.
type KVStore struct {
	// single: host:port, the path of a unix socket, or redis://[user:password@]host:port[/db] (rediss:// with TLS). sentinel: master,host:port[,host:port...]. cluster: host:port[,host:port...].
	URL string `env:"URL" secret:"url"`
	// tcp or unix; unset: what the URL looks like. sentinel and cluster are always tcp.
	SocketType string `env:"SOCKET_TYPE" oneof:"tcp unix" fold:"true"`
	// single: one server. sentinel: the master that sentinels name, followed when it changes. cluster: a Redis Cluster.
	Type string `env:"TYPE" envDefault:"single" oneof:"single sentinel cluster" fold:"true"`
	// password or user:password; wins over credentials in the URL. _AUTH_FILE reads it from a file.
	Auth string `env:"AUTH" secret:"true"`
	// true: TLS (1.2 or later) to every server, sentinels too; the KVSTORE_TLS_ files are those of both stores.
	TLS bool `env:"TLS" envDefault:"false"`
	// password or user:password of the sentinels, which KVSTORE_AUTH is not for. _SENTINEL_AUTH_FILE reads it from a file.
	SentinelAuth string `env:"SENTINEL_AUTH" secret:"true"`
	// Batches that may be in the store, or in one node of a cluster, at once, each on a connection of its own. A further one is used only when the others are busy.
	PoolSize int `env:"POOL_SIZE" envDefault:"10" min:"1"`
	// Bounds connecting, writing, reading, and calls without a deadline.
	Timeout time.Duration `env:"TIMEOUT" envDefault:"10s" min:"1ms"`
	// When all of POOL_SIZE are taken for ON_EMPTY_WAIT_DURATION: CREATE opens up to as many more, ERROR fails the call, WAIT goes on waiting.
	OnEmpty string `env:"POOL_ON_EMPTY_BEHAVIOR" envDefault:"CREATE" oneof:"CREATE ERROR WAIT" fold:"true"`
	// How long CREATE and ERROR wait for a free one first.
	OnEmptyWait time.Duration `env:"POOL_ON_EMPTY_WAIT_DURATION" envDefault:"1s" min:"0s"`
	// How long the first hits of a batch wait for others; 0: not at all, yet what arrives while a batch is under way goes together in the next. At most 1s, and shorter than TIMEOUT.
	PipelineWindow time.Duration `env:"PIPELINE_WINDOW" envDefault:"0s" min:"0s" max:"1s"`
	// No effect; kept so that old environments start.
	PipelineLimit int `env:"PIPELINE_LIMIT" envDefault:"0"`
	// Cluster only: how many nodes one request queries at the same time. 1: one after another; 0: all, as far as
	// POOL_SIZE goes; n: at most n.
	Parallelism int `env:"CLUSTER_PIPELINE_PARALLELISM" envDefault:"1" min:"0"`
}

// KVShared is what both stores share.
type KVShared struct {
	// true: limits per second are counted in a store of their own, which the KVSTORE_PERSECOND_ settings describe.
	PerSecond bool      `env:"KVSTORE_PERSECOND" envDefault:"false"`
	Files     ClientTLS `envPrefix:"KVSTORE_"`
	// true: unhealthy while no connection to the store, or to either of two, is up.
	HealthByConnection bool `env:"KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION" envDefault:"false"`
	// true: the listeners open when the store has answered; false: they open at once, the failure mode answers and the store is connected in the background.
	StartRequired bool `env:"KVSTORE_STARTUP_REQUIRED" envDefault:"true"`
	// First pause between tries to reach the store at start; it doubles.
	StartInitial time.Duration `env:"KVSTORE_STARTUP_INITIAL_INTERVAL" envDefault:"1s" min:"1ms"`
	// Longest such pause.
	StartMax time.Duration `env:"KVSTORE_STARTUP_MAX_INTERVAL" envDefault:"30s" min:"1ms"`
	// Exit after this; 0: never. No effect with KVSTORE_STARTUP_REQUIRED=false.
	StartMaxElapsed time.Duration `env:"KVSTORE_STARTUP_MAX_ELAPSED_TIME" envDefault:"0s" min:"0s"`
}

// backends that Counting.Backend names after check.
const (
	BackendKVStore  = "redis"
	BackendMemcache = "memcache"
	BackendMemory   = "memory"
)

// WantsTLS says whether the store's servers are spoken to over TLS.
func (k KVStore) WantsTLS() bool { return k.TLS || redis.WantsTLS(k.URL) }

// KVStoreOptions is one store's settings in the store's own words.
func (c *Config) KVStoreOptions(k KVStore) redis.Options {
	onEmpty, _ := redis.ParseOnEmpty(k.OnEmpty) // one of the three, as its tag says
	return redis.Options{
		URL: k.URL, SocketType: k.SocketType, Auth: k.Auth,
		Type: k.Type, SentinelAuth: k.SentinelAuth, Parallelism: k.Parallelism,
		PoolSize: k.PoolSize, Timeout: k.Timeout,
		OnEmpty: onEmpty, OnEmptyWait: never(k.OnEmptyWait, time.Nanosecond),
		PipelineWindow: k.PipelineWindow, JitterMax: c.Counting.JitterMax,
		Stall:        never(c.Counting.Stall, -1),
		StartInitial: c.KVShared.StartInitial, StartMax: c.KVShared.StartMax, StartMaxElapsed: c.KVShared.StartMaxElapsed,
	}
}

// never puts what a package understands for the operator's 0, where its own 0 means the default.
func never(d, zero time.Duration) time.Duration {
	if d == 0 {
		return zero
	}
	return d
}

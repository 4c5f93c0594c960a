package config

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"gatehouse/ratelimit/internal/counter/memcached"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/counter/redis"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/shared/certs"
	"gatehouse/shared/settings"
)

// Counting has the settings of how hits are counted, in whatever store.
type Counting struct {
	// redis (or kvstore), memcache, or memory: counts of this process only. Unset: redis with
	// KVSTORE_URL, memory without.
	Backend string `env:"BACKEND_TYPE" oneof:"redis kvstore memory memcache" fold:"true"`
	Memory  memory.Settings
	// Bytes for a cache of counters that are over their limit: hits on them need no call of the store. 0: off; less
	// than 524288 counts as 524288. Allocated at start, at most 16 GiB.
	LocalCache int `env:"LOCAL_CACHE_SIZE_IN_BYTES" envDefault:"0" min:"0" max:"17179869184"`
	// A random number of seconds below this, and below a tenth of the window, is added to each key's time
	// to live; 0 or less: none.
	JitterMax int64 `env:"EXPIRATION_JITTER_MAX_SECONDS" envDefault:"300"`
	Limits    limits.Settings
	// plain: keys as envoyproxy/ratelimit writes them, so that both can share a store; escaped: unambiguous ones.
	KeyFormat string `env:"CACHE_KEY_FORMAT" envDefault:"plain" oneof:"plain escaped" fold:"true"`
	// Answer while the store fails: error (Envoy's failure_mode_deny decides), allow or deny. A
	// domain's on_store_failure wins.
	FailureMode string `env:"STORE_FAILURE_MODE" envDefault:"error" oneof:"error allow deny" fold:"true"`
	// Age of an unanswered batch at which the store counts as dead and callers are answered at once; 0: only
	// KVSTORE_TIMEOUT or MCACHE_TIMEOUT counts.
	Stall time.Duration `env:"STORE_STALL" envDefault:"250ms" min:"0s"`
}

// KVStore has the settings of one key-value store. The variables begin with KVSTORE_ or, for the store of limits per
// second, with KVSTORE_PERSECOND_.
type KVStore struct {
	Store redis.Settings
	// true: TLS (1.2 or later) to every server, sentinels too; both stores use the files of the KVSTORE_TLS_ settings.
	TLS bool `env:"TLS" envDefault:"false"`
	// When all POOL_SIZE connections are busy for POOL_ON_EMPTY_WAIT_DURATION: CREATE opens up to as many more, ERROR
	// fails the call, WAIT goes on waiting.
	OnEmpty string `env:"POOL_ON_EMPTY_BEHAVIOR" envDefault:"CREATE" oneof:"CREATE ERROR WAIT" fold:"true"`
	// How long POOL_ON_EMPTY_BEHAVIOR=CREATE or ERROR first waits for a free connection.
	OnEmptyWait time.Duration `env:"POOL_ON_EMPTY_WAIT_DURATION" envDefault:"1s" min:"0s"`
	// No effect; kept so that old environments start.
	PipelineLimit int `env:"PIPELINE_LIMIT" envDefault:"0"`
}

// KVShared has the settings that both key-value stores share.
type KVShared struct {
	// true: limits per second are counted in a store of their own, which the KVSTORE_PERSECOND_ settings describe.
	PerSecond bool      `env:"KVSTORE_PERSECOND" envDefault:"false"`
	Files     ClientTLS `envPrefix:"KVSTORE_"`
	// true: unhealthy while no connection to the store, or to either of two, is up.
	HealthByConnection bool `env:"KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION" envDefault:"false"`
	// true: the listeners open when the store has answered; false: they open at once, and until the store is connected,
	// STORE_FAILURE_MODE decides the answers.
	StartRequired bool `env:"KVSTORE_STARTUP_REQUIRED" envDefault:"true"`
	Start         redis.StartSettings
}

// The values that Counting.Backend has after check.
const (
	BackendKVStore  = "redis"
	BackendMemcache = "memcache"
	BackendMemory   = "memory"
)

// WantsTLS reports whether connections to the servers of the store use TLS.
func (k KVStore) WantsTLS() bool { return k.TLS || redis.WantsTLS(k.Store.URL) }

// KVStoreOptions returns the settings of one key-value store as package redis takes them.
func (c *Config) KVStoreOptions(k KVStore) redis.Options {
	return redis.Options{
		Settings: k.Store, Start: c.KVShared.Start, OnEmpty: redis.OnEmpty(k.OnEmpty),
		// cmp.Or turns an operator's 0 into a value of the same effect, since a 0 in Options means the default.
		OnEmptyWait: cmp.Or(k.OnEmptyWait, time.Nanosecond), Stall: cmp.Or(c.Counting.Stall, -1),
		JitterMax: c.Counting.JitterMax,
	}
}

// MCache has the settings of the memcached nodes.
type MCache struct {
	Store memcached.Settings
	// true: TLS (1.2 or later) to every node.
	TLS   bool `env:"TLS" envDefault:"false"`
	Files ClientTLS
}

// ClientTLS has the settings that name the certificate files for connections to a store.
type ClientTLS struct {
	// PEM file with the certificate that is presented to servers; needs TLS_CLIENT_KEY, under the same prefix. Read
	// again when it changes.
	Cert string `env:"TLS_CLIENT_CERT"`
	// PEM file with the private key of the client certificate; read again when it changes.
	Key string `env:"TLS_CLIENT_KEY"`
	// PEM file with roots that servers' certificates may lead to, in addition to the system's; read again when it
	// changes.
	CA string `env:"TLS_CACERT"`
	// true: a server's certificate may be for any name; it must lead to a root all the same.
	SkipName bool `env:"TLS_SKIP_HOSTNAME_VERIFICATION" envDefault:"false"`
}

func (t ClientTLS) Files() certs.Files {
	return certs.Files{Cert: t.Cert, Key: t.Key, CA: t.CA, SystemRoots: true}
}

// check checks the settings and files for TLS to a store, whose names begin with prefix. on is set if some connection
// uses TLS; otherwise check warns, with the text need, that the files have no effect.
func (t ClientTLS) check(r *settings.Report, prefix string, on bool, need string) {
	if on {
		checkFiles(r, t.Files(), prefix+"TLS_CLIENT_CERT", prefix+"TLS_CLIENT_KEY", prefix+"TLS_CACERT")
		return
	}
	noEffect(r, []string{prefix + "TLS_CLIENT_CERT", prefix + "TLS_CLIENT_KEY", prefix + "TLS_CACERT",
		prefix + "TLS_SKIP_HOSTNAME_VERIFICATION"}, "without "+need)
}

// checkMemcache checks the settings of memcached, even if another backend is chosen.
func (c *Config) checkMemcache(r *settings.Report) {
	m := c.MCache
	for i, node := range m.Store.Nodes {
		if err := memcached.CheckNode(node); err != nil {
			r.Clash("%s: item %d: %v", r.Spelled("MCACHE_HOST_PORT"), i+1, err)
		}
	}
	if err := memcached.CheckSRV(m.Store.SRV); err != nil && m.Store.SRV != "" {
		r.Wrong("MCACHE_SRV", "%v", err)
	}
	if c.Counting.Backend != BackendMemcache {
		idle := slices.DeleteFunc(r.Names(), func(name string) bool { return !strings.HasPrefix(name, "MCACHE_") })
		noEffect(r, idle, "without BACKEND_TYPE=memcache")
		return
	}
	switch {
	case len(m.Store.Nodes) > 0 && m.Store.SRV != "":
		r.Clash("MCACHE_HOST_PORT and MCACHE_SRV are both set: keep one")
	case len(m.Store.Nodes) == 0 && m.Store.SRV == "":
		r.Wrong("BACKEND_TYPE", "needs MCACHE_HOST_PORT or MCACHE_SRV, and neither is set")
	}
	if m.Store.SRV == "" && m.Store.Refresh > 0 {
		r.Warn("MCACHE_SRV_REFRESH has no effect without MCACHE_SRV")
	}
	if err := memcached.CheckPrefix(c.Counting.Limits.KeyPrefix); err != nil && c.Counting.KeyFormat == "plain" {
		r.Wrong("CACHE_KEY_PREFIX", "memcached would take no key: %v; CACHE_KEY_FORMAT=escaped hashes such keys", err)
	}
	if m.TLS && slices.ContainsFunc(m.Store.Nodes, func(node string) bool { return strings.Contains(node, "/") }) {
		r.Clash("MCACHE_TLS=true needs host:port in MCACHE_HOST_PORT, not the path of a unix socket")
	}
	m.Files.check(r, "MCACHE_", m.TLS, "MCACHE_TLS=true")
}

// MemcacheOptions returns the settings of the memcached nodes as package memcached takes them.
func (c *Config) MemcacheOptions() memcached.Options {
	return memcached.Options{
		Settings: c.MCache.Store, HashKeys: c.Counting.KeyFormat == "escaped", JitterMax: c.Counting.JitterMax,
		Stall: cmp.Or(c.Counting.Stall, -1), // the operator's 0 means never, as -1 does in Options
	}
}

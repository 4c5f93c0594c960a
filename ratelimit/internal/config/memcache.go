package config

import (
	"slices"
	"strings"
	"time"

	"gatehouse/ratelimit/internal/counter/memcached"
	"gatehouse/shared/certs"
	"gatehouse/shared/settings"
)

// MCache is the memcached nodes.
type MCache struct {
	// host:port,host:port…, or paths of unix sockets. A key's node follows from their number and order: every instance must list the same.
	HostPort []string `env:"HOST_PORT"`
	// _service._proto.name of DNS SRV records that name the nodes, instead of MCACHE_HOST_PORT.
	SRV string `env:"SRV"`
	// Pause between look-ups of MCACHE_SRV; one that fails changes nothing. 0: only at start.
	SRVRefresh time.Duration `env:"SRV_REFRESH" envDefault:"0s" min:"0s"`
	// Connections to a node that stay open for look-ups, and how many of these are under way at once; less than 1 means 2.
	MaxIdleConns int `env:"MAX_IDLE_CONNS" envDefault:"2"`
	// Bounds connecting, each operation, and calls without a deadline.
	Timeout time.Duration `env:"TIMEOUT" envDefault:"500ms" min:"1ms"`
	// Counters whose hits may wait to be written; beyond it hits are answered, dropped and counted.
	QueueSize int `env:"QUEUE_SIZE" envDefault:"10000" min:"1"`
	// true: TLS (1.2 or later) to every node.
	TLS   bool `env:"TLS" envDefault:"false"`
	Files ClientTLS
}

// ClientTLS is what both ends of a connection to a store are shown.
type ClientTLS struct {
	// PEM file with the certificate that servers are shown; needs TLS_CLIENT_KEY, under the same prefix. Followed while the daemon runs.
	Cert string `env:"TLS_CLIENT_CERT"`
	// PEM file with its key; followed too.
	Key string `env:"TLS_CLIENT_KEY"`
	// PEM file with roots that servers' certificates may lead to, in addition to the system's; followed too.
	CA string `env:"TLS_CACERT"`
	// true: a server's certificate may be for any name; it must lead to a root all the same.
	SkipName bool `env:"TLS_SKIP_HOSTNAME_VERIFICATION" envDefault:"false"`
}

func (t ClientTLS) Files() certs.Files {
	return certs.Files{Cert: t.Cert, Key: t.Key, CA: t.CA, SystemRoots: true}
}

// check holds the files of a store's TLS to what can be used. on says that some connection
// speaks TLS; prefix is that of the settings.
func (t ClientTLS) check(r *settings.Report, prefix string, on bool, need string) {
	if on {
		checkFiles(r, t.Files(), prefix+"TLS_CLIENT_CERT", prefix+"TLS_CLIENT_KEY", prefix+"TLS_CACERT")
		return
	}
	noEffect(r, []string{prefix + "TLS_CLIENT_CERT", prefix + "TLS_CLIENT_KEY", prefix + "TLS_CACERT",
		prefix + "TLS_SKIP_HOSTNAME_VERIFICATION"}, "without "+need)
}

// checkMemcache checks the variables even where another backend is chosen.
func (c *Config) checkMemcache(r *settings.Report) {
	m := c.MCache
	for _, node := range m.HostPort {
		if err := memcached.CheckNode(node); err != nil {
			r.Wrong("MCACHE_HOST_PORT", "%v", err)
		}
	}
	if m.SRV != "" {
		if err := memcached.CheckSRV(m.SRV); err != nil {
			r.Wrong("MCACHE_SRV", "%v", err)
		}
	}
	if c.Counting.Backend != BackendMemcache {
		idle := slices.DeleteFunc(r.Names(), func(name string) bool { return !strings.HasPrefix(name, "MCACHE_") })
		noEffect(r, idle, "without BACKEND_TYPE=memcache")
		return
	}
	switch {
	case len(m.HostPort) > 0 && m.SRV != "":
		r.Clash("MCACHE_HOST_PORT and MCACHE_SRV are both set: keep one")
	case len(m.HostPort) == 0 && m.SRV == "":
		r.Wrong("BACKEND_TYPE", "needs MCACHE_HOST_PORT or MCACHE_SRV, and neither is set")
	}
	if m.SRV == "" && m.SRVRefresh > 0 {
		r.Warn("MCACHE_SRV_REFRESH has no effect without MCACHE_SRV")
	}
	if err := memcached.CheckPrefix(c.Counting.KeyPrefix); err != nil && c.Counting.KeyFormat == "plain" {
		r.Wrong("CACHE_KEY_PREFIX", "memcached would take no key: %v; CACHE_KEY_FORMAT=escaped hashes such keys", err)
	}
	if m.TLS && slices.ContainsFunc(m.HostPort, func(node string) bool { return strings.Contains(node, "/") }) {
		r.Clash("MCACHE_TLS=true needs host:port in MCACHE_HOST_PORT, not the path of a unix socket")
	}
	m.Files.check(r, "MCACHE_", m.TLS, "MCACHE_TLS=true")
}

// MemcacheOptions is the nodes' settings in the store's own words.
func (c *Config) MemcacheOptions() memcached.Options {
	m := c.MCache
	return memcached.Options{
		Nodes: m.HostPort, SRV: m.SRV, Refresh: m.SRVRefresh, MaxIdleConns: m.MaxIdleConns,
		Timeout: m.Timeout, QueueSize: m.QueueSize, HashKeys: c.Counting.KeyFormat == "escaped",
		JitterMax: c.Counting.JitterMax, Stall: never(c.Counting.Stall, -1),
	}
}

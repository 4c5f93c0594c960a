package config

import (
	"cmp"
	"slices"
	"strings"

	"gatehouse/ratelimit/internal/counter/memcached"
	"gatehouse/shared/certs"
	"gatehouse/shared/settings"
)

// MCache is the settings of the memcached nodes.
type MCache struct {
	Store memcached.Settings
	// true: TLS (1.2 or later) to every node.
	TLS   bool `env:"TLS" envDefault:"false"`
	Files ClientTLS
}

// ClientTLS names the certificates for connections to a store.
type ClientTLS struct {
	// PEM file with the certificate that servers are shown; needs TLS_CLIENT_KEY, under the same prefix.
	// Followed while the daemon runs.
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

// check checks the files of a store's TLS. on reports that some connection uses TLS; prefix begins the settings.
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
	for _, node := range m.Store.Nodes {
		if err := memcached.CheckNode(node); err != nil {
			r.Wrong("MCACHE_HOST_PORT", "%v", err)
		}
	}
	if m.Store.SRV != "" {
		if err := memcached.CheckSRV(m.Store.SRV); err != nil {
			r.Wrong("MCACHE_SRV", "%v", err)
		}
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

// MemcacheOptions returns the nodes' settings as options of the store.
func (c *Config) MemcacheOptions() memcached.Options {
	m := c.MCache
	return memcached.Options{
		Settings:  m.Store,
		HashKeys:  c.Counting.KeyFormat == "escaped",
		JitterMax: c.Counting.JitterMax, Stall: cmp.Or(c.Counting.Stall, -1), // the operator's 0 means never
	}
}

package daemon

import (
	"crypto/tls"
	"fmt"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/grpctls"
	"gatehouse/shared/certs"
)

// openCerts reads the files for the gRPC listener's TLS and follows them until closed is called.
func (d *daemon) openCerts() (closed func(), err error) {
	c := d.config.TLS
	if !c.On {
		return func() {}, nil
	}
	store, err := certs.Open(c.Files(), d.log)
	if err != nil {
		return nil, fmt.Errorf("GRPC_SERVER_USE_TLS: %w", err)
	}
	d.tls = store.Server(c.ClientSAN, grpctls.Protocol)
	d.certStats("ratelimit_server.tls", store, true)
	d.stats.CounterFunc("certs.load_attempts", func() uint64 { return store.State().Reads })
	d.stats.CounterFunc("certs.load_failures", func() uint64 { return store.State().Refused })
	files := int64(2)
	if c.ClientCA != "" {
		files = 3
	}
	d.stats.GaugeFunc("certs.num_values", func() int64 { return files })
	return store.Close, nil
}

// openClientCerts reads the certificates that a store's servers are trusted by and those shown to them, and follows the
// files until closeStore. It is called once: two key-value stores share the files.
func (d *daemon) openClientCerts(t config.ClientTLS) (config func(host string) *tls.Config, err error) {
	store, err := certs.Open(t.Files(), d.log)
	if err != nil {
		return nil, err
	}
	d.opened = append(d.opened, store.Close)
	d.certStats("ratelimit.store.tls", store, t.Cert != "")
	return func(host string) *tls.Config { return store.Client(host, t.SkipName) }, nil
}

// certStats adds statistics below prefix on followed files: when this daemon's certificate ends, if there is one, and
// whether newer files are refused.
func (d *daemon) certStats(prefix string, store *certs.Store, certificate bool) {
	if certificate {
		d.stats.GaugeFunc(prefix+".certificate_ends_at", func() int64 { return store.State().NotAfter.Unix() })
	}
	d.stats.FlagFunc(prefix+".files_rejected", func() bool { return store.State().Error != "" })
}

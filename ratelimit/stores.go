package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/shared/certs"
)

// srvResolver looks MCACHE_SRV up; tests have their own.
var srvResolver = net.DefaultResolver

// openMemcache looks up the nodes if their names come from DNS; none is connected to yet (spec 1.2).
func (d *daemon) openMemcache(ctx context.Context) (counter.Store, error) {
	o := d.config.memcache()
	o.Log, o.Resolver = d.log, srvResolver
	var closeCerts func()
	if d.config.MCache.TLS {
		var err error
		if o.TLS, closeCerts, err = d.openClientCerts(d.config.MCache.Files); err != nil {
			return nil, fmt.Errorf("MCACHE_TLS: %w", err)
		}
	}
	m, err := counter.NewMemcache(ctx, o)
	if err != nil {
		if closeCerts != nil {
			closeCerts()
		}
		return nil, fmt.Errorf("MCACHE_SRV=%s: %w", o.SRV, err)
	}
	d.memcacheStats(m)
	if closeCerts == nil {
		return m, nil
	}
	return &storeWithCerts{m, closeCerts}, nil
}

// memcacheStats has the store's figures in the statistics: the first ones in the words of the replaced
// service (spec 7.2).
func (d *daemon) memcacheStats(m *counter.Memcache) {
	st := m.Stats()
	for name, read := range map[string]func() uint64{
		"multiget.__code=success":  st.Multiget.Success.Load,
		"multiget.__code=error":    st.Multiget.Error.Load,
		"increment.__code=success": st.Increment.Success.Load,
		"increment.__code=miss":    st.Increment.Miss.Load,
		"increment.__code=error":   st.Increment.Error.Load,
		"add.__code=success":       st.Add.Success.Load,
		"add.__code=not_stored":    st.Add.NotStored.Load,
		"add.__code=error":         st.Add.Error.Load,
		"keys_requested":           st.KeysRequested.Load,
		"keys_found":               st.KeysFound.Load,
		"hits_dropped":             m.Dropped,
		"resolve_error":            st.ResolveFailures.Load,
		"cx_total":                 func() uint64 { return uint64(m.TotalConns()) },
		"cx_local_close":           func() uint64 { return uint64(m.LocalCloses()) },
	} {
		d.stats.CounterFunc("ratelimit.memcache."+name, read)
	}
	for name, read := range map[string]func() int64{
		"queue":      m.Waiting,
		"nodes":      func() int64 { all, _ := m.Nodes(); return all },
		"nodes_lost": func() int64 { _, lost := m.Nodes(); return lost },
		"cx_active":  m.ActiveConns,
	} {
		d.stats.GaugeFunc("ratelimit.memcache."+name, read)
	}
}

// openClientCerts reads what a store's servers are believed by and shown, and follows the files until
// closed is called.
func (d *daemon) openClientCerts(t outwardTLS) (config func(host string) *tls.Config, closed func(), err error) {
	store, err := certs.Open(t.files(), d.log)
	if err != nil {
		return nil, nil, err
	}
	return func(host string) *tls.Config { return store.Client(host, t.SkipName) }, store.Close, nil
}

// storeWithCerts is a store that closes its certificate files after itself.
type storeWithCerts struct {
	counter.Store
	closeCerts func()
}

func (s *storeWithCerts) Close() {
	s.Store.Close()
	s.closeCerts()
}

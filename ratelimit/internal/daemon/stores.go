package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memcached"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/counter/redis"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/stats"
)

// openStore opens the configured store. Call closeStore afterwards, even if openStore returns an error.
func (d *daemon) openStore(ctx context.Context) (counter.Store, error) {
	if d.config.Counting.Backend == config.BackendMemory {
		evicted := d.stats.Counter("ratelimit.memory.evicted")
		m := memory.New(memory.Options{Settings: d.config.Counting.Memory, Evicted: evicted.Inc})
		d.stats.GaugeFunc("ratelimit.memory.keys", func() int64 { return int64(m.Len()) })
		return m, nil
	}
	if d.config.Counting.Backend == config.BackendMemcache {
		return d.openMemcache(ctx)
	}
	return d.openKVStores(ctx)
}

// closeStore closes everything that openStore has opened, in the opposite order.
func (d *daemon) closeStore() {
	for _, end := range slices.Backward(d.opened) {
		end()
	}
}

// openMemcache opens the memcached store. It looks up the nodes if their names come from DNS, but connects to none yet.
func (d *daemon) openMemcache(ctx context.Context) (_ counter.Store, err error) {
	o := d.config.MemcacheOptions()
	o.Log, o.Resolver = d.log, d.resolver
	if d.config.MCache.TLS {
		if o.TLS, err = d.openClientCerts(d.config.MCache.Files); err != nil {
			return nil, fmt.Errorf("%s: %w", d.report.Spelled("MCACHE_TLS"), err)
		}
	}
	m, err := memcached.New(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.report.Shown("MCACHE_SRV"), err)
	}
	d.opened = append(d.opened, m.Close)
	d.memcacheStats(m)
	return m, nil
}

// memcacheStats adds the store's metrics to the statistics. The first metrics have the names that envoyproxy/ratelimit
// gives them, since dashboards exist for these names.
func (d *daemon) memcacheStats(m *memcached.Store) {
	st := m.Stats()
	for name, codes := range map[string]map[string]func() uint64{
		"multiget": {"success": st.Multiget.Success.Load, "error": st.Multiget.Error.Load},
		"increment": {"success": st.Increment.Success.Load, "miss": st.Increment.Miss.Load,
			"error": st.Increment.Error.Load},
		"add": {"success": st.Add.Success.Load, "not_stored": st.Add.NotStored.Load, "error": st.Add.Error.Load},
	} {
		for code, read := range codes {
			d.stats.CounterFunc("ratelimit.memcache."+name, read, stats.Tag{Name: "code", Value: code})
		}
	}
	for name, read := range map[string]func() uint64{
		"keys_requested": st.KeysRequested.Load,
		"keys_found":     st.KeysFound.Load,
		"hits_dropped":   m.Dropped,
		"resolve_error":  st.ResolveFailures.Load,
		"cx_total":       func() uint64 { return uint64(m.TotalConns()) },
		"cx_local_close": func() uint64 { return uint64(m.LocalCloses()) },
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

// openKVStores connects to the key-value store for limits per second, if there is one, and then to the main store.
func (d *daemon) openKVStores(ctx context.Context) (_ counter.Store, err error) {
	c := d.config
	var config func(host string) *tls.Config
	if c.KVStore.WantsTLS() || c.KVShared.PerSecond && c.PerSecond.WantsTLS() {
		if config, err = d.openClientCerts(c.KVShared.Files); err != nil {
			return nil, fmt.Errorf("%s: %w", d.report.Spelled("KVSTORE_TLS"), err)
		}
	}
	var perSecond redis.Store
	if c.KVShared.PerSecond {
		if perSecond, err = d.openKV(ctx, "KVSTORE_PERSECOND_URL", c.PerSecond, config); err != nil {
			return nil, err
		}
		d.poolStats("redis_per_second_pool", perSecond)
	}
	main, err := d.openKV(ctx, "KVSTORE_URL", c.KVStore, config)
	if err != nil {
		return nil, err
	}
	d.poolStats("redis_pool", main)
	d.store = func() bool { return !main.Open() }
	if c.KVShared.HealthByConnection {
		d.health.Watch(server.StoreLink, func() bool {
			return main.ActiveConns() > 0 && (perSecond == nil || perSecond.ActiveConns() > 0)
		})
	}
	if perSecond != nil {
		return counter.NewPerSecondRouter(main, perSecond), nil
	}
	return main, nil
}

// openKV connects to one key-value store; in the background, unless KVSTORE_STARTUP_REQUIRED is true. setting is the
// name of the setting that has its address, for error messages.
func (d *daemon) openKV(ctx context.Context, setting string, k config.KVStore,
	config func(host string) *tls.Config) (redis.Store, error) {
	o := d.config.KVStoreOptions(k)
	o.Log, o.Skew = d.log.With("store", setting), d.observeSkew
	if k.WantsTLS() {
		o.TLS = config
	}
	open := redis.Open
	if !d.config.KVShared.StartRequired {
		open = func(_ context.Context, o redis.Options) (redis.Store, error) { return redis.Connect(o) }
	}
	kv, err := open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.report.Shown(setting), err)
	}
	d.opened = append(d.opened, kv.Close)
	return kv, nil
}

// observeSkew records the difference between this host's clock and a server's in a gauge, which the first call for the
// server adds.
func (d *daemon) observeSkew(server string, offset time.Duration) {
	at, known := d.skews.LoadOrStore(server, new(atomic.Int64))
	ms := at.(*atomic.Int64)
	ms.Store(offset.Milliseconds())
	if !known {
		d.stats.GaugeFunc("ratelimit.store.clock_offset_ms", ms.Load, stats.Tag{Name: "server", Value: server})
	}
}

// poolStats adds metrics of a store's connections to the statistics, under the names that envoyproxy/ratelimit gives
// them.
func (d *daemon) poolStats(pool string, kv redis.Store) {
	pool = "ratelimit." + pool
	d.stats.GaugeFunc(pool+".cx_active", kv.ActiveConns)
	d.stats.CounterFunc(pool+".cx_total", func() uint64 { return uint64(kv.TotalConns()) })
	d.stats.CounterFunc(pool+".cx_local_close", func() uint64 { return uint64(kv.LocalCloses()) })
	d.stats.FlagFunc(pool+".breaker_open", kv.Open)
	d.stats.FlagFunc(pool+".breaker_flapping", kv.Flapping)
}

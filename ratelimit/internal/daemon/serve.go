// Package daemon makes one program of the rooms: it opens stores, rules, statistics and listeners from the settings,
// serves, and stops them in order.
package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/decide"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/pull"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/source/xds"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/buildinfo"
	"gatehouse/shared/memlimit"
	"gatehouse/shared/telemetry"
)

// Options are what the daemon takes from the program that starts it.
type Options struct {
	Environ        []string
	Stdout, Stderr io.Writer
	// Resolver looks up the names of memcached's nodes, MCACHE_SRV; nil: the resolver of the host.
	Resolver *net.Resolver
}

// Serve is the whole daemon: a straight line from settings to open listeners, a wait, and the same
// line back. Ending ctx stops it in any phase; a stop in order returns nil.
func Serve(ctx context.Context, o Options) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // never undone: it ends the daemon in no phase
	signal.Ignore(syscall.SIGPIPE)     // nor does whoever reads its log, or its statistics, by going away
	c, settings, err := config.Load(o.Environ)
	if err != nil {
		for _, w := range settings.Brief() { // a misspelled name is often why another setting is missing
			Report(o.Stderr, o.Environ, slog.LevelWarn, w)
		}
		return err
	}
	log := newLogger(o.Stderr, c.Process.LogLevel, c.Process.LogFormat)
	takeGRPCLog(log, o.Environ)
	for _, w := range settings.Brief() {
		log.Warn(w)
	}
	memlimit.KeepHeapFloor(c.Process.HeapFloor)

	d := &daemon{config: c, log: log, health: server.NewHealth(), hup: hup, resolver: o.Resolver}
	d.stats = stats.NewRegistry(stats.Options{
		MaxDynamicKeys: c.Stats.MaxDynamicKeys, MaxUnknownDomains: c.Stats.MaxUnknownDomains, DynamicIdle: c.Stats.DynamicIdle, ExtraTags: c.Stats.ExtraTags, Log: log,
	})
	d.stats.GoRuntime()
	d.makePage()
	stopStats := d.flushStats(o.Stdout)
	defer stopStats() // last of all, so that the final flush has everything
	stopTracing, err := d.startTracing(ctx)
	if err != nil {
		return err
	}
	defer stopTracing()

	d.makeService()
	closeCerts, err := d.openCerts()
	if err != nil {
		return err
	}
	defer closeCerts()

	var store counter.Store
	defer func() {
		if store != nil { // the debug port, which reads counters, ends before it
			store.Close()
		}
	}()

	// The debug port opens first, so that a store that does not answer and rules that are refused can be seen.
	listeners := &listeners{log: log}
	d.openDebug(ctx, listeners)
	defer listeners.stopDebug(c.Process.DrainTimeout)
	if err := d.openPage(ctx, listeners); err != nil {
		return err
	}

	stopSource, loaded, err := d.watchRules(ctx)
	if err != nil {
		return err
	}
	defer stopSource()

	if store, err = d.openStore(ctx); err != nil {
		return stopped(ctx, err)
	}
	d.service.SetStore(d.traceStore(store))
	if !c.Rules.ForceStart && !d.awaitRules(ctx, loaded) {
		return nil
	}

	if err := d.openListeners(ctx, listeners); err != nil {
		return err
	}
	defer d.remindOfRules(ctx, loaded, rulesPatience, time.Minute)()
	d.health.Set(server.Running, true)
	log.Info("ready", "version", buildinfo.Version("ratelimit"), "grpc", addrOf(listeners.grpcAt), "http", addrOf(listeners.httpAt), "debug", addrOf(listeners.debugAt), "pullmetrics", addrOf(listeners.pageAt))

	select {
	case <-ctx.Done():
		d.drain(listeners)
		return nil
	case err := <-listeners.failed:
		d.drain(listeners)
		return err
	}
}

// rulesPatience is how long the first valid rules may take without a word in the log.
const rulesPatience = 2 * time.Second

// remindOfRules warns that nothing is decided while there are no rules yet: after first, and then every so
// often until loaded is closed or stop is called.
func (d *daemon) remindOfRules(ctx context.Context, loaded <-chan struct{}, first, every time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for pause := first; ; pause = every {
			select {
			case <-loaded:
				return
			case <-ctx.Done():
				return
			case <-time.After(pause):
				d.log.Warn("no rules yet: every decision is UNAVAILABLE until a first valid set is loaded", "source", d.config.Rules.Type)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// awaitRules waits for the first valid rules, and says so when that takes long; false: the daemon was told
// to stop first.
func (d *daemon) awaitRules(ctx context.Context, loaded <-chan struct{}) bool {
	patience := time.NewTimer(rulesPatience)
	defer patience.Stop()
	for {
		select {
		case <-loaded:
			return true
		case <-ctx.Done():
			return false
		case <-patience.C:
			d.log.Warn("still no valid rules: the gRPC and HTTP listeners open with the first (FORCE_START_WITHOUT_INITIAL_CONFIG)")
		}
	}
}

// stopped is nil when err only says that the daemon was told to stop.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// daemon is what the steps of serve share.
type daemon struct {
	config   config.Config
	log      *slog.Logger
	resolver *net.Resolver // of MCACHE_SRV; nil: the host's
	stats    *stats.Registry
	health   *server.Health
	hup      <-chan os.Signal
	service  *service.Service
	loader   *service.Loader
	tls      *tls.Config // of the gRPC listener; nil: none
	plane    atomic.Pointer[xds.Client]

	draining atomic.Bool

	tracing        *telemetry.Tracing // nil: off
	traceListeners *server.Tracing    // the same
	page           *pull.Page         // of pull metrics; nil: none
}

// flushStats starts the flush loop. The function it returns flushes once more and waits for that,
// for a bounded time.
func (d *daemon) flushStats(stdout io.Writer) (stop func()) {
	c := d.config.Stats
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { d.stats.Run(ctx, d.sink(stdout), c.FlushInterval) })
	return func() {
		cancel()
		wg.Wait()
	}
}

func (d *daemon) sink(stdout io.Writer) stats.Sink {
	c := d.config.Stats
	address := net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
	switch {
	case c.Disable:
		return nil
	case c.Tagged && c.Protocol == "tcp":
		return stats.NewTaggedTCP(address, c.Patterns(), d.log)
	case c.Tagged:
		return stats.NewTaggedUDP(address, c.Patterns(), d.log)
	case c.Statsd && c.Protocol == "udp":
		return stats.NewStatsdUDP(address, d.log)
	case c.Statsd:
		return stats.NewStatsdTCP(address, d.log)
	case c.Pull:
		return nil
	default:
		return stats.NewLines(stdout)
	}
}

// makePage makes the page of pull metrics, if there is to be one. It reads the counters themselves, so
// it and another sink each get everything.
func (d *daemon) makePage() {
	c := d.config.Stats
	if c.Pull && !c.Disable {
		build := buildinfo.Read()
		d.page = pull.New(pull.Options{
			Stats: d.stats, Mapping: c.Mapping(), Milliseconds: c.Milliseconds, Log: d.log,
			Build: []stats.Tag{{Name: "goversion", Value: build.Go}, {Name: "revision", Value: build.Revision}, {Name: "version", Value: build.Version}},
		})
	}
}

func (d *daemon) openStore(ctx context.Context) (counter.Store, error) {
	if d.config.Counting.Backend == config.BackendMemory {
		evicted := d.stats.Counter("ratelimit.memory.evicted")
		m := memory.New(memory.Options{MaxKeys: d.config.Counting.MemoryMaxKeys, Evicted: evicted.Inc})
		d.stats.GaugeFunc("ratelimit.memory.keys", func() int64 { return int64(m.Len()) })
		return m, nil
	}
	if d.config.Counting.Backend == config.BackendMemcache {
		return d.openMemcache(ctx)
	}
	return d.openKVStores(ctx)
}

func (d *daemon) makeService() {
	c := d.config
	mode, _ := limits.ParseFailureMode(c.Counting.FailureMode) // one of the three, as its tag says
	o := service.Options{
		Stats: d.stats, Log: d.log,
		GlobalShadow: c.Answer.Shadow, GlobalQuota: c.Answer.Quota, StopWhenOver: c.Counting.StopWhenOver,
		DenyUnknown: c.Answer.UnknownDomain == "deny", DynamicMetadata: c.Answer.DynamicMetadata, OnStoreFailure: mode,
		CountNoMatch: c.Stats.NoMatch,
		Caps:         service.Caps{Descriptors: c.Listen.MaxDescriptors, Entries: c.Listen.MaxEntries, TextBytes: c.Listen.MaxTextBytes},
	}
	if c.Answer.Headers {
		o.Headers = &decide.HeaderNames{Limit: c.Answer.LimitHeader, Remaining: c.Answer.RemainingHeader, Reset: c.Answer.ResetHeader}
	}
	if d.tracing != nil {
		o.Tracer, o.TraceRequests = d.tracing.Tracer("ratelimit"), c.Tracing.RequestText
	}
	if c.Counting.LocalCache > 0 {
		o.OverLimit = overlimit.New(c.Counting.LocalCache)
		d.localCacheGauges(o.OverLimit)
	}
	d.service = service.New(o)

	if c.Process.HealthyWithConfig {
		d.health.Set(server.Rules, false)
	}
	d.loader = service.NewLoader(d.service, limits.Options{
		KeyPrefix: c.Counting.KeyPrefix, EscapedKeys: c.Counting.KeyFormat == "escaped",
		NearRatio: c.Counting.NearRatio, MergeDomains: c.Rules.MergeDomains,
	}, d.log, func(domains int) {
		if c.Process.HealthyWithConfig {
			d.health.Set(server.Rules, domains > 0)
		}
	})
}

func (d *daemon) localCacheGauges(o *overlimit.Cache) {
	for name, read := range map[string]func(overlimit.Stats) int64{
		"evacuateCount":     func(s overlimit.Stats) int64 { return s.EvacuateCount },
		"expiredCount":      func(s overlimit.Stats) int64 { return s.ExpiredCount },
		"entryCount":        func(s overlimit.Stats) int64 { return s.EntryCount },
		"averageAccessTime": func(s overlimit.Stats) int64 { return s.AverageAccessTime },
		"hitCount":          func(s overlimit.Stats) int64 { return s.HitCount },
		"missCount":         func(s overlimit.Stats) int64 { return s.MissCount },
		"lookupCount":       func(s overlimit.Stats) int64 { return s.LookupCount },
		"overwriteCount":    func(s overlimit.Stats) int64 { return s.OverwriteCount },
	} {
		d.stats.GaugeFunc("ratelimit.localcache."+name, func() int64 { return read(o.Stats()) })
	}
}

// drain stops taking work in the order that balancers need: unhealthy first, then a pause for them to
// notice, then GOAWAY and a bounded wait for what is in flight.
func (d *daemon) drain(l *listeners) {
	start := time.Now()
	d.draining.Store(true)
	d.health.Set(server.Running, false)
	d.log.Info("stopping", "delay", d.config.Process.DrainDelay, "timeout", d.config.Process.DrainTimeout)
	time.Sleep(d.config.Process.DrainDelay)
	d.health.EndStreams()
	if cut := l.stop(d.config.Process.DrainTimeout); cut {
		d.log.Warn("calls were cut: they took longer than DRAIN_TIMEOUT", "timeout", d.config.Process.DrainTimeout)
	}
	d.log.Info("stopped", "took", time.Since(start))
}

// Package daemon composes the daemon from the other packages: it opens stores, rules, statistics and listeners as the
// settings say, serves, and shuts down cleanly.
package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/overlimit"
	"gatehouse/ratelimit/internal/promexport"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/source/xds"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/buildinfo"
	"gatehouse/shared/memlimit"
	"gatehouse/shared/sdnotify"
	"gatehouse/shared/settings"
	"gatehouse/shared/telemetry"
)

// Options are the inputs of the daemon from the program that starts it.
type Options struct {
	Environ        []string
	Stdout, Stderr io.Writer
	// Resolver looks up the names of memcached's nodes (MCACHE_SRV); nil means the resolver of the host.
	Resolver *net.Resolver
}

// Serve runs the whole daemon. It starts everything, from the settings to the listeners, waits, and stops everything in
// the opposite order. When ctx ends, Serve stops in whatever phase it is; after a clean shutdown it returns nil.
func Serve(ctx context.Context, o Options) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // never undone, because SIGHUP must not end the daemon in any phase
	signal.Ignore(syscall.SIGPIPE)     // a closed pipe for the log or for statistics must not end it either
	d, err := newDaemon(o)
	if err != nil {
		return err
	}
	d.hup, d.manager = hup, sdnotify.New(o.Environ)
	started := d.manager.Wait("waiting for the store and the rules")
	defer started()
	stopStats := d.flushStats(o.Stdout)
	defer stopStats() // stopped last, so that the final flush includes everything
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

	defer d.closeStore() // after the debug port has ended, which reads counters

	// Open the debug port first, so that operators can see that a store does not answer or that rules are refused.
	listeners := &listeners{}
	d.openDebug(ctx, listeners)
	defer listeners.stopDebug(d.config.Process.DrainTimeout)
	if err := d.openPage(ctx, listeners); err != nil {
		return err
	}

	stopSource, loaded, err := d.watchRules(ctx)
	if err != nil {
		return err
	}
	defer stopSource()

	store, err := d.openStore(ctx)
	if err != nil {
		return stopped(ctx, err)
	}
	d.service.SetStore(d.traceStore(store))
	// Warn once, after rulesPatience.
	if !d.config.Rules.ForceStart && !awaitRules(ctx, loaded, rulesPatience, math.MaxInt64, func() {
		d.log.Warn("still no valid rules: the gRPC and HTTP listeners open with the first " +
			"(FORCE_START_WITHOUT_INITIAL_CONFIG)")
	}) {
		return nil
	}

	if err := d.openListeners(ctx, listeners); err != nil {
		return err
	}
	defer d.remindOfRules(ctx, loaded, rulesPatience, time.Minute)()
	d.health.Set(server.Running, true)
	started()
	return d.run(ctx, listeners)
}

// run serves until ctx ends or a listener fails, then drains.
func (d *daemon) run(ctx context.Context, l *listeners) (err error) {
	d.ready(ctx, l)
	d.manager.Ready(d.state())
	defer d.manager.Watch(d.state, func(ctx context.Context) error { return d.alive(ctx, l) })()
	select {
	case <-ctx.Done():
	case err = <-l.failed:
	}
	d.drain(l)
	return err
}

// ready logs that the daemon is running. It does so whatever LOG_LEVEL is, so that operators see it when they try the
// daemon.
func (d *daemon) ready(ctx context.Context, l *listeners) {
	rules := 0
	if r := d.service.Rules(); r != nil {
		rules = r.Count()
	}
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "ready", 0)
	line.Add("version", buildinfo.Version("ratelimit"), "grpc", addrOf(l.grpcAt), "http", addrOf(l.httpAt),
		"debug", addrOf(l.debugAt), "pullmetrics", addrOf(l.pageAt), "store", d.config.Counting.Backend,
		"rules", rules)
	if d.config.Stats.Assumed() {
		line.Add("statistics", d.statsd()+" (statsd's default; DISABLE_STATS=true sends none)")
	}
	d.log.Handler().Handle(ctx, line)
}

// newDaemon reads the settings and makes the log and the statistics, which need nothing but settings.
func newDaemon(o Options) (*daemon, error) {
	c, settings, err := config.Load(o.Environ)
	if err != nil {
		for _, w := range settings.Brief() { // the reason for the error may be a misspelled name, which is a warning
			Report(o.Stderr, o.Environ, slog.LevelWarn, w)
		}
		return nil, err
	}
	log := newLogger(o.Stderr, c.Process.LogLevel, c.Process.LogFormat)
	takeGRPCLog(log, o.Environ)
	for _, w := range settings.Brief() {
		log.Warn(w)
	}
	forPeers := memlimit.Limit() / 8 // before KeepHeapFloor lowers the limit
	memlimit.KeepHeapFloor(c.Process.HeapFloor)

	d := &daemon{config: c, report: settings, forPeers: forPeers, log: log, health: server.NewHealth(),
		resolver: o.Resolver}
	d.stats = stats.NewRegistry(stats.Options{Settings: c.Stats.Registry, Log: d.statsLog()})
	d.stats.GoRuntime()
	d.makePage()
	return d, nil
}

// stopped returns nil if err only says that ctx was cancelled, otherwise err.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// daemon has the state that the steps of Serve share.
type daemon struct {
	config   config.Config
	report   *settings.Report // knows each setting's name as the operator has written it
	log      *slog.Logger
	resolver *net.Resolver // for MCACHE_SRV; nil means the host's
	stats    *stats.Registry
	skews    sync.Map // *atomic.Int64 by server's name: the difference between its clock and this host's, in ms
	forPeers int64    // bytes that clients can make the gRPC server keep
	health   *server.Health
	hup      <-chan os.Signal
	manager  *sdnotify.Notifier // nil if there is no service manager to notify
	again    atomic.Bool        // set during a reload of which the service manager was notified
	opened   []func()           // functions that close the parts of the store, for closeStore
	store    func() bool        // reports whether the store answers; nil if it always does
	service  *service.Service
	loader   *service.Loader
	tls      *tls.Config // of the gRPC listener; nil without TLS
	plane    atomic.Pointer[xds.Client]

	draining atomic.Bool

	tracing        *telemetry.Tracing // nil without tracing
	traceListeners *server.Tracing    // tracing in the form that the listeners take
	page           *promexport.Page   // page of the pull metrics; nil without
}

// drain stops the daemon's work in the order that load balancers need: it reports unhealthy, pauses until balancers
// have noticed, closes the listeners with GOAWAY, and waits for calls in flight for a bounded time.
func (d *daemon) drain(l *listeners) {
	start := time.Now()
	d.manager.Stopping()
	defer d.manager.Wait("stopping: calls in flight are finished")()
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

func (d *daemon) makeService() {
	c := d.config
	mode, _ := limits.ParseFailureMode(c.Counting.FailureMode) // the setting's tag allows only valid modes
	o := service.Options{
		Settings: c.Answer.Service, Caps: c.Listen.Caps, Stats: d.stats, Log: d.log,
		Observe: c.Listen.Observe, DenyUnknown: c.Answer.UnknownDomain == "deny", OnStoreFailure: mode,
	}
	switch {
	case c.Answer.Headers && c.Answer.Draft():
		o.DraftHeaders = true
	case c.Answer.Headers:
		o.Headers = &c.Answer.HeaderNames
	}
	if d.tracing != nil {
		o.Tracer, o.TraceRequests = d.tracing.Tracer("ratelimit"), c.Tracing.RequestText
	}
	if c.Counting.LocalCache > 0 {
		o.OverLimit = overlimit.New(c.Counting.LocalCache)
		for name, read := range o.OverLimit.Gauges() {
			d.stats.GaugeFunc("ratelimit.localcache."+name, read)
		}
	}
	d.service = service.New(o)

	if c.Process.HealthyWithConfig {
		d.health.Set(server.Rules, false)
	}
	d.loader = service.NewLoader(d.service, limits.Options{
		Settings: c.Counting.Limits, EscapedKeys: c.Counting.KeyFormat == "escaped",
		Memcached: c.Counting.Backend == config.BackendMemcache,
	}, d.log, func(domains int) {
		if c.Process.HealthyWithConfig {
			d.health.Set(server.Rules, domains > 0)
		}
	})
}

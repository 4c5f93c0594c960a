package daemon

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"

	"gatehouse/ratelimit/internal/config"
	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/promexport"
	"gatehouse/ratelimit/internal/server"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/buildinfo"
	"gatehouse/shared/telemetry"
)

// flushStats starts passing the statistics to the configured sink. stop makes it flush once more and waits for that,
// for a bounded time.
func (d *daemon) flushStats(stdout io.Writer) (stop func()) {
	c := d.config.Stats
	return running(context.Background(), func(ctx context.Context) {
		d.stats.Run(ctx, d.sink(stdout), c.FlushInterval)
	})
}

func (d *daemon) sink(stdout io.Writer) stats.Sink {
	c := d.config.Stats
	address := d.statsd()
	switch {
	case c.Disable:
		return nil
	case c.Tagged:
		return stats.NewTagged(c.Protocol, address, c.Patterns(), d.log)
	case c.Statsd:
		return stats.NewStatsd(c.Protocol, address, d.statsLog())
	case c.Pull:
		return nil
	default:
		return stats.NewLines(stdout)
	}
}

func (d *daemon) statsd() string {
	return net.JoinHostPort(d.config.Stats.Host, strconv.Itoa(d.config.Stats.Port))
}

// statsLog returns the log for messages about statsd. It is a log that discards everything if no setting names a statsd
// server, since such a server may not exist.
func (d *daemon) statsLog() *slog.Logger {
	if d.config.Stats.Assumed() {
		return slog.New(slog.DiscardHandler)
	}
	return d.log
}

// makePage makes the page of the pull metrics, if it is configured. The page reads the counters themselves, so a second
// sink, such as statsd, still gets every count.
func (d *daemon) makePage() {
	c := d.config.Stats
	if c.Pull && !c.Disable {
		build := buildinfo.Read()
		d.page = promexport.New(promexport.Options{
			Stats: d.stats, Settings: c.Page, Mapping: c.Mapping(), Log: d.log,
			Build: []stats.Tag{{Name: "goversion", Value: build.Go}, {Name: "revision", Value: build.Revision},
				{Name: "version", Value: build.Version}},
		})
	}
}

// tracingPatience bounds the time for sending the last spans when the process ends.
const tracingPatience = 5 * time.Second

// startTracing sets up tracing if it is configured; stop sends the spans that are left. Without tracing, d.tracing and
// d.traceListeners stay nil, and requests do no work for it.
func (d *daemon) startTracing(ctx context.Context) (stop func(), err error) {
	c := d.config.Tracing
	if !c.Enabled {
		return func() {}, nil
	}
	telemetry.Diagnostics(d.log, slog.LevelDebug)
	o := telemetry.TracingOptions{
		Protocol: c.Protocol, SamplingRate: c.SamplingRate, Log: d.log,
		Resource: []attribute.KeyValue{attribute.String("service.name", c.ServiceName),
			attribute.String("service.instance.id", cmp.Or(c.ServiceInstanceID, uuid.NewString()))},
		Default: []attribute.KeyValue{attribute.String("service.version", buildinfo.Release())},
	}
	if c.ServiceNamespace != "" {
		o.Resource = append(o.Resource, attribute.String("service.namespace", c.ServiceNamespace))
	}
	if c.Headers != "" && os.Getenv("OTEL_EXPORTER_OTLP_HEADERS") == "" { // the headers were read from a file
		if o.Headers, err = telemetry.ParseHeaders(c.Headers); err != nil {
			return nil, err
		}
	}
	t, err := telemetry.StartTracing(ctx, o)
	if err != nil {
		return nil, err
	}
	d.tracing = t
	d.traceListeners = &server.Tracing{Tracer: t.Tracer("ratelimit server"), Propagator: t.Propagator,
		Answers: c.RequestText}
	d.stats.CounterFunc("ratelimit.tracing.spans_sent", func() uint64 { sent, _ := t.Spans(); return sent })
	d.stats.CounterFunc("ratelimit.tracing.spans_lost", func() uint64 { _, lost := t.Spans(); return lost })
	return func() {
		if err := t.Stop(tracingPatience); err != nil {
			d.log.Warn("the last spans were not sent", "error", err)
		}
	}, nil
}

// traceStore returns store with a span recorded for its part of each decision, under the names that
// envoyproxy/ratelimit gives these spans. The in-process store gets no spans, since a decision takes less time than
// recording a span.
func (d *daemon) traceStore(store counter.Store) counter.Store {
	if d.tracing == nil {
		return store
	}
	switch d.config.Counting.Backend {
	case config.BackendKVStore:
		return service.TraceStore(store, d.tracing.Tracer("redis.fixedCacheImpl"), "Redis Pipeline Execution",
			d.pipelineLengths)
	case config.BackendMemcache:
		return service.TraceStore(store, d.tracing.Tracer("memcached.cacheImpl"), "Memcached Fetch Execution",
			func(hits []counter.Hit) []attribute.KeyValue {
				return []attribute.KeyValue{attribute.Int("keysToGet length", len(hits))}
			})
	}
	return store
}

// pipelineLengths returns span attributes with the number of hits that go to the main store and to the store for limits
// per second.
func (d *daemon) pipelineLengths(hits []counter.Hit) []attribute.KeyValue {
	perSecond := 0
	for i := range hits {
		if hits[i].PerSecond && d.config.KVShared.PerSecond {
			perSecond++
		}
	}
	return []attribute.KeyValue{attribute.Int("pipeline length", len(hits)-perSecond),
		attribute.Int("perSecondPipeline length", perSecond)}
}

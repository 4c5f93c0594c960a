package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/buildinfo"
	"gatehouse/shared/httpx"
	"gatehouse/shared/telemetry"
	"gatehouse/shared/telemetry/metrics"
)

// observation holds the telemetry of the daemon. Fields of parts that are off are nil. The daemon's instruments have
// the OpenTelemetry scope scopeName, which distinguishes them from those of the Go runtime.
type observation struct {
	tracing *telemetry.Tracing
	metrics *metrics.Metrics
	signIns metric.Int64Counter
	unsent  metric.Int64Counter
	calls   metric.Float64Histogram // durations of outgoing calls
	page    *http.Server            // serves metrics that are scraped
}

const (
	scopeName = "auth"
	// telemetryTimeout is how long the export of the last spans and metrics may take when the process ends.
	telemetryTimeout = 5 * time.Second
	// metricsTimeout is how long the database queries for metrics may take.
	metricsTimeout = 2 * time.Second
)

// startTelemetry sets up traces and metrics, if they are switched on. Errors in the settings were reported before. If
// an exporter cannot start for another reason, the failure is logged and the exporter stays off, since telemetry must
// not prevent sign-ins.
func (d *daemon) startTelemetry(ctx context.Context) {
	c := d.config.Load().Telemetry
	if !c.Tracing && !c.Metrics {
		return
	}
	level := slog.LevelDebug
	if c.Debug {
		level = slog.LevelInfo
	}
	telemetry.Diagnostics(d.log.Logger, level)
	sure := []attribute.KeyValue{attribute.String("auth.version", buildinfo.Release())}
	fallback := []attribute.KeyValue{attribute.String("service.name", "auth"),
		attribute.String("service.version", buildinfo.Release())}
	var headers map[string]string
	if c.Headers != "" && os.Getenv("OTEL_EXPORTER_OTLP_HEADERS") == "" { // the headers come from a file
		headers, _ = telemetry.ParseHeaders(c.Headers) // checkTelemetry has reported errors
	}
	var err error
	if c.Tracing {
		d.observed.tracing, err = telemetry.StartTracing(ctx, telemetry.TracingOptions{
			Protocol: c.Transport(), StandardSampler: true, Resource: sure, Default: fallback, Headers: headers,
			Log: d.log.Logger,
		})
		if err != nil {
			d.log.Error("tracing stays off", "error", err)
		}
	}
	if c.Metrics {
		o := metrics.Options{Resource: sure, Default: fallback, Headers: headers, Log: d.log.Logger}
		if !c.Scraped() {
			o.Protocol = c.Transport()
		}
		if err := d.startMetrics(ctx, o); err != nil {
			d.observed = observation{tracing: d.observed.tracing}
			d.log.Error("metrics stay off", "error", err)
		}
	}
}

// startMetrics makes the metrics that are counted when something happens. measure makes the others.
func (d *daemon) startMetrics(ctx context.Context, options metrics.Options) (err error) {
	o := &d.observed
	if o.metrics, err = metrics.Start(ctx, options); err != nil {
		return err
	}
	var errs [3]error
	meter := o.metrics.Meter(scopeName)
	o.calls, errs[0] = meter.Float64Histogram("auth.outward.call.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of a call that leaves the daemon, by whom it was meant for."),
		metric.WithExplicitBucketBoundaries(.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10))
	o.signIns, errs[1] = meter.Int64Counter("auth.sign_ins", metric.WithUnit("{session}"),
		metric.WithDescription("Sessions opened, by the way in."))
	o.unsent, errs[2] = meter.Int64Counter("auth.messages.unsent", metric.WithUnit("{message}"),
		metric.WithDescription("Messages that were asked for and that nothing can send, by channel and reason."))
	return errors.Join(errs[:]...)
}

// observer returns the observer of requests; nil if both traces and metrics are off.
func (d *daemon) observer() (*httpapi.Observer, error) {
	o := &d.observed
	if o.tracing == nil && o.metrics == nil {
		return nil, nil
	}
	var meter metric.Meter
	if o.metrics != nil {
		meter = o.metrics.Meter(scopeName)
	}
	if o.tracing == nil {
		return httpapi.NewObserver(nil, nil, meter)
	}
	return httpapi.NewObserver(o.tracing.Tracer(scopeName), o.tracing.Propagator, meter)
}

// signedIn returns a function that counts opened sessions by their method; nil without metrics.
func (d *daemon) signedIn() func(method string) {
	n := d.observed.signIns
	if n == nil {
		return nil
	}
	return func(method string) {
		n.Add(context.Background(), 1, metric.WithAttributes(attribute.String("method", method)))
	}
}

// unsent returns a function that counts messages that no sender can send; nil without metrics.
func (d *daemon) unsent() func(channel, reason string) {
	n := d.observed.unsent
	if n == nil {
		return nil
	}
	add := func(more int64, channel, reason string) {
		n.Add(context.Background(), more,
			metric.WithAttributes(attribute.String("channel", channel), attribute.String("reason", reason)))
	}
	add(0, "sms", "unconfigured") // so that rates see the counter begin at 0
	return func(channel, reason string) { add(1, channel, reason) }
}

// measure adds the metrics that are computed when they are read.
func (d *daemon) measure() error {
	m := d.observed.metrics
	if m == nil {
		return nil
	}
	if err := m.GoRuntime(); err != nil {
		return err
	}
	f := metrics.Instruments{Meter: m.Meter(scopeName)}
	running := f.Level("auth.password.running", "{hash}", "Passwords that are being hashed.")
	waiting := f.Level("auth.password.waiting", "{hash}", "Passwords that wait for a worker.")
	done := f.Count("auth.password.hashes", "{hash}", "Passwords hashed or compared.")
	refused := f.Count("auth.password.refused", "{hash}", "Requests refused because too many wait for a worker.")
	pending := f.Level("auth.outbox.pending", "{message}", "Messages of all processes that were not sent yet.")
	oldest := f.Age("auth.outbox.oldest_due.age", "How long the oldest message that is due has been so.")
	sent := f.Count("auth.outbox.sent", "{message}", "Messages that this process sent.")
	retried := f.Count("auth.outbox.retried", "{message}", "Attempts of this process that failed and are made again.")
	failed := f.Count("auth.outbox.failed", "{message}", "Messages that this process gave up.")
	expired := f.Count("auth.outbox.expired", "{message}", "Messages that this process found too old to be sent.")
	conns := f.Level("auth.db.connections", "{connection}", "Connections to the database.")
	most := f.Level("auth.db.connections.max", "{connection}", "Most connections that the pool may have.")
	waits := f.Count("auth.db.connection.waits", "{request}", "How often no connection was free.")
	key := f.Age("auth.signing_key.age", "How long the key that signs has been signing.")
	clockOff := f.Age("auth.clock.offset", "By how much the machine's clock is ahead of the database's, which counts.")
	mirror := f.Level("auth.mirror.current", "1", "Whether the mirror of the former tables has all its triggers.")
	used, idle := of("state", "used"), of("state", "idle")
	return f.Observe(func(ctx context.Context, o metric.Observer) error {
		p := d.passwords.Stats()
		o.ObserveInt64(running, int64(p.Running))
		o.ObserveInt64(waiting, int64(p.Waiting))
		o.ObserveInt64(done, int64(p.Done))
		o.ObserveInt64(refused, int64(p.Refused))

		channels, tooOld := d.outbox.Stats()
		for _, c := range channels {
			channel := of("channel", c.Channel)
			o.ObserveInt64(sent, int64(c.Sent), channel)
			o.ObserveInt64(retried, int64(c.Retried), channel)
			o.ObserveInt64(failed, int64(c.Failed), channel)
		}
		o.ObserveInt64(expired, int64(tooOld))

		c := d.db.PoolStats()
		o.ObserveInt64(conns, int64(c.Used), used)
		o.ObserveInt64(conns, int64(c.Idle), idle)
		o.ObserveInt64(most, int64(c.Most))
		o.ObserveInt64(waits, c.Waits)
		if age, ok := d.keeper.Age(); ok {
			o.ObserveFloat64(key, age.Seconds())
		}

		o.ObserveFloat64(clockOff, d.clock.Offset().Seconds())
		if state := d.mirrored.Load(); state != mirrorNone {
			o.ObserveInt64(mirror, int64(state-mirrorBroken))
		}
		for name, waiting := range d.outboxWaiting(ctx) {
			o.ObserveInt64(pending, int64(waiting.Pending), of("channel", name))
			o.ObserveFloat64(oldest, waiting.OldestDue.Seconds(), of("channel", name))
		}
		return nil
	})
}

func of(name, value string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attribute.String(name, value)))
}

// outboxWaiting returns how many messages of each channel wait, including channels without any; nil if the database
// does not answer.
func (d *daemon) outboxWaiting(ctx context.Context) map[string]store.Waiting {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	by, err := d.db.OutboxWaiting(ctx, d.clock.Now())
	if err != nil { // returning the error would suppress all other metrics
		d.log.Debug("no metrics of the outbox", "error", err)
		return nil
	}
	for _, name := range d.channels() {
		if _, there := by[name]; !there {
			by[name] = store.Waiting{}
		}
	}
	return by
}

// showMetrics serves the metrics that are scraped, on a listener of their own.
func (d *daemon) showMetrics(ctx context.Context) {
	c := d.config.Load().Telemetry
	if d.observed.metrics == nil || !c.Scraped() {
		return
	}
	l, err := httpx.Listen(ctx, "tcp", hostPort(c.PullHost, c.PullPort))
	if err != nil {
		d.log.Error("metrics are shown nowhere: OTEL_EXPORTER_PULL_HOST, OTEL_EXPORTER_PULL_PORT", "error", err)
		return
	}
	d.observed.page = httpx.NewServer(d.observed.metrics, timeouts(10*time.Second), d.log.Logger)
	go func() {
		if err := d.observed.page.Serve(l); err != http.ErrServerClosed {
			d.log.Error("metrics are shown no more", "error", err)
		}
	}()
	d.log.Info("metrics", "http", l.Addr().String())
}

// stopTelemetry exports the last spans and metrics, after the last request and while the database is still open.
func (d *daemon) stopTelemetry() {
	o := &d.observed
	if o.page != nil {
		o.page.Close()
	}
	if o.metrics != nil {
		if err := o.metrics.Stop(telemetryTimeout); err != nil {
			d.log.Warn("the last metrics were not sent", "error", err)
		}
	}
	if o.tracing != nil {
		if err := o.tracing.Stop(telemetryTimeout); err != nil {
			d.log.Warn("the last spans were not sent", "error", err)
		}
	}
}

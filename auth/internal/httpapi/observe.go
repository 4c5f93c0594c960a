package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"gatehouse/auth/internal/account/refusal"
)

// Observer records a span and metrics of each request. Without an Observer, this costs only a comparison.
//
// Nothing that a client chooses freely becomes an attribute: no query, no header, no body, and of the path only the
// route's pattern, with those parameters that are IDs. So the number of series is bounded, and neither secrets nor
// addresses leave the process.
type Observer struct {
	tracer     trace.Tracer // nil: spans are off
	propagator propagation.TextMapPropagator
	requests   metric.Int64Counter // nil: metrics are off
	duration   metric.Float64Histogram
	refused    metric.Int64Counter // requests that a trigger or constraint of the application refused
	series     sync.Map            // *options by series; the options of a series are made once
}

// NewObserver returns an Observer that records spans with tracer and propagator, metrics with meter, or both. If tracer
// is nil, it records no spans; if meter is nil, no metrics.
func NewObserver(tracer trace.Tracer, propagator propagation.TextMapPropagator, meter metric.Meter) (*Observer, error) {
	o := &Observer{tracer: tracer, propagator: propagator}
	if meter == nil {
		return o, nil
	}
	var errs [3]error
	o.requests, errs[0] = meter.Int64Counter("auth.http.requests", metric.WithUnit("{request}"),
		metric.WithDescription("Requests answered."))
	o.refused, errs[1] = meter.Int64Counter("auth.mirror.refused", metric.WithUnit("{request}"),
		metric.WithDescription("Requests that failed because the application's SQL refused a row."))
	o.duration, errs[2] = meter.Float64Histogram("auth.http.request.duration", metric.WithUnit("s"),
		metric.WithDescription("Time from a request's head to its answer."),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10))
	return o, errors.Join(errs[:]...)
}

// begin starts the span of a call, as a child of the client's span if the request has one.
func (o *Observer) begin(c *call, r *http.Request) *http.Request {
	if o.tracer == nil {
		return r
	}
	ctx := o.propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, _ = o.tracer.Start(ctx, method(r.Method), trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(attribute.String("http.method", method(r.Method))))
	c.r = r.WithContext(ctx)
	return c.r
}

// end records the outcome of a call, after the answer was written.
func (o *Observer) end(c *call, began time.Time) {
	pattern := c.r.Pattern
	// ServeMux itself answered; if it wanted to redirect, the pattern names a route that did not run.
	if c.refused != 0 {
		pattern = ""
	}
	if o.tracer != nil {
		o.endSpan(c, pattern)
	}
	if o.requests != nil {
		s := o.seriesOf(series{method(c.r.Method), route(pattern), c.status})
		ctx := context.WithoutCancel(c.r.Context())
		o.requests.Add(ctx, 1, s.counted...)
		o.duration.Record(ctx, time.Since(began).Seconds(), s.timed...)
		if r, ok := errors.AsType[*refusal.Refusal](c.err); ok && r.Operation != "" {
			o.refused.Add(ctx, 1, metric.WithAttributes(attribute.String("operation", r.Operation)))
		}
	}
}

func (o *Observer) endSpan(c *call, pattern string) {
	span := trace.SpanFromContext(c.r.Context())
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(attribute.Int("http.status_code", c.status))
	if c.code != "" {
		span.SetAttributes(attribute.String("error.code", c.code))
	}
	if c.status >= 500 {
		span.SetStatus(codes.Error, "")
	}
	if pattern == "" {
		return
	}
	path := route(pattern)
	span.SetName(method(c.r.Method) + " " + path)
	span.SetAttributes(attribute.String("http.route", path))
	for part := range strings.SplitSeq(path, "{") {
		name, _, _ := strings.Cut(part, "}") // the first part is no parameter, so it has no value
		// A value in any other form is not an ID: it may be an e-mail address, or a token in the wrong place.
		if v := c.r.PathValue(name); len(v) == 36 && uuid.Validate(v) == nil {
			span.SetAttributes(attribute.String("http.route.params."+name, v))
		}
	}
}

// series holds the labels of a metric.
type series struct {
	method, route string
	status        int
}

type options struct {
	counted []metric.AddOption
	timed   []metric.RecordOption
}

func (o *Observer) seriesOf(s series) *options {
	if known, ok := o.series.Load(s); ok {
		return known.(*options)
	}
	about := []attribute.KeyValue{attribute.String("http.method", s.method), attribute.String("http.route", s.route)}
	timed := attribute.NewSet(about...)
	counted := attribute.NewSet(append(about, attribute.Int("http.status_code", s.status))...)
	made := &options{counted: []metric.AddOption{metric.WithAttributeSet(counted)},
		timed: []metric.RecordOption{metric.WithAttributeSet(timed)}}
	known, _ := o.series.LoadOrStore(s, made)
	return known.(*options)
}

// method returns the method m, or a fixed name for unknown methods, so that a client cannot create series by inventing
// methods.
func method(m string) string {
	switch m {
	case "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS":
		return m
	}
	return "_OTHER"
}

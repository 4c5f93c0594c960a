package daemon

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"gatehouse/auth/internal/outbound"
)

// watch returns the function that records a span and a metric for each outgoing call; nil if both traces and metrics
// are off. The span of a call is a child of the request's span. Calls of the outbox, and calls that fetch keys ahead of
// time, have a trace of their own.
func (d *daemon) watch() outbound.Watch {
	o := &d.observed
	if o.tracing == nil && o.calls == nil {
		return nil
	}
	var tracer trace.Tracer
	if o.tracing != nil {
		tracer = o.tracing.Tracer(scopeName)
	}
	return func(ctx context.Context, c outbound.Call) (context.Context, func(int, error)) {
		began := time.Now()
		if tracer != nil {
			ctx, _ = tracer.Start(ctx, c.Target, trace.WithSpanKind(trace.SpanKindClient),
				trace.WithAttributes(called(c)...))
		}
		return ctx, func(status int, err error) {
			failed := err != nil || status >= 400
			if tracer != nil {
				endCall(trace.SpanFromContext(ctx), status, failed)
			}
			if o.calls != nil {
				outcome := "answered"
				if failed {
					outcome = "failed"
				}
				o.calls.Record(context.WithoutCancel(ctx), time.Since(began).Seconds(),
					metric.WithAttributes(attribute.String("to", c.Target), attribute.String("outcome", outcome)))
			}
		}
	}
}

// inject returns the function that adds the trace of a call to the call's headers (W3C Trace Context); nil without
// traces. Only calls of hooks get these headers, since hooks belong to the operator.
func (d *daemon) inject() func(context.Context, http.Header) {
	if d.observed.tracing == nil {
		return nil
	}
	return func(ctx context.Context, h http.Header) {
		propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(h))
	}
}

func called(c outbound.Call) (about []attribute.KeyValue) {
	if c.Method != "" {
		about = append(about, attribute.String("http.method", c.Method))
	}
	if c.Host != "" {
		about = append(about, attribute.String("server.address", c.Host))
	}
	return about
}

func endCall(span trace.Span, status int, failed bool) {
	if status != 0 {
		span.SetAttributes(attribute.Int("http.status_code", status))
	}
	if failed {
		span.SetStatus(codes.Error, "") // the error is logged, without secrets
	}
	span.End()
}

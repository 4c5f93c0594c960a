package service

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/printable"
)

// startSpan begins the span of a decision. Attributes are copied, because the span lives longer than the message's
// bytes, into which the request's strings point.
func (s *Service) startSpan(ctx context.Context, c *Call) {
	_, c.span = s.o.Tracer.Start(ctx, "ShouldRateLimit Execution")
	if c.span.IsRecording() {
		c.span.SetAttributes(attribute.String("domain", strings.Clone(printable.Text(c.Request.Domain))))
		if s.o.TraceRequests {
			c.span.SetAttributes(attribute.String("request string", string(c.Request.AppendText(nil))))
		}
	}
}

func (c *Call) endSpan(err error) {
	if err != nil {
		c.span.SetStatus(codes.Error, err.Error())
	}
	c.span.End()
	c.span = nil
}

// TraceStore returns a Store that records each call of store's Add as a span, within the span of the decision. name is
// the span's name; count makes the span's attributes from the hits that are sent.
func TraceStore(store counter.Store, tracer trace.Tracer, name string,
	count func([]counter.Hit) []attribute.KeyValue) counter.Store {
	return &tracedStore{store, tracer, name, count}
}

type tracedStore struct {
	counter.Store
	tracer trace.Tracer
	name   string
	count  func([]counter.Hit) []attribute.KeyValue
}

// Add implements counter.Store.
func (t *tracedStore) Add(ctx context.Context, req *counter.Request) error {
	ctx, span := t.tracer.Start(ctx, t.name)
	defer span.End()
	if span.IsRecording() && t.count != nil {
		span.SetAttributes(t.count(req.Hits)...)
	}
	err := t.Store.Add(ctx, req)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}

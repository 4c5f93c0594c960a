package h2grpc

import (
	"context"

	"golang.org/x/net/http2/hpack"
)

// startSpan begins the span of a stream's call, if calls are traced. ctx has the span, and end ends it; nil means that
// the call ended well.
func (c *conn) startSpan(s *stream) (ctx context.Context, end func(*refusal)) {
	t := c.server.o.Tracing
	if t == nil {
		return c.server.ctx, noSpan
	}
	fields := fieldCarrier(s.header.fields)
	ctx, span := t.Start(c.server.ctx, fields, fields.Get(":path"), c.net.RemoteAddr())
	return ctx, func(r *refusal) {
		if r == nil {
			r = &refusal{}
		}
		t.End(span, r.code, r.message)
	}
}

func noSpan(*refusal) {}

// fieldCarrier lets a propagator read the fields of a request.
type fieldCarrier []hpack.HeaderField

// Get implements propagation.TextMapCarrier.
func (c fieldCarrier) Get(name string) string {
	for _, f := range c {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (fieldCarrier) Set(string, string) {}

// Keys implements propagation.TextMapCarrier.
func (c fieldCarrier) Keys() (names []string) {
	for _, f := range c {
		names = append(names, f.Name)
	}
	return names
}

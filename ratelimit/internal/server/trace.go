package server

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"gatehouse/ratelimit/internal/h2grpc"
)

// Tracing makes the listeners record a span for each request. If it is nil, the listeners register handlers without any
// tracing code, so that tracing costs requests nothing.
type Tracing struct {
	Tracer     trace.Tracer
	Propagator propagation.TextMapPropagator
	// Answers makes spans contain the text of /json's answers (TRACING_REQUEST_TEXT).
	Answers bool
}

// startGRPC begins the span of a call that grpc-go serves.
func (t *Tracing) startGRPC(ctx context.Context, fullMethod string) (context.Context, trace.Span) {
	md, _ := metadata.FromIncomingContext(ctx)
	var from net.Addr
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr
	}
	return t.startCall(ctx, metadataCarrier(md), fullMethod, from)
}

// startCall begins the span of a gRPC call, as a child of the span that the client names in the call's metadata.
func (t *Tracing) startCall(ctx context.Context, md propagation.TextMapCarrier, fullMethod string,
	from net.Addr) (context.Context, trace.Span) {
	name := strings.TrimPrefix(fullMethod, "/")
	ctx, span := t.Tracer.Start(t.Propagator.Extract(ctx, md), name, trace.WithSpanKind(trace.SpanKindServer))
	if span.IsRecording() {
		service, method, _ := strings.Cut(name, "/")
		span.SetAttributes(attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service),
			attribute.String("rpc.method", method))
		if from != nil {
			span.SetAttributes(peerAttributes(from.String())...)
		}
	}
	return ctx, span
}

// endGRPC ends the span of a call that grpc-go serves, with err as its status.
func endGRPC(span trace.Span, err error) {
	s := status.Convert(err)
	endCall(span, s.Code(), s.Message())
}

// endCall ends the span of a gRPC call with the call's status. An error that the client has caused does not mark the
// span as failed.
func endCall(span trace.Span, code grpccodes.Code, message string) {
	if span.IsRecording() {
		span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(code)))
		switch code {
		case grpccodes.Unknown, grpccodes.DeadlineExceeded, grpccodes.Unimplemented, grpccodes.Internal,
			grpccodes.Unavailable, grpccodes.DataLoss:
			span.SetStatus(codes.Error, message)
		}
	}
	span.End()
}

// native returns t in the form that package h2grpc takes; nil if t is nil.
func (t *Tracing) native() *h2grpc.Tracing {
	if t == nil {
		return nil
	}
	return &h2grpc.Tracing{Start: t.startCall, End: endCall}
}

// handler is shouldRateLimit with a span for each call.
func (t *Tracing) handler(srv any, ctx context.Context, decode func(any) error,
	i grpc.UnaryServerInterceptor) (answer any, err error) {
	ctx, span := t.startGRPC(ctx, "/"+serviceName+"/ShouldRateLimit")
	defer func() { endGRPC(span, err) }()
	return shouldRateLimit(srv, ctx, decode, i)
}

// unary is the interceptor that records a span for each call of the other services, such as health checks.
func (t *Tracing) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	next grpc.UnaryHandler) (answer any, err error) {
	ctx, span := t.startGRPC(ctx, info.FullMethod)
	defer func() { endGRPC(span, err) }()
	return next(ctx, req)
}

// stream is the interceptor that records a span for each stream, which is a health watch or a reflection stream.
func (t *Tracing) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo,
	next grpc.StreamHandler) (err error) {
	ctx, span := t.startGRPC(s.Context(), info.FullMethod)
	defer func() { endGRPC(span, err) }()
	return next(srv, tracedStream{s, ctx})
}

type tracedStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s tracedStream) Context() context.Context { return s.ctx }

// http returns h with a span recorded for each request. route is the path at which h is mounted.
func (t *Tracing) http(route string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := t.Propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.Tracer.Start(ctx, r.Method+" "+route, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		if !span.IsRecording() {
			h.ServeHTTP(w, r.WithContext(ctx))
			return
		}
		span.SetAttributes(attribute.String("http.request.method", r.Method), attribute.String("http.route", route))
		span.SetAttributes(peerAttributes(r.RemoteAddr)...)
		seen := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		defer func() {
			span.SetAttributes(attribute.Int("http.response.status_code", seen.status))
			if seen.status >= 500 {
				span.SetStatus(codes.Error, http.StatusText(seen.status))
			}
		}()
		h.ServeHTTP(seen, r.WithContext(ctx))
	})
}

// statusWriter is a ResponseWriter that remembers the status of the response.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController find the wrapped ResponseWriter.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func peerAttributes(address string) []attribute.KeyValue {
	host, port, err := net.SplitHostPort(address)
	if err != nil { // the address of a unix socket has no port
		return []attribute.KeyValue{attribute.String("network.peer.address", address)}
	}
	n, _ := strconv.Atoi(port)
	return []attribute.KeyValue{attribute.String("network.peer.address", host), attribute.Int("network.peer.port", n)}
}

// metadataCarrier lets a propagator read the metadata of a call. In grpc-go's metadata, names are in lower case.
type metadataCarrier metadata.MD

// Get implements propagation.TextMapCarrier.
func (c metadataCarrier) Get(name string) string {
	if v := metadata.MD(c).Get(name); len(v) > 0 {
		return v[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c metadataCarrier) Set(name, value string) { metadata.MD(c).Set(name, value) }

// Keys implements propagation.TextMapCarrier.
func (c metadataCarrier) Keys() []string { return slices.Collect(maps.Keys(c)) }

package store

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// tracer makes a span for each statement and each batch, as a child of the request's span if that is recorded.
// Statements in the background, and statements of requests that are not sampled, have no spans.
//
// A span has the statement's text, which is a constant of this package or the call of a hook's function, and never the
// arguments.
type tracer struct{ trace.Tracer }

// longestStatement is how many bytes of a batch's text are put into a span.
const longestStatement = 8 << 10

func (t tracer) start(ctx context.Context, name string, about ...attribute.KeyValue) context.Context {
	about = append(about, attribute.String("db.system", "postgresql"))
	ctx, _ = t.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(about...))
	return ctx
}

func (t tracer) end(ctx context.Context, err error) {
	span := trace.SpanFromContext(ctx)
	if err != nil {
		span.SetStatus(codes.Error, "") // PostgreSQL's message may quote a value, so it is left out
	}
	span.End()
}

// spanKey is the key of a context value that marks contexts in which this package has begun a span. pgx may report the
// end of a statement with the caller's context instead, whose span belongs to the caller and must not be ended here.
type spanKey struct{}

func isRecording(ctx context.Context) bool { return trace.SpanFromContext(ctx).IsRecording() }

// TraceQueryStart implements pgx.QueryTracer.
func (t tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if !isRecording(ctx) {
		return ctx
	}
	text := oneLine(d.SQL)
	return context.WithValue(t.start(ctx, operation(text), attribute.String("db.statement", text)), spanKey{}, true)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (t tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryEndData) {
	if ctx.Value(spanKey{}) != nil {
		t.end(ctx, d.Err)
	}
}

// TraceBatchStart implements pgx.BatchTracer.
func (t tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	if !isRecording(ctx) {
		return ctx
	}
	var all strings.Builder
	for i, q := range d.Batch.QueuedQueries {
		if i > 0 {
			all.WriteString("; ")
		}
		all.WriteString(oneLine(q.SQL))
	}
	text := all.String()
	return context.WithValue(t.start(ctx, "batch",
		attribute.String("db.statement", text[:min(len(text), longestStatement)]),
		attribute.Int("db.operation.batch.size", d.Batch.Len())), spanKey{}, true)
}

// TraceBatchQuery implements pgx.BatchTracer.
func (t tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (t tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchEndData) {
	if ctx.Value(spanKey{}) != nil {
		t.end(ctx, d.Err)
	}
}

func oneLine(sql string) string { return strings.Join(strings.Fields(sql), " ") }

// operation returns the first word of a statement in lower case, such as select, update or begin.
func operation(sql string) string {
	word, _, _ := strings.Cut(sql, " ")
	return strings.ToLower(strings.TrimSuffix(word, ";"))
}

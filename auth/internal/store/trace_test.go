package store_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

// Statements have spans below one that is recorded, with their text and nothing of what is in the rows.
func TestTracer(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	tracer := provider.Tracer("test")
	trips := new(storetest.Trips)
	db, err := store.Open(t.Context(),
		store.Options{URL: storetest.URL(t), Settings: store.Settings{MaxConns: 1}, Dial: trips.Dial, Tracer: tracer})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	u := addUser(t, db, "mia@example.org")

	look := func(ctx context.Context) {
		t.Helper()
		var found store.User
		b := db.Batch()
		b.User(&found, u.ID)
		b.Account(&found, "authenticated", "mia@example.org")
		if err := b.Send(ctx); err != nil || found.ID != u.ID {
			t.Fatal(found, err)
		}
		must.Succeed(t, must.ErrOf(db.User(ctx, u.ID)))
		if _, err := db.CallFunction(ctx, "public", "nowhere", []byte(`{"email":"mia@example.org"}`), 0); err == nil {
			t.Fatal("a function that isn't there answers")
		}
	}
	look(t.Context()) // prepares
	unsampled, end := sdktrace.NewTracerProvider(sdktrace.WithSampler(sdktrace.NeverSample())).Tracer("test").Start(
		t.Context(), "request")
	quiet := trips.During(func() { look(t.Context()); look(unsampled) })
	end.End()
	if got := spans.GetSpans(); len(got) > 0 {
		t.Errorf("spans below nobody's: %v", got)
	}
	ctx, root := tracer.Start(t.Context(), "request")
	if n := trips.During(func() { look(ctx); look(ctx) }); n != quiet {
		t.Errorf("%d round trips where there were %d", n, quiet)
	}
	root.End()

	var names []string
	for _, s := range spans.GetSpans() {
		if s.Name == "request" {
			continue
		}
		names = append(names, s.Name)
		if s.Parent.SpanID() != root.SpanContext().SpanID() {
			t.Errorf("%s is no child of the request", s.Name)
		}
		for _, a := range s.Attributes {
			if strings.Contains(a.Value.String(), "mia") {
				t.Errorf("%s: %s is %s", s.Name, a.Key, a.Value.String())
			}
			if a.Key == "db.statement" && !strings.Contains(a.Value.String(), " from users ") &&
				s.Name != "begin" && s.Name != "rollback" && !strings.Contains(a.Value.String(), `"nowhere"($1)`) {
				t.Errorf("%s: %s", s.Name, a.Value.String())
			}
		}
		if failed := s.Status.Code.String() == "Error"; failed != slices.ContainsFunc(s.Attributes,
			func(a attribute.KeyValue) bool { return strings.Contains(a.Value.String(), "nowhere") }) {
			t.Errorf("%s: %v", s.Name, s.Status)
		}
	}
	if got := strings.Join(names[:len(names)/2], " "); got != "batch select begin select rollback" {
		t.Error(got)
	}
}

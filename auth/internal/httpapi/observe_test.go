package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// Every route is a span of its own name, and only ids of the path become attributes.
func TestObserver_spans(t *testing.T) {
	srv, recorder := offline(t), tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	var err error
	if srv.observer, err = NewObserver(provider.Tracer("test"), propagation.TraceContext{}, nil); err != nil {
		t.Fatal(err)
	}
	const id = "6f2f7a2c-0000-4000-8000-000000000001"
	f := func(method, path, name string, want map[string]string) {
		t.Helper()
		recorder.Reset()
		srv.ServeHTTP(&discardWriter{h: http.Header{}}, httptest.NewRequest(method, path, nil))
		spans := recorder.Ended()
		if len(spans) != 1 || spans[0].Name() != name {
			t.Fatalf("%s %s: %v", method, path, spans)
		}
		got := map[string]string{}
		for _, kv := range spans[0].Attributes() {
			if kv.Key != "error.code" {
				got[string(kv.Key)] = kv.Value.String()
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s %s: %s", method, path, d)
		}
	}
	f("GET", "/health", "GET /health",
		map[string]string{"http.method": "GET", "http.route": "/health", "http.status_code": "200"})
	f("GET", "/health/", "GET /health",
		map[string]string{"http.method": "GET", "http.route": "/health", "http.status_code": "200"})
	f("GET", "/admin/users/"+id+"?apikey=secret", "GET /admin/users/{user_id}", map[string]string{
		"http.method": "GET", "http.route": "/admin/users/{user_id}", "http.route.params.user_id": id,
		"http.status_code": "401"})
	f("DELETE", "/admin/users/"+id+"/factors/ann@example.org", "DELETE /admin/users/{user_id}/factors/{factor_id}",
		map[string]string{
			"http.method": "DELETE", "http.route": "/admin/users/{user_id}/factors/{factor_id}",
			"http.route.params.user_id": id,
			"http.status_code":          "401"})
	f("DELETE", "/admin/users/"+id+"/factors/"+id, "DELETE /admin/users/{user_id}/factors/{factor_id}",
		map[string]string{
			"http.method": "DELETE", "http.route": "/admin/users/{user_id}/factors/{factor_id}",
			"http.route.params.user_id": id, "http.route.params.factor_id": id,
			"http.status_code": "401"})
	f("PATCH", "/passkeys/x", "PATCH /passkeys/{passkey_id}",
		map[string]string{"http.method": "PATCH", "http.route": "/passkeys/{passkey_id}", "http.status_code": "404"})
	f("GET", "/secret", "GET", map[string]string{"http.method": "GET", "http.status_code": "404"})
	f("DELETE", "/signup", "DELETE", map[string]string{"http.method": "DELETE", "http.status_code": "405"})
	f("SESAME", "/signup", "_OTHER", map[string]string{"http.method": "_OTHER", "http.status_code": "405"})
	f("GET", "//health", "GET", map[string]string{"http.method": "GET", "http.status_code": "404"})
}

package metrics

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/goleak"

	"gatehouse/shared/logtest"
	"gatehouse/shared/must"
	"gatehouse/shared/telemetry/otlptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startMetrics(t *testing.T, o Options) *Metrics {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.Default()
	}
	m, err := Start(t.Context(), o)
	must.Succeed(t, err)
	return m
}

// TestMetrics_push goes over both protocols; Stop is what sends.
func TestMetrics_push(t *testing.T) {
	for _, protocol := range []string{"http", "grpc"} {
		c := otlptest.Start(t)
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", map[string]string{"http": c.HTTP, "grpc": c.GRPC}[protocol])
		t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "team=accounts")
		m := startMetrics(t, Options{
			Protocol: protocol, Resource: []attribute.KeyValue{attribute.String("auth.version", "1.2")},
			Headers: map[string]string{"x-token": "secret"},
		})
		must.Succeed(t, m.GoRuntime())
		n, err := m.Meter("test").Int64Counter("a.count", metric.WithUnit("{thing}"))
		must.Succeed(t, err)
		n.Add(t.Context(), 3, metric.WithAttributes(attribute.String("kind", "x")))
		must.Succeed(t, m.Stop(10*time.Second))
		p := c.AwaitPoint(t, "a.count", func(otlptest.Point) bool { return true })
		if p.Value != 3 || p.Attributes["kind"] != "x" || p.Resource["team"] != "accounts" ||
			p.Resource["auth.version"] != "1.2" ||
			p.Headers["x-token"] != "secret" || p.Protocol != protocol {
			t.Errorf("%+v", p)
		}
		c.AwaitPoint(t, "go.goroutine.count", func(p otlptest.Point) bool { return p.Value > 0 })
		c.AwaitPoint(t, "go.memory.used",
			func(p otlptest.Point) bool { return p.Value > 0 && p.Attributes["go.memory.type"] == "other" })
	}
}

// TestMetrics_pull holds the whole text: names, escaping, buckets that add up.
func TestMetrics_pull(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", `note=a%22b%5C`)
	m := startMetrics(t, Options{Default: []attribute.KeyValue{attribute.String("service.name", "probe")}})
	defer m.Stop(time.Second)
	meter := m.Meter("test")
	count, _ := meter.Int64Counter("b.requests", metric.WithUnit("{request}"),
		metric.WithDescription("Of \\ two\nlines."))
	count.Add(t.Context(), 2, metric.WithAttributes(attribute.String("http.route", "/a/{b}"),
		attribute.Int("code", 200)))
	took, _ := meter.Float64Histogram("a.duration", metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(0.5, 1))
	for _, v := range []float64{0.25, 0.75, 4} {
		took.Record(t.Context(), v)
	}
	meter.Float64ObservableGauge("c.age", metric.WithUnit("s"),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			o.Observe(1.5)
			return nil
		}))
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	_, got, _ := strings.Cut(w.Body.String(), "# HELP a_duration")
	want := `_seconds ` + `
# TYPE a_duration_seconds histogram
a_duration_seconds_bucket{le="0.5"} 1
a_duration_seconds_bucket{le="1"} 2
a_duration_seconds_bucket{le="+Inf"} 3
a_duration_seconds_sum 5
a_duration_seconds_count 3
# HELP b_requests_total Of \\ two\nlines.
# TYPE b_requests_total counter
b_requests_total{code="200",http_route="/a/{b}"} 2
# HELP c_age_seconds ` + `
# TYPE c_age_seconds gauge
c_age_seconds 1.5
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if head := w.Body.String(); !strings.Contains(head, `note="a\"b\\"`) ||
		!strings.Contains(head, `service_name="probe"`) {
		t.Error(head)
	}
	if got := w.Header().Get("Content-Type"); got != "text/plain; version=0.0.4; charset=utf-8" {
		t.Error(got)
	}
	if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("X-Content-Type-Options %q", got)
	}
}

// TestMetrics_outage: one line, however often the collector says no.
func TestMetrics_outage(t *testing.T) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
	}))
	defer web.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", web.URL)
	var text logtest.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	m := startMetrics(t, Options{Protocol: "http", Log: log})
	must.Succeed(t, m.GoRuntime())
	for range 3 {
		must.Succeed(t, m.provider.ForceFlush(t.Context()))
	}
	if m.Stop(10*time.Second) == nil {
		t.Error("Stop does not say that the last metrics were lost")
	}
	if n := strings.Count(text.String(), "accepts no metrics"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, text.String())
	}
}

package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"gatehouse/shared/logtest"
	"gatehouse/shared/must"
	"gatehouse/shared/telemetry/otlptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newLog() (*slog.Logger, *logtest.Buffer) {
	l := &logtest.Buffer{}
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})), l
}

func start(t *testing.T, o TracingOptions) *Tracing {
	t.Helper()
	if o.Log == nil {
		o.Log = slog.Default()
	}
	tr, err := StartTracing(t.Context(), o)
	must.Succeed(t, err)
	return tr
}

// TestExport goes over both protocols: ids, parents, attributes, resource and headers arrive, and
// Stop is what sends them.
func TestExport(t *testing.T) {
	f := func(protocol string, endpoint func(*otlptest.Collector) string, compression string) {
		t.Run(protocol+compression, func(t *testing.T) {
			c := otlptest.Start(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint(c))
			t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
			t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.name=overridden,team=limits")
			t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=from%20environment")
			log, _ := newLog()
			tr := start(t, TracingOptions{
				Protocol: protocol, SamplingRate: 1, Log: log,
				Resource: []attribute.KeyValue{attribute.String("service.name", "probe")},
				Default: []attribute.KeyValue{attribute.String("team", "nobody"),
					attribute.String("service.version", "1.2")},
			})
			ctx, outer := tr.Tracer("scope").Start(t.Context(), "outer", trace.WithSpanKind(trace.SpanKindServer))
			_, inner := tr.Tracer("scope").Start(ctx, "inner")
			inner.SetAttributes(attribute.String("domain", "d"))
			inner.End()
			outer.End()
			must.Succeed(t, tr.Stop(10*time.Second))
			spans := c.Await(t, "outer", "inner")
			in, out := otlptest.Named(t, spans, "inner"), otlptest.Named(t, spans, "outer")
			if in.Parent != out.ID || in.TraceID != out.TraceID || out.Parent != "" ||
				out.Kind != "server" || in.Kind != "internal" || in.Scope != "scope" {
				t.Errorf("%+v\n%+v", in, out)
			}
			want := map[string]string{"service.name": "probe", "team": "limits", "deployment.environment": "test",
				"service.version": "1.2"}
			for name, value := range want {
				if in.Resource[name] != value {
					t.Errorf("resource %s is %q, want %q", name, in.Resource[name], value)
				}
			}
			if in.Attributes["domain"] != "d" || in.Headers["x-token"] != "from environment" ||
				in.Protocol != protocol {
				t.Errorf("%+v", in)
			}
			if sent, lost := tr.Spans(); sent != 2 || lost != 0 {
				t.Errorf("%d sent, %d lost", sent, lost)
			}
		})
	}
	f("http", func(c *otlptest.Collector) string { return c.HTTP }, "")
	f("http", func(c *otlptest.Collector) string { return c.HTTP }, "gzip")
	f("grpc", func(c *otlptest.Collector) string { return c.GRPC }, "")
}

func TestHeadersOption(t *testing.T) {
	c := otlptest.Start(t)
	for protocol, endpoint := range map[string]string{"http": c.HTTP, "grpc": c.GRPC} {
		t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
		tr := start(t, TracingOptions{Protocol: protocol, SamplingRate: 1,
			Headers: map[string]string{"x-token": "from a file"}})
		_, span := tr.Tracer("s").Start(t.Context(), protocol)
		span.End()
		must.Succeed(t, tr.Stop(10*time.Second))
		if s := otlptest.Named(t, c.Await(t, protocol), protocol); s.Headers["x-token"] != "from a file" {
			t.Errorf("%s: %v", protocol, s.Headers)
		}
	}
}

// TestSampling: the rate decides where a trace begins; a caller's choice is followed.
func TestSampling(t *testing.T) {
	f := func(rate float64, parent string, want bool) {
		t.Helper()
		tr := start(t, TracingOptions{Protocol: "http", SamplingRate: rate})
		defer tr.Stop(10 * time.Second)
		ctx := tr.Propagator.Extract(t.Context(), propagation.MapCarrier{"traceparent": parent})
		_, span := tr.Tracer("s").Start(ctx, "x")
		if got := span.SpanContext().IsSampled(); got != want || span.IsRecording() != want {
			t.Errorf("rate %v with parent %q: sampled is %v, want %v", rate, parent, got, want)
		}
	}
	f(1, "", true)
	f(0, "", false)
	f(0, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", true)
	f(1, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", false)

	half := start(t, TracingOptions{Protocol: "http", SamplingRate: 0.5})
	n := 0
	for range 2000 {
		_, span := half.Tracer("s").Start(t.Context(), "x")
		if span.IsRecording() {
			n++
		}
	}
	half.exporter.cancel() // there is no receiver
	half.Stop(time.Second)
	if n < 800 || n > 1200 {
		t.Errorf("%d of 2000 are sampled, want half", n)
	}
}

func TestPropagation(t *testing.T) {
	const id, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	f := func(headers map[string]string, wantID string, sampled bool) {
		t.Helper()
		sc := trace.SpanContextFromContext(Propagator().Extract(t.Context(), propagation.MapCarrier(headers)))
		if wantID == "" && sc.IsValid() || wantID != "" &&
			(sc.TraceID().String() != wantID || sc.SpanID().String() != span || sc.IsSampled() != sampled) {
			t.Errorf("%v gave %v %v, sampled %v", headers, sc.TraceID(), sc.SpanID(), sc.IsSampled())
		}
	}
	f(map[string]string{"traceparent": "00-" + id + "-" + span + "-01"}, id, true)
	f(map[string]string{"b3": id + "-" + span + "-1"}, id, true)
	f(map[string]string{"b3": id + "-" + span + "-0"}, id, false)
	f(map[string]string{"x-b3-traceid": id, "x-b3-spanid": span, "x-b3-sampled": "1"}, id, true)
	f(map[string]string{"x-b3-traceid": "8448eb211c80319c", "x-b3-spanid": span, "x-b3-sampled": "1"},
		"0000000000000000"+"8448eb211c80319c", true)
	f(map[string]string{"traceparent": "00-" + id + "-" + span + "-01",
		"b3": "ffffffffffffffffffffffffffffffff-" + span + "-0"}, id, true)
	f(map[string]string{"traceparent": "nonsense", "b3": "nonsense"}, "", false)
	f(nil, "", false)
}

// TestOutage: a collector that refuses is one line, its return another, and the spans are counted.
func TestOutage(t *testing.T) {
	var mu sync.Mutex
	status := http.StatusBadRequest // is not tried again
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.WriteHeader(status)
	}))
	defer web.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", web.URL)
	log, text := newLog()
	tr := start(t, TracingOptions{Protocol: "http", SamplingRate: 1, Log: log})
	record := func() {
		t.Helper()
		_, span := tr.Tracer("s").Start(t.Context(), "x")
		span.End()
		must.Succeed(t, tr.provider.ForceFlush(t.Context()))
	}
	record()
	record()
	mu.Lock()
	status = http.StatusOK
	mu.Unlock()
	record()
	if err := tr.Stop(10 * time.Second); err != nil {
		t.Error(err)
	}
	if sent, lost := tr.Spans(); sent != 1 || lost != 2 {
		t.Errorf("%d sent, %d lost", sent, lost)
	}
	if n := strings.Count(text.String(), "takes no spans"); n != 1 {
		t.Errorf("%d warnings:\n%s", n, text)
	}
	if !strings.Contains(text.String(), "takes spans again\" lost=2") {
		t.Errorf("nothing about its return:\n%s", text)
	}
}

// TestStop_bounded: a collector that accepts and says nothing holds up no stop.
func TestStop_bounded(t *testing.T) {
	silent := make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-silent }))
	defer web.Close()
	defer close(silent)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", web.URL)
	log, _ := newLog()
	tr := start(t, TracingOptions{Protocol: "http", SamplingRate: 1, Log: log})
	_, span := tr.Tracer("s").Start(t.Context(), "x")
	span.End()
	if tr.Stop(50*time.Millisecond) == nil {
		t.Error("Stop does not say that spans were lost")
	}
}

func TestStartTracing_unknownProtocol(t *testing.T) {
	if _, err := StartTracing(t.Context(), TracingOptions{Protocol: "zipkin"}); err == nil ||
		!strings.Contains(err.Error(), "zipkin") {
		t.Error(err)
	}
}

func TestCheckEnvironment(t *testing.T) {
	dir := t.TempDir()
	none := filepath.Join(dir, "none")
	empty := filepath.Join(dir, "empty")
	must.Succeed(t, os.WriteFile(empty, []byte("no PEM"), 0o600))
	f := func(protocol, environ string, want ...string) {
		t.Helper()
		vars := map[string]string{}
		for item := range strings.FieldsSeq(environ) {
			name, value, _ := strings.Cut(item, "=")
			vars["OTEL_EXPORTER_OTLP_"+name] = value
		}
		got := CheckEnvironment("TRACES", protocol, func(n string) string { return vars[n] })
		for i := range want {
			want[i] = "OTEL_EXPORTER_OTLP_" + want[i]
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", environ, d)
		}
	}
	f("http", "")
	f("http", "ENDPOINT=http://c:4318/base TIMEOUT=500 COMPRESSION=gzip INSECURE=TRUE HEADERS=a=b,c=d%20e")
	f("http", "ENDPOINT=c:4318", "ENDPOINT: not a URL such as http://collector:4318")
	f("http", "TRACES_ENDPOINT=127.0.0.1:4318", "TRACES_ENDPOINT: not a URL such as http://collector:4318")
	f("http", "METRICS_ENDPOINT=nonsense")
	f("grpc", "ENDPOINT=c:4317")
	f("grpc", "ENDPOINT=127.0.0.1:4317", "ENDPOINT: not a URL such as http://collector:4317")
	f("grpc", "ENDPOINT=http://", "ENDPOINT: not a URL such as http://collector:4317")
	f("http", "TIMEOUT=10s", `TIMEOUT: "10s" is not a number of milliseconds, such as 10000`)
	f("http", "COMPRESSION=zstd INSECURE=yes", `COMPRESSION: "zstd" is neither gzip nor none`,
		`INSECURE: "yes" is neither true nor false`)
	f("http", "HEADERS=secret", "HEADERS: item 1 is not name=value")
	f("http", "HEADERS=a=b,x:y=secret", "HEADERS: item 2: its name is no header's name")
	f("http", "HEADERS=a=%zz", "HEADERS: item 1: a % in its value begins no percent-encoded byte")
	f("http", "CERTIFICATE="+none, "CERTIFICATE: open "+none+": no such file or directory")
	f("http", "CERTIFICATE="+empty, "CERTIFICATE: "+empty+" holds no PEM certificate")
	f("http", "CLIENT_KEY=/k", "CLIENT_KEY: needs OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE")
	f("http", "TRACES_CLIENT_CERTIFICATE=/c", "TRACES_CLIENT_CERTIFICATE: needs OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY")
	f("http", "CLIENT_CERTIFICATE="+none+" CLIENT_KEY="+none,
		"CLIENT_CERTIFICATE: open "+none+": no such file or directory")
}

func FuzzParseHeaders(f *testing.F) {
	for _, s := range []string{"", "a=b", "a=b,c=d%20e", "a", "=b", "a=%zz", ",,", "a=b=c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		headers, err := ParseHeaders(in)
		if err != nil {
			return
		}
		for name := range headers {
			if name == "" || strings.ContainsAny(name, " :,=\r\n") {
				t.Errorf("%q gave the name %q", in, name)
			}
		}
	})
}

// TestDiagnostics: the SDK's own words come with the daemon's levels.
func TestDiagnostics(t *testing.T) {
	log, text := newLog()
	Diagnostics(log, slog.LevelDebug)
	defer Diagnostics(slog.New(slog.DiscardHandler), slog.LevelDebug)
	otel.Handle(errors.New("boom"))
	if !strings.Contains(text.String(), `level=WARN msg="opentelemetry: boom" component=opentelemetry`) {
		t.Error(text)
	}
	h := sdkHandler{log.Handler(), slog.LevelDebug}
	l := slog.New(h)
	for level, want := range map[slog.Level]string{slog.LevelError: "ERROR", -1: "WARN", -4: "DEBUG", -8: "DEBUG"} {
		l.Log(context.Background(), level, "said "+want)
		if !strings.Contains(text.String(), "level="+want+` msg="opentelemetry: said `+want) {
			t.Errorf("level %d: %s", level, text)
		}
	}
}

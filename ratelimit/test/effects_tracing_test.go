package test

import (
	"context"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/telemetry/otlptest"
	"gatehouse/shared/testdb"
)

const decisionSpan = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// startTraced starts a daemon whose spans go to a collector of the test, soon.
func startTraced(t *testing.T, env map[string]string) (*process, *otlptest.Collector) {
	t.Helper()
	c := otlptest.Start(t)
	all := map[string]string{"TRACING_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": c.HTTP,
		"OTEL_BSP_SCHEDULE_DELAY": "20"}
	maps.Copy(all, env)
	return start(t, `[{key: k, @100/y}]`, all), c
}

// span sends one request and returns its server span.
func span(t *testing.T, p *process, c *otlptest.Collector) otlptest.Span {
	t.Helper()
	decide1(t, p.dial(t), "k", "v")
	return otlptest.Named(t, c.Await(t, decisionSpan, "ShouldRateLimit Execution"), decisionSpan)
}

var _ = effect("TRACING_ENABLED", func(t *testing.T) {
	p, c := startTraced(t, nil)
	s := span(t, p, c)
	if s.Kind != "server" || s.Scope != "ratelimit server" || s.Parent != "" ||
		s.Attributes["rpc.grpc.status_code"] != "0" ||
		s.Attributes["rpc.service"] != "envoy.service.ratelimit.v3.RateLimitService" ||
		s.Attributes["rpc.method"] != "ShouldRateLimit" ||
		s.Attributes["rpc.system"] != "grpc" || s.Attributes["network.peer.address"] != "127.0.0.1" ||
		s.Attributes["network.peer.port"] == "" {
		t.Errorf("%+v", s)
	}
	inner := otlptest.Named(t, c.Spans(), "ShouldRateLimit Execution")
	if inner.Parent != s.ID || inner.Scope != "ratelimit" || inner.Kind != "internal" ||
		inner.Attributes["domain"] != "d" || inner.Attributes["request string"] != "" {
		t.Errorf("%+v", inner)
	}
	if r := s.Resource; r["service.version"] == "" || r["service.name"] != "RateLimit" ||
		len(r["service.instance.id"]) != 36 {
		t.Errorf("%v", r)
	}

	off := start(t, `[{key: k, @100/y}]`,
		map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.HTTP, "OTEL_BSP_SCHEDULE_DELAY": "20"})
	before := len(c.Spans())
	decide1(t, off.dial(t), "k", "v")
	must.Succeed(t, off.Stop(time.Minute))
	if n := len(c.Spans()); n != before {
		t.Errorf("%d spans with tracing off", n-before)
	}
})

// The caller's trace goes on, whichever way it is written; health checks and /json are traced too.
func TestTracing_propagation(t *testing.T) {
	t.Parallel()
	p, c := startTraced(t, map[string]string{"TRACING_SAMPLING_RATE": "0"})
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	must.Succeed(t, err)
	defer conn.Close()
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	ctx := func(pairs ...string) context.Context {
		return metadata.AppendToOutgoingContext(t.Context(), pairs...)
	}
	find := func(name, traceID string) otlptest.Span {
		t.Helper()
		var found otlptest.Span
		await.True(t, name+" of "+traceID, func() bool {
			for _, s := range c.Spans() {
				if s.Name == name && s.TraceID == traceID {
					found = s
				}
			}
			return found.Name != ""
		})
		return found
	}
	client := p.dial(t)
	for digit, pairs := range map[string][]string{
		"1": {"traceparent", "00-1" + id[1:] + "-" + parent + "-01"},
		"2": {"b3", "2" + id[1:] + "-" + parent + "-1"},
		"3": {"x-b3-traceid", "3" + id[1:], "x-b3-spanid", parent, "x-b3-sampled", "1"},
	} {
		must.Succeed(t, must.ErrOf(client.ShouldRateLimit(ctx(pairs...), request("k", "v"))))
		if s := find(decisionSpan, digit+id[1:]); s.Parent != parent {
			t.Errorf("%v: parent %q", pairs, s.Parent)
		}
		req, err := http.NewRequestWithContext(t.Context(), "POST", "http://"+p.http+"/json",
			strings.NewReader(`{"domain": "d", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}]}`))
		must.Succeed(t, err)
		for i := 0; i < len(pairs); i += 2 {
			req.Header.Set(pairs[i], pairs[i+1])
		}
		resp, err := http.DefaultClient.Do(req)
		must.Succeed(t, err)
		resp.Body.Close()
		s := find("POST /json", digit+id[1:])
		if s.Parent != parent || s.Kind != "server" || s.Attributes["http.response.status_code"] != "200" ||
			s.Attributes["http.route"] != "/json" {
			t.Errorf("%v: %+v", pairs, s)
		}
		if rest := find("NewJsonHandler Remaining Execution", digit+id[1:]); rest.Parent != s.ID ||
			rest.Attributes["response"] != "" {
			t.Errorf("%v: %+v", pairs, rest)
		}
	}
	must.Succeed(t, must.ErrOf(healthpb.NewHealthClient(conn).Check(ctx("b3", "4"+id[1:]+"-"+parent+"-1"),
		&healthpb.HealthCheckRequest{})))
	find("grpc.health.v1.Health/Check", "4"+id[1:])
	must.Succeed(t, must.ErrOf(client.ShouldRateLimit(ctx("b3", "5"+id[1:]+"-"+parent+"-1"), request("", ""))))
	for _, s := range c.Spans() {
		if !strings.HasSuffix(s.TraceID, id[1:]) {
			t.Errorf("sampled although the rate is 0: %+v", s)
		}
	}
}

// What was recorded before a stop is exported by it, however long batches gather.
func TestTracing_flushedAtDrain(t *testing.T) {
	t.Parallel()
	p, c := startTraced(t, map[string]string{"OTEL_BSP_SCHEDULE_DELAY": "3600000"})
	decide1(t, p.dial(t), "k", "v")
	must.Succeed(t, p.Stop(20*time.Second))
	otlptest.Named(t, c.Spans(), decisionSpan)
}

// A collector that is not there costs no answer and no stop, one line, and is counted.
func TestTracing_outage(t *testing.T) {
	t.Parallel()
	p := start(t, `[{key: k, @100/y}]`, map[string]string{
		"TRACING_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
		"OTEL_EXPORTER_OTLP_TIMEOUT": "100",
		"OTEL_BSP_SCHEDULE_DELAY":    "20",
	})
	decide1(t, p.dial(t), "k", "v")
	p.log.await(t, "the collector takes no spans", nil)
	await.True(t, "lost spans are counted", func() bool {
		_, body := get(t, p.debug+"/stats")
		return strings.Contains(body, "ratelimit.tracing.spans_lost: ") &&
			!strings.Contains(body, "ratelimit.tracing.spans_lost: 0")
	})
	must.Succeed(t, p.Stop(20*time.Second))
}

// A store's part is a span of its own, below the decision's, with the hits sent to each store.
func TestTracing_store(t *testing.T) {
	t.Parallel()
	f := func(name, scope string, want, env map[string]string) {
		t.Helper()
		c := otlptest.Start(t)
		all := map[string]string{"TRACING_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": c.HTTP,
			"OTEL_BSP_SCHEDULE_DELAY": "20"}
		maps.Copy(all, env)
		if code, answer := post(t, start(t, perSecondRules, all), "s=v", "m=v", "m=w"); code != http.StatusOK {
			t.Fatalf("%d %s", code, answer)
		}
		spans := c.Await(t, name, "POST /json")
		store, decision, request := otlptest.Named(t, spans, name),
			otlptest.Named(t, spans, "ShouldRateLimit Execution"), otlptest.Named(t, spans, "POST /json")
		if store.Parent != decision.ID || decision.Parent != request.ID || store.Scope != scope ||
			!maps.Equal(store.Attributes, want) {
			t.Errorf("%+v\n%+v", store, decision)
		}
	}
	redis := testdb.Redis(t).URL()
	f("Redis Pipeline Execution", "redis.fixedCacheImpl",
		map[string]string{"pipeline length": "3", "perSecondPipeline length": "0"}, on("single", redis))
	f("Redis Pipeline Execution", "redis.fixedCacheImpl",
		map[string]string{"pipeline length": "2", "perSecondPipeline length": "1"}, withPerSecond(redis, redis))
	_, nodes := memcached(t, 1)
	f("Memcached Fetch Execution", "memcached.cacheImpl", map[string]string{"keysToGet length": "3"},
		onMemcache("MCACHE_HOST_PORT", nodes))
}

var _ = effect("TRACING_EXPORTER_PROTOCOL", func(t *testing.T) {
	c := otlptest.Start(t)
	p := start(t, `[{key: k, @100/y}]`, map[string]string{"TRACING_ENABLED": "true", "OTEL_BSP_SCHEDULE_DELAY": "20",
		"TRACING_EXPORTER_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_ENDPOINT": c.GRPC})
	if s := span(t, p, c); s.Protocol != "grpc" {
		t.Errorf("%+v", s)
	}
})

var _ = effect("TRACING_SERVICE_NAME TRACING_SERVICE_NAMESPACE TRACING_SERVICE_INSTANCE_ID", func(t *testing.T) {
	p, c := startTraced(t, map[string]string{"TRACING_SERVICE_NAME": "limits", "TRACING_SERVICE_NAMESPACE": "edge",
		"TRACING_SERVICE_INSTANCE_ID": "pod-7", "OTEL_SERVICE_NAME": "other"})
	if r := span(t, p, c).Resource; r["service.name"] != "limits" || r["service.namespace"] != "edge" ||
		r["service.instance.id"] != "pod-7" {
		t.Errorf("%v", r)
	}
})

var _ = effect("TRACING_SAMPLING_RATE", func(t *testing.T) {
	p, c := startTraced(t, map[string]string{"TRACING_SAMPLING_RATE": "0.5"})
	client := p.dial(t)
	for range 200 {
		decide1(t, client, "k", "v")
	}
	if err := p.Stop(20 * time.Second); err != nil { // sends what is left
		t.Fatal(err)
	}
	n := 0
	for _, s := range c.Spans() {
		if s.Name == decisionSpan {
			n++
		}
	}
	if n < 50 || n > 150 { // 1 in 10^12 runs
		t.Errorf("%d of 200 requests are traced at a rate of 0.5", n)
	}
})

var _ = effect("TRACING_REQUEST_TEXT", func(t *testing.T) {
	p, c := startTraced(t, map[string]string{"TRACING_REQUEST_TEXT": "true"})
	span(t, p, c)
	if s := otlptest.Named(t, c.Spans(),
		"ShouldRateLimit Execution"); s.Attributes["request string"] !=
		`domain:"d" descriptors:{entries:{key:"k" value:"v"}}` {
		t.Errorf("%v", s.Attributes)
	}
	resp, err := http.Post("http://"+p.http+"/json", "application/json",
		strings.NewReader(`{"domain": "d", "descriptors": [{"entries": [{"key": "k"}]}]}`))
	must.Succeed(t, err)
	resp.Body.Close()
	if s := otlptest.Named(t, c.Await(t, "NewJsonHandler Remaining Execution"),
		"NewJsonHandler Remaining Execution"); !strings.Contains(s.Attributes["response"], "overallCode") {
		t.Errorf("%v", s.Attributes)
	}
})

var _ = effect("OTEL_EXPORTER_OTLP_HEADERS", func(t *testing.T) {
	p, c := startTraced(t, map[string]string{"OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b"})
	if s := span(t, p, c); s.Headers["api-key"] != "a b" {
		t.Errorf("%v", s.Headers)
	}
	file := filepath.Join(t.TempDir(), "headers")
	must.Succeed(t, os.WriteFile(file, []byte("api-key=filed\n"), 0o600))
	p, c = startTraced(t, map[string]string{"OTEL_EXPORTER_OTLP_HEADERS_FILE": file})
	if s := span(t, p, c); s.Headers["api-key"] != "filed" {
		t.Errorf("%v", s.Headers)
	}
})

// The standard variables are the SDK's own; that they reach it is what is shown.
var _ = effect("OTEL_EXPORTER_OTLP_ENDPOINT OTEL_EXPORTER_OTLP_COMPRESSION OTEL_RESOURCE_ATTRIBUTES",
	func(t *testing.T) {
		p, c := startTraced(t, map[string]string{"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
			"OTEL_RESOURCE_ATTRIBUTES": "team=edge,service.name=other"})
		if s := span(t, p, c); s.Headers["content-encoding"] != "gzip" || s.Resource["team"] != "edge" ||
			s.Resource["service.name"] != "RateLimit" {
			t.Errorf("%v %v", s.Headers, s.Resource)
		}
		other := otlptest.Start(t)
		p, _ = startTraced(t, map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": other.HTTP + "/v1/traces"})
		span(t, p, other)
		out, err := command(map[string]string{"BACKEND_TYPE": "memory", "TRACING_ENABLED": "true",
			"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}).CombinedOutput()
		if err == nil || !strings.Contains(string(out),
			"OTEL_EXPORTER_OTLP_ENDPOINT: not a URL such as http://collector:4318") {
			t.Errorf("%v %s", err, out)
		}
	})

// Package otlptest is an OTLP collector for tests: it receives spans and metrics over HTTP and gRPC, on free loopback
// ports, and keeps them.
//
// It supports only protobuf (no JSON), and no logs.
package otlptest

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metricscollector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// Collector keeps the spans and metrics that it receives.
type Collector struct {
	// HTTP is the base URL for OTLP over HTTP, GRPC the one for OTLP over gRPC: both are values for
	// OTEL_EXPORTER_OTLP_ENDPOINT.
	HTTP, GRPC string

	collector.UnimplementedTraceServiceServer
	mu     sync.Mutex
	spans  []Span
	points []Point
}

// Span is one span as it arrived. IDs are hexadecimal.
type Span struct {
	Name, Kind, Scope    string
	TraceID, ID, Parent  string
	Start, End           time.Time
	Failed               bool // the span's status is an error
	Attributes, Resource map[string]string
	Headers              map[string]string // of the export request, names in lower case
	Protocol             string            // http or grpc
}

// Start starts a collector, which ends with the test.
func Start(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	web := httptest.NewServer(http.HandlerFunc(c.serveHTTP))
	t.Cleanup(web.Close)
	c.HTTP = web.URL
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	collector.RegisterTraceServiceServer(g, c)
	metricscollector.RegisterMetricsServiceServer(g, metricsService{c: c})
	done := make(chan struct{})
	go func() { defer close(done); g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-done })
	c.GRPC = "http://" + l.Addr().String()
	return c
}

// Export implements the OTLP trace service.
func (c *Collector) Export(ctx context.Context,
	r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	headers := map[string]string{}
	md, _ := metadata.FromIncomingContext(ctx)
	for name, values := range md {
		headers[name] = strings.Join(values, ",")
	}
	c.keep(r, headers, "grpc")
	return &collector.ExportTraceServiceResponse{}, nil
}

func (c *Collector) serveHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != "/v1/traces" && r.URL.Path != "/v1/metrics" ||
		r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "POST /v1/traces or /v1/metrics with application/x-protobuf", http.StatusNotFound)
		return
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	headers := map[string]string{}
	for name, values := range r.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ",")
	}
	b, err := io.ReadAll(body)
	var answer proto.Message
	if err == nil && r.URL.Path == "/v1/metrics" {
		var in metricscollector.ExportMetricsServiceRequest
		if err = proto.Unmarshal(b, &in); err == nil {
			c.keepPoints(&in, headers, "http")
		}
		answer = &metricscollector.ExportMetricsServiceResponse{}
	} else if err == nil {
		var in collector.ExportTraceServiceRequest
		if err = proto.Unmarshal(b, &in); err == nil {
			c.keep(&in, headers, "http")
		}
		answer = &collector.ExportTraceServiceResponse{}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	out, _ := proto.Marshal(answer)
	w.Write(out)
}

func (c *Collector) keep(r *collector.ExportTraceServiceRequest, headers map[string]string, protocol string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range r.GetResourceSpans() {
		resource := attributes(rs.GetResource().GetAttributes())
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, Span{
					Name: s.GetName(), Kind: strings.ToLower(strings.TrimPrefix(s.GetKind().String(), "SPAN_KIND_")),
					Scope:   ss.GetScope().GetName(),
					TraceID: fmt.Sprintf("%x", s.GetTraceId()), ID: fmt.Sprintf("%x", s.GetSpanId()),
					Parent:     fmt.Sprintf("%x", s.GetParentSpanId()),
					Start:      time.Unix(0, int64(s.GetStartTimeUnixNano())),
					End:        time.Unix(0, int64(s.GetEndTimeUnixNano())),
					Failed:     s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR,
					Attributes: attributes(s.GetAttributes()), Resource: resource, Headers: headers, Protocol: protocol,
				})
			}
		}
	}
}

func attributes(all []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range all {
		m[kv.GetKey()] = text(kv.GetValue())
	}
	return m
}

func text(v *common.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_IntValue:
		return fmt.Sprint(v.IntValue)
	case *common.AnyValue_BoolValue:
		return fmt.Sprint(v.BoolValue)
	case *common.AnyValue_DoubleValue:
		return fmt.Sprint(v.DoubleValue)
	}
	return fmt.Sprint(v)
}

// Spans returns the spans received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Await returns the received spans as soon as there is one with each of the names. It fails the test after 20 seconds.
// A sender keeps spans for OTEL_BSP_SCHEDULE_DELAY, which the test should set: the default is 5 seconds.
func (c *Collector) Await(t testing.TB, names ...string) []Span {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		missing := map[string]bool{}
		for _, n := range names {
			missing[n] = true
		}
		spans := c.Spans()
		for _, s := range spans {
			delete(missing, s.Name)
		}
		if len(missing) == 0 {
			return spans
		}
		if time.Now().After(end) {
			t.Fatalf("no span %q within 20 s among %d", slices.Sorted(maps.Keys(missing)), len(spans))
		}
	}
}

// Named returns the first span with this name, and fails the test if there is none.
func Named(t testing.TB, spans []Span, name string) Span {
	t.Helper()
	for _, s := range spans {
		if s.Name == name {
			return s
		}
	}
	t.Fatalf("no span %q among %d", name, len(spans))
	return Span{}
}

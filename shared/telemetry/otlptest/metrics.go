package otlptest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	metricscollector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	"google.golang.org/grpc/metadata"
)

// Point is one data point as it arrived, of a sum, a gauge or a histogram. For a histogram, Value is the number of
// measurements.
type Point struct {
	Name, Unit           string
	Value                float64
	Attributes, Resource map[string]string
	Headers              map[string]string // of the export request, names in lower case
	Protocol             string            // http or grpc
}

// metricsService implements the OTLP metrics service. It is a type of its own, since its method has the same name as
// the trace service's.
type metricsService struct {
	metricscollector.UnimplementedMetricsServiceServer
	c *Collector
}

// Export implements the OTLP metrics service.
func (s metricsService) Export(ctx context.Context,
	r *metricscollector.ExportMetricsServiceRequest) (*metricscollector.ExportMetricsServiceResponse, error) {
	headers := map[string]string{}
	md, _ := metadata.FromIncomingContext(ctx)
	for name, values := range md {
		headers[name] = strings.Join(values, ",")
	}
	s.c.keepPoints(r, headers, "grpc")
	return &metricscollector.ExportMetricsServiceResponse{}, nil
}

func (c *Collector) keepPoints(r *metricscollector.ExportMetricsServiceRequest, headers map[string]string,
	protocol string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rm := range r.GetResourceMetrics() {
		resource := attributes(rm.GetResource().GetAttributes())
		for _, sm := range rm.GetScopeMetrics() {
			for _, m := range sm.GetMetrics() {
				keep := func(p Point) {
					p.Name, p.Unit, p.Resource, p.Headers, p.Protocol = m.GetName(), m.GetUnit(), resource, headers,
						protocol
					c.points = append(c.points, p)
				}
				for _, p := range slices.Concat(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()) {
					// A value is either a double or an integer; the getter for the other type returns 0.
					value := p.GetAsDouble() + float64(p.GetAsInt())
					keep(Point{Value: value, Attributes: attributes(p.GetAttributes())})
				}
				for _, p := range m.GetHistogram().GetDataPoints() {
					keep(Point{Value: float64(p.GetCount()), Attributes: attributes(p.GetAttributes())})
				}
			}
		}
	}
}

// AwaitPoint returns the first data point with this name for which the function fits returns true. It fails the test
// after 20 seconds. A sender exports once in each OTEL_METRIC_EXPORT_INTERVAL, which the test should set: the default
// is a minute.
func (c *Collector) AwaitPoint(t testing.TB, name string, fits func(Point) bool) Point {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c.mu.Lock()
		points := slices.Clone(c.points)
		c.mu.Unlock()
		for _, p := range points {
			if p.Name == name && fits(p) {
				return p
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no fitting figure %q within 20 s among %d", name, len(points))
		}
	}
}

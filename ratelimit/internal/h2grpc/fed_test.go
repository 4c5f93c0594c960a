package h2grpc

import (
	"context"
	"net"
	"net/http"
	"testing"

	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
)

// newFed is a connection without a network, whose reader is the test.
func newFed(t testing.TB) (*conn, *recorder) {
	t.Helper()
	s := newTestServer(t)
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	s.exchanges.all = exchangesInAll // no goroutines
	c := newConn(s, near)
	out := &recorder{}
	c.wire, c.out.wire = out, out
	return c, out
}

func newTestServer(t testing.TB) *Server {
	t.Helper()
	registry := stats.NewRegistry(stats.Options{})
	svc := service.New(service.Options{
		Store: memory.New(memory.Options{}), Stats: registry,
		Caps: service.Caps{Descriptors: 256, Entries: 64, TextBytes: 64 << 10},
	})
	const rule = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: day, requests_per_unit: 4000000000}}\n"
	rules, _, err := rulefile.Load(context.Background(), []rulefile.File{{Name: "rules.yaml", Text: []byte(rule)}},
		limits.Options{Settings: limits.Settings{NearRatio: 0.8}, Stats: registry})
	if err != nil {
		t.Fatal(err)
	}
	svc.SetRules(rules)
	return New(Options{
		Service: svc, Path: testPath, Stats: registry, MaxStreams: 1024, MinPing: 1,
		Other:    http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }),
		Panicked: func(p any) { t.Errorf("panic: %v", p) },
	})
}

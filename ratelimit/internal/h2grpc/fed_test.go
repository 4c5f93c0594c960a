package h2grpc

import (
	"context"
	"net"
	"os"
	"syscall"
	"testing"

	"google.golang.org/grpc/health"

	"gatehouse/ratelimit/internal/counter/memory"
	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/must"
)

// newFed is a connection without a network, whose reader is the test.
func newFed(t testing.TB) (*conn, *recorder) {
	t.Helper()
	s := newTestServer(t)
	ends, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	must.Succeed(t, err)
	file, far := os.NewFile(uintptr(ends[0]), ""), os.NewFile(uintptr(ends[1]), "")
	near, err := net.FileConn(file)
	must.Succeed(t, err)
	t.Cleanup(func() { near.Close(); file.Close(); far.Close() })
	s.watches.Store(watchesInAll) // no goroutines
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
	must.Succeed(t, err)
	svc.SetRules(rules)
	return NewServer(Options{
		Service: svc, Path: testPath, Stats: registry, MaxStreams: 1024, MinPing: 1,
		Health:   health.NewServer(),
		Panicked: func(p any) { t.Errorf("panic: %v", p) },
	})
}

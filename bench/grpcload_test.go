//go:build linux

package main

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"gatehouse/shared/must"
)

// TestClientLoop has grpc-go's client make the calls, in both loops.
func TestClientLoop(t *testing.T) {
	addr := startYardstick(t, "tuned single")
	f := func(rate float64) {
		t.Helper()
		marks := 0
		r, err := load{
			addr: addr, traffic: clientTraffic{grpcTraffic{scenario: scenarios["single"], streams: 4}}, conns: 2,
			rate: rate,
			warm: 50 * time.Millisecond, run: 300 * time.Millisecond, mark: func() error { marks++; return nil },
		}.drive()
		must.Succeed(t, err)
		if r.ok == 0 || r.over != 0 || r.failed != 0 || marks != 2 || r.elapsed < 300*time.Millisecond {
			t.Errorf("%d OK, %d over, %d failed (%s), %d marks in %v", r.ok, r.over, r.failed, r.refusal, marks,
				r.elapsed)
		}
	}
	f(0)
	f(500)
	if _, err := (load{addr: "127.0.0.1:1", traffic: clientTraffic{grpcTraffic{scenario: scenarios["single"], streams: 1}}, conns: 1, run: 10 * time.Millisecond}).drive(); err == nil {
		t.Error("a load without a server has a result")
	}
}

// sizes counts small and large calls, and may refuse the large ones.
type sizes struct {
	ratelimitv3.UnimplementedRateLimitServiceServer
	small, large atomic.Int64
	refuse       bool
}

func (s *sizes) ShouldRateLimit(_ context.Context,
	r *ratelimitv3.RateLimitRequest) (*ratelimitv3.RateLimitResponse, error) {
	if len(r.Descriptors) == 1 {
		s.small.Add(1)
		return answers["single"], nil
	}
	s.large.Add(1)
	if s.refuse {
		return nil, status.Error(codes.Unavailable, "too large")
	}
	return answers["single"], nil
}

// TestLargeCalls measures the small calls alone, but fails those large ones that are refused.
func TestLargeCalls(t *testing.T) {
	f := func(refuse bool) {
		t.Helper()
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		must.Succeed(t, err)
		served, server := &sizes{refuse: refuse}, grpc.NewServer()
		ratelimitv3.RegisterRateLimitServiceServer(server, served)
		go server.Serve(listener)
		defer server.Stop()
		r, err := load{addr: listener.Addr().String(), conns: 1, run: 200 * time.Millisecond, traffic: grpcTraffic{
			scenario: scenarios["single"], streams: 8, large: scenarios["patterns"], largeEvery: 4, literalPath: true,
		}}.drive()
		must.Succeed(t, err)
		small, large := served.small.Load(), served.large.Load()
		// Eight are in flight when it ends.
		if large == 0 || small < 3*large-32 || small > 3*large+32 || int64(r.ok) > small || int64(r.ok) < small-8 {
			t.Errorf("%d small and %d large calls, %d counted; want three small to each large one, and all small "+
				"ones counted", small, large, r.ok)
		}
		if (r.failed > 0) != refuse {
			t.Errorf("large calls refused: %v, but %d calls failed", refuse, r.failed)
		}
	}
	f(false)
	f(true)
}

// TestBurst sends one to servers that answer each call as it should be, and that do not.
func TestBurst(t *testing.T) {
	closing := func(fd int) { unix.Close(fd) }
	calls, err := burst(startYardstick(t, "tuned single"), closing)
	if err != nil || calls < 500 {
		t.Errorf("%d calls in a burst of %d KiB: %v", calls, burstBytes>>10, err)
	}
	if _, err := burst(startFlaky(t), closing); err == nil {
		t.Error("refusals were taken for answers")
	}
}

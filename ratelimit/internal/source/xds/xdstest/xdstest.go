// Package xdstest provides a control plane for tests. It uses go-control-plane, the library of real control planes.
package xdstest

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
)

// Plane is a control plane whose server can be stopped and started again without losing its resources.
type Plane struct {
	t     testing.TB
	cache cache.SnapshotCache
	stop  context.CancelFunc
	grpc  *grpc.Server
	// Addr is the address of the server. It stays the same when the server is started again.
	Addr string

	mu       sync.Mutex
	more     chan struct{} // closed and replaced whenever a request arrives
	requests []*discoverypb.DiscoveryRequest
	headers  []metadata.MD
	streams  []time.Time
}

// everybody gives all clients the same key, so that they receive the same resources.
type everybody struct{}

func (everybody) ID(*corepb.Node) string { return "everybody" }

// New returns a control plane that serves on a free port of 127.0.0.1 until the test ends.
func New(t testing.TB, options ...grpc.ServerOption) *Plane {
	t.Helper()
	p := &Plane{t: t, cache: cache.NewSnapshotCache(false, everybody{}, nil), Addr: "127.0.0.1:0",
		more: make(chan struct{})}
	p.Serve(options...)
	t.Cleanup(p.Kill)
	return p
}

// Set replaces all resources by those in configs.
func (p *Plane) Set(version string, configs ...*rlsconf.RateLimitConfig) {
	p.t.Helper()
	all := make([]types.Resource, len(configs))
	for i, c := range configs {
		all[i] = proto.CloneOf(c) // copied, since the cache encodes the message later, when a client requests it
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: all})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.cache.SetSnapshot(context.Background(), "everybody", snapshot); err != nil {
		p.t.Fatal(err)
	}
}

// Serve starts the server. After Kill, it has the same address as before.
func (p *Plane) Serve(options ...grpc.ServerOption) {
	p.t.Helper()
	l, err := net.Listen("tcp", p.Addr)
	if err != nil {
		p.t.Fatal(err)
	}
	p.Addr = l.Addr().String()
	var ctx context.Context
	ctx, p.stop = context.WithCancel(context.Background())
	p.grpc = grpc.NewServer(options...)
	discoverypb.RegisterAggregatedDiscoveryServiceServer(p.grpc,
		serverv3.NewServer(ctx, p.cache, serverv3.CallbackFuncs{
			StreamOpenFunc: func(ctx context.Context, _ int64, _ string) error {
				p.mu.Lock()
				defer p.mu.Unlock()
				md, _ := metadata.FromIncomingContext(ctx)
				p.headers, p.streams = append(p.headers, md), append(p.streams, time.Now())
				return nil
			},
			StreamRequestFunc: func(_ int64, r *discoverypb.DiscoveryRequest) error {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.requests = append(p.requests, proto.CloneOf(r))
				close(p.more)
				p.more = make(chan struct{})
				return nil
			},
		}))
	go p.grpc.Serve(l)
}

// Kill cuts every connection and stops the server.
func (p *Plane) Kill() {
	p.grpc.Stop()
	p.stop()
}

// Requests returns all requests received so far, in order.
func (p *Plane) Requests() []*discoverypb.DiscoveryRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// Request waits for the request with number n, counted from 0, and returns it.
func (p *Plane) Request(n int) *discoverypb.DiscoveryRequest {
	p.t.Helper()
	for timeout := time.After(20 * time.Second); ; {
		p.mu.Lock()
		requests, more := p.requests, p.more
		p.mu.Unlock()
		if len(requests) > n {
			return requests[n]
		}
		select {
		case <-more:
		case <-timeout:
			p.t.Fatalf("%d requests within 20 s, want %d: %v", len(requests), n+1, requests)
		}
	}
}

// Headers returns the headers of each stream so far, in order.
func (p *Plane) Headers() []metadata.MD {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.headers)
}

// Streams returns the times at which the streams so far began.
func (p *Plane) Streams() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.streams)
}

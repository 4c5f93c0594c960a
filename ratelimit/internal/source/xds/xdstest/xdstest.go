// Package xdstest is a control plane for tests, on the library that real control planes use.
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

// Plane is a control plane whose server may stop and start again; its resources stay.
type Plane struct {
	t     testing.TB
	cache cache.SnapshotCache
	stop  context.CancelFunc
	grpc  *grpc.Server
	// Addr is the server's address, the same after each Serve.
	Addr string

	mu       sync.Mutex
	more     chan struct{} // closed and replaced whenever a request arrives
	requests []*discoverypb.DiscoveryRequest
	headers  []metadata.MD
	streams  []time.Time
}

// everybody gives all clients the same resources.
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

// Set replaces all resources.
func (p *Plane) Set(version string, configs ...*rlsconf.RateLimitConfig) {
	p.t.Helper()
	all := make([]types.Resource, len(configs))
	for i, c := range configs {
		all[i] = proto.CloneOf(c) // the cache encodes it when a client asks
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: all})
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.cache.SetSnapshot(context.Background(), "everybody", snapshot); err != nil {
		p.t.Fatal(err)
	}
}

// Serve begins to serve; after Kill, at the former address.
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

// Kill cuts every connection and stops listening.
func (p *Plane) Kill() {
	p.grpc.Stop()
	p.stop()
}

// Requests returns all requests so far, in order.
func (p *Plane) Requests() []*discoverypb.DiscoveryRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// Request waits for the request with that number, from 0.
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

// Headers returns the headers of each stream, in order.
func (p *Plane) Headers() []metadata.MD {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.headers)
}

// Streams returns the times at which streams began.
func (p *Plane) Streams() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.streams)
}

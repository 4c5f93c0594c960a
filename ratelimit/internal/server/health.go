package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// Component is one part of the daemon whose state counts for the daemon's health.
type Component uint8

// These are the components. A component does not count before Set is called for it.
const (
	// StoreLink is healthy while there are connections to the key-value store. It counts only with
	// KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION.
	StoreLink Component = iota
	// Rules is healthy while rules of at least one domain are loaded. It counts only with
	// HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED.
	Rules
	// Running is healthy from the opening of the listeners until the daemon is requested to stop.
	Running
	components
)

// Health is the daemon's health, which load balancers read over gRPC and over HTTP.
type Health struct {
	grpc *health.Server
	// draining ends the streams of the method Health/Watch, for which a graceful stop would otherwise wait for ever.
	draining context.Context
	drain    context.CancelFunc

	mu      sync.Mutex
	enabled [components]bool
	well    [components]bool
}

// NewHealth returns a Health that is unhealthy until Running is set.
func NewHealth() *Health {
	h := &Health{grpc: health.NewServer()}
	h.draining, h.drain = context.WithCancel(context.Background())
	h.Set(Running, false)
	return h
}

// Set sets whether a component is healthy. From the first call on, the component counts for the daemon's health.
func (h *Health) Set(c Component, well bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.enabled[c], h.well[c] = true, well
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if h.healthy() {
		state = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range []string{"", "ratelimit", serviceName} {
		h.grpc.SetServingStatus(name, state)
	}
}

// Watch sets a component to the result of f four times a second, until the daemon ends.
func (h *Health) Watch(c Component, f func() bool) {
	last := f()
	h.Set(c, last)
	go func() {
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-h.draining.Done():
				return
			case <-tick.C:
			}
			if now := f(); now != last {
				h.Set(c, now)
				last = now
			}
		}
	}()
}

// Healthy reports whether all components that count are healthy.
func (h *Health) Healthy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.healthy()
}

func (h *Health) healthy() bool {
	for c := range components {
		if h.enabled[c] && !h.well[c] {
			return false
		}
	}
	return true
}

// EndStreams ends the health and reflection streams that clients keep open, and makes new ones end at once.
func (h *Health) EndStreams() { h.drain() }

// endStreams is an interceptor that ends every stream after EndStreams. The handler of Health/Watch ends by itself. Any
// other handler may wait for its client, so it runs in a goroutine, and ends when its stream has ended.
func (h *Health) endStreams(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	if info.FullMethod == healthpb.Health_Watch_FullMethodName {
		return handler(srv, ss)
	}
	done := make(chan error, 1)
	go func() { done <- handler(srv, ss) }()
	select {
	case err := <-done:
		return err
	case <-h.draining.Done():
		return status.Error(codes.Unavailable, "the server is stopping")
	}
}

// service returns the implementation of the gRPC service grpc.health.v1.Health.
func (h *Health) service() healthpb.HealthServer { return healthService{h.grpc, h.draining} }

type healthService struct {
	*health.Server
	draining context.Context
}

// Watch implements healthpb.HealthServer. It also returns when EndStreams is called.
func (s healthService) Watch(in *healthpb.HealthCheckRequest, ss healthpb.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(ss.Context())
	defer cancel()
	defer context.AfterFunc(s.draining, cancel)()
	return s.Server.Watch(in, endable{ss, ctx})
}

type endable struct {
	healthpb.Health_WatchServer
	ctx context.Context
}

func (e endable) Context() context.Context { return e.ctx }

// ServeHTTP answers requests for /healthcheck, whatever their method: with 200 and the body OK, or with 500 and an
// empty body.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if !h.Healthy() {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Write([]byte("OK"))
}

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

// Component is one part that must be healthy for the daemon to be healthy.
type Component uint8

// The components. A component that was never set does not count.
const (
	// StoreLink is healthy while the key-value store has connections, with KVSTORE_HEALTH_CHECK_ACTIVE_CONNECTION.
	StoreLink Component = iota
	// Rules is healthy while there is at least one domain, with HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED.
	Rules
	// Running is healthy from the time when the listeners are open until a stop is requested.
	Running
	components
)

// Health is the daemon's state as balancers see it, over both gRPC and HTTP.
type Health struct {
	grpc *health.Server
	// draining ends the streams of Health/Watch, which would otherwise hold up a graceful stop for ever.
	draining context.Context
	drain    context.CancelFunc

	mu      sync.Mutex
	enabled [components]bool
	well    [components]bool
}

// NewHealth returns a Health that is unhealthy, since Running is false.
func NewHealth() *Health {
	h := &Health{grpc: health.NewServer()}
	h.draining, h.drain = context.WithCancel(context.Background())
	h.Set(Running, false)
	return h
}

// Set enables a component and sets whether it is healthy.
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

// Watch calls f for a component four times a second, for as long as the daemon runs.
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

// Healthy reports whether every enabled component is healthy.
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

// EndStreams ends the health and reflection streams that clients keep open, and refuses new ones.
func (h *Health) EndStreams() { h.drain() }

// endStreams ends every stream after EndStreams. The handler of a health stream ends by itself; any other handler waits
// for its client until its stream has ended.
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

// service returns grpc.health.v1.Health.
func (h *Health) service() healthpb.HealthServer { return healthService{h.grpc, h.draining} }

type healthService struct {
	*health.Server
	draining context.Context
}

// Watch implements healthpb.HealthServer. It returns when the daemon drains.
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

// ServeHTTP answers /healthcheck: 200 and OK, or 500 and an empty body, for any method.
func (h *Health) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if !h.Healthy() {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Write([]byte("OK"))
}

package server

import (
	"context"
	"net"

	"google.golang.org/grpc"

	"gatehouse/ratelimit/internal/h2grpc"
)

// Front serves gRPC on a listener until Shutdown.
type Front interface {
	// Serve accepts connections. It returns nil, grpc.ErrServerStopped or h2grpc.ErrServerClosed after Shutdown.
	Serve(net.Listener) error
	// Shutdown takes no new calls and waits for the calls in flight. When ctx ends, it cuts the remaining calls and
	// returns ctx's error.
	Shutdown(ctx context.Context) error
}

// NewFront returns the server that GRPC_SERVER names: the native one, or grpc-go.
func NewFront(o GRPCOptions) Front {
	if !o.Native {
		return grpcGo{NewGRPC(o)}
	}
	path := "/" + serviceName + "/ShouldRateLimit"
	panics := o.Stats.Counter(panicStat)
	return h2grpc.New(h2grpc.Options{
		Service: o.Service, Path: path, Health: o.Health.service(), Stats: o.Stats, TLS: o.TLS,
		HandshakeFailed: failedHandshakes(o), Memory: o.Memory, Tracing: o.Tracing.native(),
		Panicked:   func(p any) { reportPanic(o.Log, panics, p) },
		MaxStreams: o.MaxStreams, MaxAge: o.MaxAge, MaxAgeGrace: o.MaxAgeGrace,
		KeepaliveTime: o.KeepaliveTime, KeepaliveTimeout: o.KeepaliveTimeout, MinPing: max(1, o.MinPing-minPingSlack),
	})
}

type grpcGo struct{ *grpc.Server }

// Serve implements Front.
func (g grpcGo) Serve(l net.Listener) error { return g.Server.Serve(Listener(l)) }

// Shutdown implements Front.
func (g grpcGo) Shutdown(ctx context.Context) error {
	done := make(chan struct{})
	go func() { g.GracefulStop(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		g.Stop()
		<-done
		return ctx.Err()
	}
}

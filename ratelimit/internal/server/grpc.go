package server

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"gatehouse/ratelimit/internal/grpctls"
	"gatehouse/ratelimit/internal/h2grpc"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
)

// GRPCSettings are the environment variables of the gRPC listener.
type GRPCSettings struct {
	// Age at which a gRPC connection gets GOAWAY, plus or minus 10 %, so that clients connect again and load evens out;
	// 0: never.
	MaxAge time.Duration `env:"GRPC_MAX_CONNECTION_AGE" envDefault:"24h" min:"0s"`
	// Time that a connection gets after GRPC_MAX_CONNECTION_AGE to finish its calls before it is cut; 0: for ever.
	MaxAgeGrace time.Duration `env:"GRPC_MAX_CONNECTION_AGE_GRACE" envDefault:"1h" min:"0s"`
	// How long a gRPC connection may be silent before the server pings it.
	KeepaliveTime time.Duration `env:"GRPC_KEEPALIVE_TIME" envDefault:"1m" min:"1s"` // grpc-go takes 0 as 2 h
	// How long a client has to answer the ping of GRPC_KEEPALIVE_TIME before its connection is dropped.
	KeepaliveTimeout time.Duration `env:"GRPC_KEEPALIVE_TIMEOUT" envDefault:"20s" min:"1s"` // grpc-go takes 0 as 20 s
	// Shortest pause that a client must leave between pings, with streams or without; a client that pings more often is
	// disconnected.
	MinPing time.Duration `env:"GRPC_KEEPALIVE_MIN_TIME" envDefault:"5s" min:"0s"`
	// Calls that a gRPC connection may have open. More are refused (REFUSED_STREAM); a client that knows the number
	// waits instead.
	MaxStreams int `env:"GRPC_MAX_CONCURRENT_STREAMS" envDefault:"1024" min:"1" max:"1000000"`
	// true: the gRPC reflection service is served, for grpcurl and the like; only with GRPC_SERVER=grpc-go.
	Reflection bool `env:"GRPC_REFLECTION" envDefault:"false"`
}

// GRPCOptions are the options of the gRPC listener.
type GRPCOptions struct {
	GRPCSettings
	Service *service.Service
	Health  *Health
	Stats   *stats.Registry
	Log     *slog.Logger
	// Native selects this project's own server, package h2grpc, instead of grpc-go.
	Native bool
	// Memory bounds the memory, in bytes, that clients can make the h2grpc server use.
	Memory int64
	// TLS is the listener's TLS configuration; nil means HTTP/2 without TLS.
	TLS *tls.Config
	// Tracing records a span for each call; nil means no tracing.
	Tracing *Tracing
}

// serviceName is the gRPC service that this daemon implements.
const serviceName = "envoy.service.ratelimit.v3.RateLimitService"

// These are settings of grpc-go's server. Windows and buffers have fixed sizes: grpc-go's adaptive windows cost a ping
// per connection and gain nothing for messages of a hundred bytes. Stream workers are goroutines that serve one call
// after the other. There are as many as there usually are calls in flight, because the stack of a new goroutine has to
// grow for every call, which takes 14 % of envoyproxy/ratelimit's CPU time.
const (
	streamWorkers = 512
	bufferBytes   = 64 << 10
	connWindow    = 1 << 20
	streamWindow  = 64 << 10
	minPingSlack  = time.Second // added to the client's least interval: a ping sent after 5 s may arrive after 4.9 s
)

// NewGRPC returns a grpc-go server with the rate limit service, health and, if configured, reflection.
func NewGRPC(o GRPCOptions) *grpc.Server {
	handshakeFailed := failedHandshakes(o)
	unary, stream, decide := []grpc.UnaryServerInterceptor{countMethods(o.Stats)},
		[]grpc.StreamServerInterceptor{o.Health.endStreams}, decisionDesc
	if t := o.Tracing; t != nil {
		unary, stream = append(unary, t.unary), append(stream, t.stream)
		decide.Methods = []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: t.handler}}
	}
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.ConnectionTimeout(greeting),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxConcurrentStreams(uint32(o.MaxStreams)),
		grpc.ReadBufferSize(bufferBytes), grpc.WriteBufferSize(bufferBytes),
		grpc.StaticConnWindowSize(connWindow), grpc.StaticStreamWindowSize(streamWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge: o.MaxAge, MaxConnectionAgeGrace: o.MaxAgeGrace, Time: o.KeepaliveTime,
			Timeout: o.KeepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: max(1, o.MinPing-minPingSlack),
			PermitWithoutStream: true}), grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(grpctls.Server(o.TLS, handshakeFailed)))
	}
	s := grpc.NewServer(options...)
	h := &decisions{
		service:  o.Service,
		log:      o.Log,
		requests: o.Stats.Counter("ratelimit_server.ShouldRateLimit.total_requests"),
		took:     o.Stats.Timer("ratelimit_server.ShouldRateLimit.response_time"),
		panics:   o.Stats.Counter(panicStat),
	}
	s.RegisterService(&decide, h)
	healthpb.RegisterHealthServer(s, o.Health.service())
	if o.Reflection {
		reflection.Register(s)
	}
	return s
}

// failedHandshakes returns a function that counts failed TLS handshakes. It logs the reason only at level debug, or any
// client could fill the log.
func failedHandshakes(o GRPCOptions) func(net.Addr, error) {
	count := o.Stats.Counter("ratelimit_server.tls.handshake_error")
	return func(peer net.Addr, err error) {
		count.Inc()
		o.Log.Debug("a TLS handshake failed", "peer", peer.String(), "error", err)
	}
}

const panicStat = "ratelimit.service.call.should_rate_limit.panic"

// decisionDesc describes the rate limit service to grpc-go. It is not generated by protoc, so that requests can be
// decoded into a pooled exchange.
var decisionDesc = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*any)(nil),
	Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: shouldRateLimit}},
	Metadata:    "envoy/service/ratelimit/v3/rls.proto",
}

type decisions struct {
	service  *service.Service
	log      *slog.Logger
	requests *stats.Counter
	took     *stats.Timer
	panics   *stats.Counter
}

// shouldRateLimit answers one call of ShouldRateLimit. It does not call the interceptor, which counts and times the
// methods of the other services, but counts and times the call itself.
func shouldRateLimit(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	d := srv.(*decisions)
	arrived := d.service.Now()
	x := exchanges.Get().(*exchange)
	if err := decode(x); err != nil {
		x.release()
		d.service.NoteUnread(status.Code(err), err)
		return nil, err
	}
	err := d.decide(ctx, x, arrived)
	d.requests.Inc()
	if d.took.Enabled() { // skip the clock if nothing records times: each reading costs 50 ns
		d.took.Observe(d.service.Now().Sub(arrived))
	}
	if err != nil {
		return nil, err
	}
	return x, nil // the codec releases x when it has encoded the answer
}

// decide decides a request, and turns a refusal into a gRPC status and a panic into INTERNAL. After a panic the
// exchange does not return to its pool, since its state is unknown.
func (d *decisions) decide(ctx context.Context, x *exchange, arrived time.Time) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.Error(service.GRPCStatus(nil))
			reportPanic(d.log, d.panics, p)
		}
	}()
	if err := d.service.Decide(ctx, &x.Call, arrived); err != nil {
		x.release()
		return status.Error(service.GRPCStatus(err))
	}
	return nil
}

// countMethods returns an interceptor that counts and times the unary methods of all other services, such as health
// checks.
func countMethods(r *stats.Registry) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		start := time.Now()
		name := "ratelimit_server." + methodName(info.FullMethod)
		r.Counter(name + ".total_requests").Inc()
		defer func() { r.Timer(name + ".response_time").Observe(time.Since(start)) }()
		return handler(ctx, req)
	}
}

func methodName(full string) string { return full[strings.LastIndexByte(full, '/')+1:] }

// Front is a gRPC server, which serves a listener until Shutdown.
type Front interface {
	// Serve accepts connections. After Shutdown it returns nil, grpc.ErrServerStopped or h2grpc.ErrServerClosed.
	Serve(net.Listener) error
	// Shutdown takes no new calls and waits for the calls in flight. If ctx ends first, Shutdown cuts the remaining
	// calls and returns ctx's error.
	Shutdown(ctx context.Context) error
}

// NewFront returns the gRPC server that the setting GRPC_SERVER selects: h2grpc's if o.Native is set, otherwise
// grpc-go's.
func NewFront(o GRPCOptions) Front {
	if !o.Native {
		return grpcGo{NewGRPC(o)}
	}
	path := "/" + serviceName + "/ShouldRateLimit"
	panics := o.Stats.Counter(panicStat)
	return h2grpc.NewServer(h2grpc.Options{
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

// Package h2grpc serves Envoy's rate limit service over gRPC. It is an HTTP/2 server for one method, ShouldRateLimit,
// whose calls are decided on the goroutine that reads them. All calls of one read are decided together, and their
// answers are sent by one write. No call costs a goroutine, a channel or an allocation.
//
// The data belongs to three parts. The reader of a connection (reader.go, receive.go) has HPACK's decoder and the
// receiving side. The connection's send queue (sendqueue.go, answers.go) has the sending side, under the connection's
// only lock. The store has the calls that wait for it (call.go). Answers reach the send queue in bundles. The reader
// also answers health checks; the health service's streaming method Watch has a goroutine for each call.
//
// The protocol is HTTP/2 (RFC 9113) with HPACK (RFC 7541), and gRPC's PROTOCOL-HTTP2.md. Where they leave a choice, the
// package does what grpc-go does.
package h2grpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
)

// Options are the parameters of NewServer.
type Options struct {
	// Service decides the calls.
	Service *service.Service
	// Path is the path of ShouldRateLimit, of the form /package.Service/Method.
	Path string
	// Health answers the calls of grpc.health.v1.Health. Its Watch has to return when the daemon drains.
	Health healthpb.HealthServer
	Stats  *stats.Registry
	// Memory bounds the memory that clients can make the server keep, in bytes. It is raised to 16 MiB if it is less,
	// and lowered to 256 MiB if it is more.
	Memory int64
	// Tracing records a span for each call; nil: calls are not traced.
	Tracing *Tracing
	// TLS is the TLS config, whose NextProtos must be h2 alone; nil: HTTP/2 without TLS.
	TLS *tls.Config
	// HandshakeFailed is called for each TLS handshake that has failed. It is required if TLS is set.
	HandshakeFailed func(peer net.Addr, err error)
	// Panicked is called with the value of each panic that was recovered.
	Panicked func(any)
	// MaxStreams is how many calls may be open on one connection, and how many of them may be in a store. It is
	// required: if it is 0, no call may be opened.
	MaxStreams int
	// MaxAge is the age at which a connection gets GOAWAY, varied at random by 10 %. MaxAgeGrace is how much time its
	// calls then have to finish. 0 means no limit.
	MaxAge, MaxAgeGrace time.Duration
	// KeepaliveTime is how long a client may be silent before it is pinged. KeepaliveTimeout is how long it may take to
	// answer a ping, and to accept answers.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// MinPing is the shortest time that a client must leave between two pings.
	MinPing time.Duration
}

// Tracing has the functions that begin and end the spans of calls.
type Tracing struct {
	// Start begins the span of a call of method, as a child of the span that the call's metadata md names. from is the
	// client's address.
	Start func(ctx context.Context, md propagation.TextMapCarrier, method string,
		from net.Addr) (context.Context, trace.Span)
	// End ends the span with the call's status.
	End func(span trace.Span, code codes.Code, message string)
}

// Server serves connections. NewServer creates one.
type Server struct {
	o        Options
	ctx      context.Context // for health checks and health watches; ends with Close
	stop     context.CancelFunc
	requests *stats.Counter
	took     *stats.Timer
	refusals map[reason]*stats.Counter
	askers   askers
	watches  atomic.Int32
	account  account
	ids      atomic.Uint64 // the number of the last connection

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	silent    map[net.Conn]struct{} // the connections in their TLS handshake
	draining  bool
	empty     chan struct{} // closed when the server is draining and has no connection left
	ticking   bool
}

// ErrServerClosed is the error of Serve after Shutdown or Close.
var ErrServerClosed = errors.New("h2grpc: server closed")

func (s *Server) refused(r reason) { s.refusals[r].Inc() }

// gone records that a connection has ended.
func (s *Server) gone(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.endIfEmpty()
}

func (s *Server) endIfEmpty() {
	if s.draining && len(s.conns)+len(s.silent) == 0 {
		select {
		case <-s.empty:
		default:
			close(s.empty)
		}
	}
}

// relieve frees memory until the account is within its limit. Each time, the connection that holds most gives way, even
// if another connection needs the memory. relieve returns false if no connection holds memory that can be freed.
func (s *Server) relieve() bool {
	if !s.account.over() {
		return true
	}
	s.account.mu.Lock()
	defer s.account.mu.Unlock()
	for s.account.over() {
		var most *conn
		s.mu.Lock()
		for c := range s.conns {
			if n := c.out.held.Load(); n > 0 && (most == nil || n > most.out.held.Load()) {
				most = c
			}
		}
		s.mu.Unlock()
		if most == nil {
			return false
		}
		most.giveWay()
		s.refused(reasonBuffered)
	}
	return true
}

// startSpan begins the span of a stream's call, if calls are traced. ctx has the span; end ends the span. end's
// parameter is the call's refusal, or nil if it was answered.
func (c *conn) startSpan(s *stream) (ctx context.Context, end func(*refusal)) {
	t := c.server.o.Tracing
	if t == nil {
		return c.server.ctx, noSpan
	}
	fields := fieldCarrier(s.header.fields)
	ctx, span := t.Start(c.server.ctx, fields, fields.Get(":path"), c.net.RemoteAddr())
	return ctx, func(r *refusal) {
		if r == nil {
			r = &refusal{}
		}
		t.End(span, r.code, r.message)
	}
}

func noSpan(*refusal) {}

// ask lets a call wait for the store (Service.Ask). It is called after begin has reported that the store has to be
// called.
func (s *Server) ask(x *Call) (ended *refusal) {
	defer s.recovered(x, &ended)
	ctx := x.ctx
	if !x.deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, x.deadline)
		defer cancel()
	}
	err := s.o.Service.Ask(ctx, &x.Call)
	s.count(&x.Call)
	return s.refusalOf(x, err)
}

// answer decides and answers a call on the goroutine that called it, which may wait for the store. For a call that was
// not begun, because it is costly, it first calls begin.
func (s *Server) answer(x *Call) {
	c := x.conn
	asks, ended := true, (*refusal)(nil)
	if !x.begun {
		asks, ended = s.begin(x, s.o.Service.Now())
	}
	if asks {
		ended = s.ask(x)
	}
	b := bundlePool.Get().(*bundle)
	b.finish(x, ended)
	s.send(c, b)
	bundlePool.Put(b)
}

// askers runs calls on goroutines that may wait for a store. A goroutine that is idle is kept for the next call, since
// a new goroutine would have to grow its stack for each call.
type askers struct {
	do   func(*Call)
	most int

	mu      sync.Mutex
	idle    []chan *Call
	running int
	queue   []*Call // the calls that wait for a goroutine while as many as most are running
}

// start runs a.do(x) on a goroutine: at once if one is idle or another may be started, otherwise when one is free.
func (a *askers) start(x *Call) {
	a.mu.Lock()
	if n := len(a.idle); n > 0 {
		next := a.idle[n-1]
		a.idle = a.idle[:n-1]
		a.mu.Unlock()
		next <- x
		return
	}
	if a.running == a.most {
		a.queue = append(a.queue, x)
		a.mu.Unlock()
		return
	}
	a.running++
	a.mu.Unlock()
	go a.run(x)
}

func (a *askers) run(x *Call) {
	next := make(chan *Call, 1)
	for x != nil {
		a.do(x)
		a.mu.Lock()
		switch {
		case len(a.queue) > 0:
			x, a.queue[0] = a.queue[0], nil
			a.queue = a.queue[1:]
			a.mu.Unlock()
		case len(a.idle) < keptAskers:
			a.idle = append(a.idle, next)
			a.mu.Unlock()
			x = <-next
		default:
			a.running--
			a.mu.Unlock()
			return
		}
	}
}

const (
	keptAskers = 512
	mostAskers = 8192
)

// close ends the idle goroutines.
func (a *askers) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, next := range a.idle {
		next <- nil
	}
	a.idle = nil
}

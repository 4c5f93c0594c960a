// Package h2grpc serves Envoy's rate limit service over gRPC: an HTTP/2 server for one unary method, whose calls run to
// completion on the goroutine that reads them. All calls of one read are decided together and answered by one write; no
// call costs a goroutine, a channel or an allocation.
//
// Three parts own their data. The reader of a connection (reader.go, receive.go) has HPACK's decoder and the receiving
// side. The connection's send queue (sendqueue.go, answers.go) has the sending side, under the connection's only lock.
// The store has the calls that wait for it (call.go). Answers reach the send queue in bundles. The reader answers
// health checks too; a watch of the health has a goroutine.
//
// Protocol: RFC 9113 (HTTP/2), RFC 7541 (HPACK), and grpc's PROTOCOL-HTTP2.md. Where these leave a choice, the answer
// is grpc-go's.
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

// Options shape a server.
type Options struct {
	// Service decides the calls.
	Service *service.Service
	// Path is the method that decides, such as /package.Service/Method.
	Path string
	// Health answers grpc.health.v1.Health. Its Watch returns when the daemon drains.
	Health healthpb.HealthServer
	Stats  *stats.Registry
	// Memory bounds the memory that peers make the server keep, in bytes; it is clamped to 16 to 256 MiB.
	Memory int64
	// Tracing records a span for each call; nil: none.
	Tracing *Tracing
	// TLS is the listener's config, whose NextProtos must be h2 alone; nil: plain HTTP/2.
	TLS *tls.Config
	// HandshakeFailed is called for each TLS handshake that failed; required with TLS.
	HandshakeFailed func(peer net.Addr, err error)
	// Panicked is called when a call has panicked.
	Panicked func(any)
	// MaxStreams is how many calls of a connection may be open, and how many may wait for a store. It is required: with
	// 0 a connection may open no call.
	MaxStreams int
	// MaxAge is the age at which a connection gets GOAWAY (±10 %), MaxAgeGrace the time that its calls then have to
	// finish; 0 means never.
	MaxAge, MaxAgeGrace time.Duration
	// KeepaliveTime is how long a connection may be silent before it is pinged; KeepaliveTimeout is how long the peer
	// has to answer, and to read its answers.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// MinPing is the shortest time between pings of a client.
	MinPing time.Duration
}

// Tracing starts and ends the spans of calls.
type Tracing struct {
	// Start begins the span of a call of a method, as a child of the span that the call's metadata names.
	Start func(ctx context.Context, md propagation.TextMapCarrier, method string, from net.Addr) (context.Context, trace.Span)
	// End ends the span with the call's status.
	End func(span trace.Span, code codes.Code, message string)
}

// Server serves connections. Make one with NewServer.
type Server struct {
	o        Options
	ctx      context.Context // of health checks and watches; ends with Close
	stop     context.CancelFunc
	requests *stats.Counter
	took     *stats.Timer
	refusals map[reason]*stats.Counter
	askers   askers
	watches  atomic.Int32
	account  account
	ids      atomic.Uint64 // numbers the connections

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	silent    map[net.Conn]struct{} // connections in their TLS handshake
	draining  bool
	empty     chan struct{} // closed when the server is draining and no connection is left
	ticking   bool
}

// ErrServerClosed is what Serve returns after Shutdown or Close.
var ErrServerClosed = errors.New("h2grpc: server closed")

func (s *Server) refused(r reason) { s.refusals[r].Inc() }

// gone is called when a connection has ended.
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

// relieve makes room while the account is over its limit. The connection that holds most gives way, even if another one
// needs the memory. relieve returns false where no connection holds anything.
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

// startSpan begins the span of a stream's call, if calls are traced. ctx has the span, and end ends it; nil means that
// the call ended well.
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

// ask calls the store for the hits that begin has left, and waits for the answer.
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

// answer finishes a call on a goroutine of its own.
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

// askers are the goroutines that wait for a store. An idle one is kept for the next call, since a new goroutine has to
// grow its stack for every call.
type askers struct {
	do   func(*Call)
	most int

	mu      sync.Mutex
	idle    []chan *Call
	running int
	queue   []*Call // calls that wait for a goroutine while most are running
}

// start runs do(x) on a goroutine.
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

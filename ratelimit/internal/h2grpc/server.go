// Package h2grpc serves Envoy's rate limit service over gRPC: an HTTP/2 server for one unary method, whose calls run to
// completion on the goroutine that reads them. What one read brings is decided together and answered by one write;
// no call costs a goroutine, a channel or an allocation.
//
// Three parts own what they touch: the reader of a connection (conn, receive.go) has HPACK's decoder and the
// receiving side, its outbox has the sending side under the connection's one lock, and the store has the calls that
// wait for it. What moves between them is a bundle. All other methods (health, reflection, unknown ones) go to an
// http.Handler, a goroutine each.
//
// Protocol: RFC 9113 (HTTP/2), RFC 7541 (HPACK), and grpc's PROTOCOL-HTTP2.md; where those leave a choice, the answer
// is grpc-go's.
package h2grpc

import (
	"context"
	"crypto/tls"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/service"
	"gatehouse/ratelimit/internal/stats"
)

// Options shape a server.
type Options struct {
	// Service decides.
	Service *service.Service
	// Path is the method that is decided here, such as /package.Service/Method; empty: all go to Other.
	Path string
	// Other serves every other method.
	Other http.Handler
	Stats *stats.Registry
	// TLS is the listener's config; nil: plain HTTP/2.
	TLS *tls.Config
	// HandshakeFailed is called for each TLS handshake that failed; required with TLS.
	HandshakeFailed func(peer net.Addr, err error)
	// Panicked is called when a call has panicked.
	Panicked func(any)
	// MaxStreams is how many calls of a connection may be open, and how many may wait for a store.
	MaxStreams int
	// MaxAge is the age at which a connection gets GOAWAY (±10 %), MaxAgeGrace what it gets to finish its calls; 0
	// means never.
	MaxAge, MaxAgeGrace time.Duration
	// KeepaliveTime is how long a connection may be silent before it is pinged, KeepaliveTimeout how long the peer has
	// to answer, and to take what it is sent.
	KeepaliveTime, KeepaliveTimeout time.Duration
	// MinPing is the shortest time between pings of a client.
	MinPing time.Duration
}

// Server serves connections. Make one with New.
type Server struct {
	o         Options
	ctx       context.Context // of calls of other methods; ends with Close
	stop      context.CancelFunc
	requests  *stats.Counter
	took      *stats.Timer
	refusals  map[reason]*stats.Counter
	askers    askers
	exchanges exchangeLimits
	buffered  atomic.Int64
	ids       atomic.Uint64 // of connections

	mu        sync.Mutex
	listeners map[net.Listener]struct{}
	conns     map[*conn]struct{}
	silent    map[net.Conn]struct{} // in their TLS handshake
	draining  bool
	closed    bool
	empty     chan struct{} // closed when draining and no connection is left
	ticking   bool
}

const defaultMaxStreams = 1024

// maxBufferedInAll bounds the unfinished messages of all connections, in bytes.
const maxBufferedInAll = 256 << 20

// ErrServerClosed is what Serve returns after Shutdown or Close.
var ErrServerClosed = errors.New("h2grpc: server closed")

// New makes a server.
func New(o Options) *Server {
	if o.KeepaliveTime <= 0 {
		o.KeepaliveTime = 2 * time.Hour
	}
	if o.KeepaliveTimeout <= 0 {
		o.KeepaliveTimeout = 20 * time.Second
	}
	if o.MaxStreams <= 0 {
		o.MaxStreams = defaultMaxStreams
	}
	if o.TLS != nil {
		o.TLS = configFor(o.TLS) // once: the keys of session tickets belong to it
	}
	s := &Server{
		o:         o,
		requests:  o.Stats.Counter("ratelimit_server.ShouldRateLimit.total_requests"),
		took:      o.Stats.Timer("ratelimit_server.ShouldRateLimit.response_time"),
		refusals:  map[reason]*stats.Counter{},
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}, silent: map[net.Conn]struct{}{},
		empty: make(chan struct{}),
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.askers = askers{do: s.answer, most: mostAskers}
	for _, r := range reasons {
		s.refusals[r] = o.Stats.Counter("ratelimit_server.http2.refused", stats.Tag{Name: "reason", Value: string(r)})
	}
	return s
}

func (s *Server) refused(r reason) { s.refusals[r].Inc() }

// buffer accounts for bytes of unfinished messages; it reports false where they are too many.
func (s *Server) buffer(n int) bool { return s.buffered.Add(int64(n)) <= maxBufferedInAll || n <= 0 }

// Serve accepts connections until the listener fails, or the server is closed: then it returns ErrServerClosed.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		l.Close()
		return ErrServerClosed
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	var pause time.Duration
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			go s.serve(c)
		case s.isDraining():
			return ErrServerClosed
		case temporary(err): // out of file descriptors: the next try may have one
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause)
		default:
			return err
		}
	}
}

func temporary(err error) bool {
	var t interface{ Temporary() bool }
	return errors.As(err, &t) && t.Temporary()
}

func (s *Server) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

func (s *Server) serve(raw net.Conn) {
	s.mu.Lock()
	if s.draining {
		s.mu.Unlock()
		raw.Close()
		return
	}
	s.silent[raw] = struct{}{}
	s.mu.Unlock()
	c := raw
	if s.o.TLS != nil {
		raw.SetDeadline(time.Now().Add(greeting))
		sealed, err := serveTLS(raw, s.o.TLS)
		if err != nil {
			s.o.HandshakeFailed(raw.RemoteAddr(), err)
			s.refused(reasonHandshake)
			raw.Close()
			s.mu.Lock()
			s.spoke(raw)
			s.mu.Unlock()
			return
		}
		raw.SetDeadline(time.Time{})
		c = sealed
	}
	k := newConn(s, c)
	s.mu.Lock()
	s.spoke(raw)
	if s.closed || s.draining {
		s.mu.Unlock()
		c.Close()
		return
	}
	s.conns[k] = struct{}{}
	if !s.ticking {
		s.ticking = true
		go s.watch()
	}
	s.mu.Unlock()
	k.serve()
}

// spoke takes a connection off those that are not set up yet. The lock is held.
func (s *Server) spoke(raw net.Conn) {
	delete(s.silent, raw)
	s.endIfEmpty()
}

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

// Shutdown stops accepting, sends every peer GOAWAY in two steps, as grpc-go does, and waits until all calls have been
// answered and the connections have ended, or ctx ends; then it cuts what is left and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.stopAccepting(false) {
		c.drain(time.Now())
	}
	select {
	case <-s.empty:
		s.Close()
		return nil
	case <-ctx.Done():
		s.Close()
		return ctx.Err()
	}
}

// stopAccepting ends the listeners and the connections that have said nothing yet, and returns the others. closed: none
// of these may go on either.
func (s *Server) stopAccepting(closed bool) []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining, s.closed = true, s.closed || closed
	for l := range s.listeners {
		l.Close()
	}
	for c := range s.silent {
		c.Close()
	}
	s.endIfEmpty()
	return slices.Collect(maps.Keys(s.conns))
}

// Close ends all connections at once.
func (s *Server) Close() {
	for _, c := range s.stopAccepting(true) {
		c.close()
	}
	s.stop()
	<-s.empty
	s.askers.close()
}

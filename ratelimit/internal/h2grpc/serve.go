package h2grpc

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"time"

	"gatehouse/ratelimit/internal/stats"
)

// NewServer returns a server that serves no listener yet; see Serve.
func NewServer(o Options) *Server {
	o.KeepaliveTime = cmp.Or(o.KeepaliveTime, 2*time.Hour)
	o.KeepaliveTimeout = cmp.Or(o.KeepaliveTimeout, 20*time.Second)
	s := &Server{
		o:         o,
		requests:  o.Stats.Counter("ratelimit_server.ShouldRateLimit.total_requests"),
		took:      o.Stats.Timer("ratelimit_server.ShouldRateLimit.response_time"),
		refusals:  map[reason]*stats.Counter{},
		listeners: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}, silent: map[net.Conn]struct{}{},
		empty: make(chan struct{}),
	}
	s.account.limit = min(max(o.Memory, leastMemory), mostMemory)
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.askers = askers{do: s.answer, most: mostAskers}
	for _, r := range reasons {
		s.refusals[r] = o.Stats.Counter("ratelimit_server.http2.refused", stats.Tag{Name: "reason", Value: string(r)})
	}
	return s
}

// Serve accepts connections on l and serves them. It returns when accepting fails; after Shutdown or Close, the error
// is ErrServerClosed.
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
		case temporary(err): // such as too many open files: the next try may succeed
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
	if s.draining {
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

// spoke removes a connection from s.silent, the connections in their TLS handshake. s.mu is held.
func (s *Server) spoke(raw net.Conn) {
	delete(s.silent, raw)
	s.endIfEmpty()
}

// Shutdown stops accepting connections, and ends all connections by GOAWAY, in two steps as grpc-go does (see
// beginDrain). Then it waits until all calls are answered and all connections have ended. If ctx ends first, Shutdown
// closes the remaining connections and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.stopAccepting() {
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

// stopAccepting closes the listeners, and the connections in their TLS handshake. It returns the other connections.
func (s *Server) stopAccepting() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	for l := range s.listeners {
		l.Close()
	}
	for c := range s.silent {
		c.Close()
	}
	s.endIfEmpty()
	return slices.Collect(maps.Keys(s.conns))
}

// Close closes all connections at once.
func (s *Server) Close() {
	for _, c := range s.stopAccepting() {
		c.close()
	}
	s.stop()
	<-s.empty
	s.askers.close()
}

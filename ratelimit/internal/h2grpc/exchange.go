package h2grpc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	// exchangesPerConn and exchangesInAll bound the streams of other methods, each of which has a goroutine.
	exchangesPerConn = 100
	exchangesInAll   = 1000
	// exchangeBuffer is how much of an answer may wait for the peer before Write does.
	exchangeBuffer = 64 << 10
)

// exchange is a call of another method: an http.ResponseWriter and a request whose body is read as it comes, for
// grpc.Server.ServeHTTP.
type exchange struct {
	conn   *conn
	stream *stream
	ctx    context.Context
	cancel context.CancelFunc
	wake   chan struct{} // holds one: there is room to write, perhaps

	mu   sync.Mutex // of the body
	more sync.Cond
	body []byte
	eof  bool
	over bool // the stream has ended
	// credited is what reading the body gave back of the stream's window.
	credited atomic.Int64

	header http.Header
	status int // 0: not sent
	// done is set, under the outbox's lock, when the handler has returned.
	done bool
}

var errStreamEnded = errors.New("h2grpc: the stream has ended")

// startExchange runs a call of another method on a goroutine of its own.
func (c *conn) startExchange(s *stream) *connError {
	limits := &c.server.exchanges
	if !limits.enter(c) {
		c.server.refused(reasonTooManyCalls)
		c.out.reset(s.id, codeRefusedStream)
		c.forgetting(s.id)
		free(s)
		return c.spend()
	}
	x := &exchange{conn: c, stream: s, wake: make(chan struct{}, 1), header: http.Header{}, eof: s.ended}
	x.more.L = &x.mu
	x.ctx, x.cancel = context.WithCancel(context.WithValue(c.server.ctx, http.LocalAddrContextKey, c.net.LocalAddr()))
	request := x.request()
	s.exchange, s.open = x, !s.ended
	if !c.out.admit(s, c.server.o.MaxStreams) {
		c.server.refused(reasonTooManyCalls)
		limits.leave(c)
		x.cancel()
		c.forgetting(s.id)
		return c.spend()
	}
	if x.eof {
		c.budget.earn()
	}
	go func() {
		defer limits.leave(c)
		defer x.cancel()
		defer x.finish()
		defer func() {
			if p := recover(); p != nil {
				c.out.reset(s.id, codeInternal)
				c.server.o.Panicked(p)
			}
		}()
		c.server.o.Other.ServeHTTP(x, request)
	}()
	return nil
}

// request is the request that the header block describes.
func (x *exchange) request() *http.Request {
	r := &http.Request{Proto: "HTTP/2.0", ProtoMajor: 2, Header: http.Header{}, Body: x,
		ContentLength: x.stream.header.length, RemoteAddr: x.conn.net.RemoteAddr().String()}
	for _, f := range x.stream.header.fields {
		switch f.Name {
		case ":method":
			r.Method = f.Value
		case ":path":
			r.URL, r.RequestURI = &url.URL{Path: f.Value}, f.Value // a method's name: nothing in it is escaped
		case ":authority":
			r.Host = f.Value
		case ":scheme":
		case "host":
			if r.Host == "" {
				r.Host = f.Value
			}
		default:
			r.Header.Add(f.Name, f.Value)
		}
	}
	if sealed, ok := x.conn.net.(*sealedConn); ok {
		state := sealed.ConnectionState()
		r.TLS = &state
	}
	return r.WithContext(x.ctx)
}

// receive takes a piece of the body, and the padding that came with it. The reader calls it.
func (x *exchange) receive(b []byte, padding int) {
	x.mu.Lock()
	x.body = append(x.body, b...)
	x.more.Signal()
	x.mu.Unlock()
	if padding > 0 {
		x.credit(padding)
	}
}

func (x *exchange) receiveEnd() {
	x.mu.Lock()
	x.eof = true
	x.more.Signal()
	x.mu.Unlock()
}

func (x *exchange) credit(n int) {
	x.credited.Add(int64(n))
	x.conn.out.add(func(b []byte) []byte { return appendWindowUpdate(b, x.stream.id, n) })
}

// Read implements io.Reader for the request's body.
func (x *exchange) Read(p []byte) (int, error) {
	x.mu.Lock()
	for len(x.body) == 0 && !x.eof && !x.over {
		x.more.Wait()
	}
	n := copy(p, x.body)
	if x.body = x.body[n:]; len(x.body) == 0 {
		x.body = nil
	}
	eof, over := x.eof, x.over
	x.mu.Unlock()
	switch {
	case n == 0 && over:
		return 0, errStreamEnded
	case n == 0:
		return 0, io.EOF
	case !eof && !over:
		x.credit(n)
		x.conn.out.flush()
	}
	return n, nil
}

// Close implements io.Closer for the request's body: a Read that waits returns.
func (x *exchange) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	x.more.Broadcast()
	return nil
}

// end notifies the handler that the stream has ended. It is called with the outbox's lock.
func (x *exchange) end() {
	x.mu.Lock()
	x.over = true
	x.more.Signal()
	x.mu.Unlock()
	x.cancel()
	x.roomier()
}

// roomier wakes a Write that waits.
func (x *exchange) roomier() {
	select {
	case x.wake <- struct{}{}:
	default:
	}
}

// returned reports whether the handler has returned. The outbox's lock is held.
func (x *exchange) returned() bool { return x.done }

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	o := x.conn.out
	o.mu.Lock()
	defer o.mu.Unlock()
	x.writeHeader(status)
}

// writeHeader sends the block before the body. The outbox's lock is held.
func (x *exchange) writeHeader(status int) {
	o := x.conn.out
	if x.status != 0 || x.stream.gone || o.closed {
		return
	}
	x.status = status
	now := http.Header{}
	for name, values := range x.header {
		if !strings.HasPrefix(name, http.TrailerPrefix) {
			now[name] = values
		}
	}
	o.sent = true
	o.grab()
	at := len(o.buf)
	o.buf = o.encoder.block(appendFrameHeader(o.buf, 0, frameHeaders, flagEndHeaders, x.stream.id), status, now)
	o.setLength(at)
}

// trailers is the block behind the body: what the header declared as trailers, and what has the prefix. The outbox's
// lock is held.
func (x *exchange) trailers() http.Header {
	t := http.Header{}
	for _, names := range x.header["Trailer"] {
		for name := range strings.SplitSeq(names, ",") {
			name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name))
			if values := x.header[name]; len(values) > 0 {
				t[name] = values
			}
		}
	}
	for name, values := range x.header {
		if rest, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			t[rest] = values
		}
	}
	return t
}

// Write implements http.ResponseWriter. It waits while the peer takes nothing.
func (x *exchange) Write(p []byte) (int, error) {
	o := x.conn.out
	o.mu.Lock()
	x.writeHeader(http.StatusOK)
	for !x.stream.gone && !o.closed && len(x.stream.pending) > exchangeBuffer {
		o.mu.Unlock()
		o.flush()
		select {
		case <-x.wake:
		case <-x.ctx.Done():
		}
		o.mu.Lock()
	}
	if x.stream.gone || o.closed {
		o.mu.Unlock()
		return 0, fmt.Errorf("writing the answer: %w", errStreamEnded)
	}
	x.stream.pending = append(x.stream.pending, p...)
	o.queue(x.stream)
	o.mu.Unlock()
	return len(p), nil
}

// Flush implements http.Flusher.
func (x *exchange) Flush() {
	x.WriteHeader(http.StatusOK)
	x.conn.out.flush()
}

// finish sends the trailers, once the rest is sent.
func (x *exchange) finish() {
	o := x.conn.out
	o.mu.Lock()
	if !x.stream.gone && !o.closed {
		x.writeHeader(http.StatusOK)
		x.done, x.stream.early = true, x.stream.open
		if len(x.stream.pending) == 0 {
			o.grab()
			o.finish(x.stream)
		}
	}
	o.mu.Unlock()
	o.flush()
	if x.conn.lastID.Load() != maxWindow {
		x.conn.leaveIfDone()
	}
}

// exchangeLimits counts the streams of other methods.
type exchangeLimits struct {
	mu  sync.Mutex
	all int
	of  map[*conn]int
}

func (l *exchangeLimits) enter(c *conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= exchangesInAll || l.of[c] >= exchangesPerConn {
		return false
	}
	if l.of == nil {
		l.of = map[*conn]int{}
	}
	l.all++
	l.of[c]++
	return true
}

func (l *exchangeLimits) leave(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.of[c]--; l.of[c] == 0 {
		delete(l.of, c)
	}
}

var _ interface {
	http.ResponseWriter
	http.Flusher
	io.ReadCloser
} = (*exchange)(nil)

// configFor is the TLS config of one connection: HTTP/2 only.
func configFor(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.NextProtos = []string{"h2"}
	return c
}

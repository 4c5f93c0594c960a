package h2grpc

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"gatehouse/shared/nonblock"
)

// bufferBytes is the size of pooled buffers, for reading and for writing.
const bufferBytes = 64 << 10

// wire moves the bytes of one connection. read must have one caller at a time; so must write and drain together.
type wire interface {
	// read waits until bytes have arrived and reads them into the buffer that room returns. room is called only then,
	// so that an idle connection holds no buffer; giveBack returns an unused buffer.
	read(room func() []byte, giveBack func()) (int, error)
	// write takes all of b, sends as much as possible without waiting, and reports whether everything is sent.
	write(b []byte) (sent bool, err error)
	// drain sends the bytes that write has left. It waits for the peer until the deadline.
	drain(deadline time.Time) error
	// left returns how many bytes wait for drain.
	left() int
}

// newWire returns the wire of an open connection: of TCP, a unix socket, or TLS on either.
func newWire(c net.Conn) wire {
	if s, ok := c.(*sealedConn); ok {
		return s.wire
	}
	s := &socket{net: c}
	s.raw, _ = c.(syscall.Conn).SyscallConn() // fails only for connections that are not open
	s.readReady, s.writeReady = s.tryRead, s.tryWrite
	return s
}

// socket reads and writes a file descriptor when it is ready, without a waiting goroutine.
type socket struct {
	net net.Conn
	raw syscall.RawConn

	// The callbacks of raw and their variables: a closure for each call would be allocated.
	readReady, writeReady func(fd uintptr) bool
	room                  func() []byte
	giveBack              func()
	readN                 int
	readErr               error
	writing               []byte
	writeN                int
	writeErr              error

	mu       sync.Mutex // guards the fields below: TLS writes from the reading side too
	rest     []byte     // not sent yet
	draining bool
}

func (s *socket) tryRead(fd uintptr) bool {
	if s.readN, s.readErr = nonblock.Read(fd, s.room()); s.readErr == syscall.EAGAIN {
		s.giveBack()
		return false
	}
	return true
}

// read implements wire.
func (s *socket) read(room func() []byte, giveBack func()) (int, error) {
	s.room, s.giveBack = room, giveBack
	if err := s.raw.Read(s.readReady); err != nil {
		return 0, err
	}
	if s.readErr == nil && s.readN == 0 {
		return 0, io.EOF
	}
	return s.readN, s.readErr
}

func (s *socket) tryWrite(fd uintptr) bool {
	s.writeN, s.writeErr = nonblock.Write(fd, s.writing)
	return true
}

// write implements wire.
func (s *socket) write(b []byte) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining || len(s.rest) > 0 {
		s.rest = append(s.rest, b...)
		return false, nil
	}
	s.writing, s.writeN = b, 0
	err := s.raw.Write(s.writeReady)
	s.writing = nil
	switch {
	case err != nil:
		return false, err
	case s.writeErr == syscall.EAGAIN:
		s.writeN = 0
	case s.writeErr != nil:
		return false, s.writeErr
	}
	s.rest = append(s.rest, b[s.writeN:]...)
	return len(s.rest) == 0, nil
}

// drain implements wire.
func (s *socket) drain(deadline time.Time) error {
	if err := s.net.SetWriteDeadline(deadline); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		b := s.rest
		s.rest, s.draining = nil, len(b) > 0
		s.mu.Unlock()
		if len(b) == 0 {
			return s.net.SetWriteDeadline(time.Time{})
		}
		if _, err := s.net.Write(b); err != nil {
			return err
		}
	}
}

// left implements wire.
func (s *socket) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.rest)
}

// sealedConn is a TLS connection whose records are sent without waiting. A tls.Conn cannot write a part of a record,
// and a write that times out breaks it. So it writes into memory, from which a wire sends.
type sealedConn struct {
	*tls.Conn
	under *recordConn
	wire  *sealed
}

// recordConn is the connection below a tls.Conn. Until the handshake is over, it writes to the network itself.
type recordConn struct {
	net.Conn
	in      net.Conn // the same connection, to read from
	mu      sync.Mutex
	settled bool
	records []byte
	spare   []byte // the former memory of records, to be used again
}

// Read implements net.Conn.
func (c *recordConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// Write implements net.Conn.
func (c *recordConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.settled {
		return c.Conn.Write(b)
	}
	c.records = append(c.records, b...)
	return len(b), nil
}

// SetWriteDeadline implements net.Conn. Writing into memory needs no deadline: the wire has its own.
func (c *recordConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// take returns the bytes written since the last take. They are valid until the take after the next.
func (c *recordConn) take() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.records
	c.records, c.spare = c.spare[:0], b
	if cap(b) > 4*bufferBytes {
		c.spare = nil
	}
	return b
}

// serveTLS does the handshake as a server.
func serveTLS(raw net.Conn, config *tls.Config) (*sealedConn, error) {
	under := &recordConn{Conn: raw, in: nonblock.Wrap(raw)}
	c := &sealedConn{Conn: tls.Server(under, config), under: under}
	if err := c.Handshake(); err != nil {
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol != "h2" { // as grpc-go does: RFC 9113, section 3.2
		return nil, errors.New("the client did not ask for the protocol h2 by ALPN")
	}
	under.mu.Lock()
	under.settled = true
	under.mu.Unlock()
	c.wire = &sealed{over: c, wire: newWire(raw)}
	return c, nil
}

// CloseWrite shuts down the sending side: the peer reads the end of the stream.
func (c *sealedConn) CloseWrite() error {
	if err := c.Conn.CloseWrite(); err != nil {
		return err
	}
	if _, err := c.wire.send(); err != nil {
		return err
	}
	if half, ok := c.under.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

type sealed struct {
	over *sealedConn
	wire wire // carries the records
	mu   sync.Mutex
}

// read implements wire.
func (s *sealed) read(room func() []byte, _ func()) (int, error) {
	n, err := s.over.Conn.Read(room())
	if _, sendErr := s.send(); sendErr != nil && err == nil { // answers the peer's change of keys
		err = sendErr
	}
	return n, err
}

// write implements wire.
func (s *sealed) write(b []byte) (bool, error) {
	if _, err := s.over.Conn.Write(b); err != nil {
		return false, err
	}
	return s.send()
}

func (s *sealed) send() (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.over.under.take()
	if len(b) == 0 {
		return s.wire.left() == 0, nil
	}
	return s.wire.write(b)
}

// drain implements wire.
func (s *sealed) drain(deadline time.Time) error { return s.wire.drain(deadline) }

// left implements wire.
func (s *sealed) left() int { return s.wire.left() }

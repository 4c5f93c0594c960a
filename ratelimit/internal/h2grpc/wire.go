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

// bufferBytes is the size of the pooled buffers for reading and for writing.
const bufferBytes = 64 << 10

// wire reads and writes the bytes of one connection. One goroutine at a time may call read. Of write and drain, only
// one may be called at a time.
type wire interface {
	// read waits until bytes have arrived, and reads them into the buffer that room returns. It calls room only then,
	// so that an idle connection needs no buffer. If there is nothing to read after all, it calls giveBack.
	read(room func() []byte, giveBack func()) (int, error)
	// write sends as much of b as possible without waiting, and keeps a copy of the rest. sent reports whether all is
	// sent.
	write(b []byte) (sent bool, err error)
	// drain sends the rest that write has kept. It waits for the client, but not beyond the deadline.
	drain(deadline time.Time) error
	// left returns how many bytes of the rest are not sent yet.
	left() int
}

// newWire returns the wire of an open connection, which is TCP or a unix socket, perhaps with TLS.
func newWire(c net.Conn) wire {
	if s, ok := c.(*sealedConn); ok {
		return s.wire
	}
	s := &socket{net: c}
	s.raw, _ = c.(syscall.Conn).SyscallConn() // fails only for a connection that is not open
	s.readReady, s.writeReady = s.tryRead, s.tryWrite
	return s
}

// socket is the wire of a connection without TLS. It reads and writes the file descriptor itself.
type socket struct {
	net net.Conn
	raw syscall.RawConn

	// readReady and writeReady are the callbacks for raw; the fields after them are the callbacks' parameters and
	// results. They are fields because a closure would be allocated for each call.
	readReady, writeReady func(fd uintptr) bool
	room                  func() []byte
	giveBack              func()
	readN                 int
	readErr               error
	writing               []byte
	writeN                int
	writeErr              error

	mu       sync.Mutex // guards the fields below, since TLS writes from the reading side, too
	rest     []byte     // bytes that are not sent yet
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

// sealedConn is a TLS connection whose bytes are sent without waiting. A tls.Conn itself cannot write a part of a TLS
// record, and cannot be used after a write that timed out. So the tls.Conn writes into memory, and a wire sends the
// bytes from there.
type sealedConn struct {
	*tls.Conn
	under *recordConn
	wire  *sealed
}

// recordConn is the connection that a tls.Conn reads from and writes to. Writes go to the network until the handshake
// is complete, and then into memory.
type recordConn struct {
	net.Conn
	in      net.Conn // the same connection, for reading
	mu      sync.Mutex
	settled bool
	records []byte
	spare   []byte // former memory of records, for reuse
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

// SetWriteDeadline implements net.Conn. After the handshake it does nothing, since writes into memory need no deadline,
// and the wire has its own.
func (c *recordConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.settled {
		return nil
	}
	return c.Conn.SetWriteDeadline(t)
}

// take returns the TLS records that were written since the last take. They stay valid until the take after the next.
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

// serveTLS does the TLS handshake as a server.
func serveTLS(raw net.Conn, config *tls.Config) (*sealedConn, error) {
	under := &recordConn{Conn: raw, in: nonblock.Wrap(raw)}
	c := &sealedConn{Conn: tls.Server(under, config), under: under}
	if err := c.Handshake(); err != nil {
		return nil, err
	}
	if c.ConnectionState().NegotiatedProtocol != "h2" { // required by RFC 9113, section 3.2, and grpc-go
		return nil, errors.New("the client did not ask for the protocol h2 by ALPN")
	}
	under.mu.Lock()
	under.settled = true
	under.mu.Unlock()
	c.wire = &sealed{over: c, wire: newWire(raw)}
	return c, nil
}

// CloseWrite shuts down the sending side, so that the client's next read returns the end of the connection.
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
	wire wire // sends the TLS records
	mu   sync.Mutex
}

// read implements wire.
func (s *sealed) read(room func() []byte, _ func()) (int, error) {
	n, err := s.over.Conn.Read(room())
	if _, sendErr := s.send(); sendErr != nil && err == nil { // such as the answer to a change of keys
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

// Package nonblock reads and writes sockets that never block, without announcing the system calls to Go's scheduler.
//
// A system call that may block is announced to the scheduler. The first such call after a pause also wakes the
// scheduler's monitor thread, which then checks every 20 µs for a while. A daemon that gets a few thousand requests a
// second pauses between most of them. The system calls of this package return at once, whatever the peer does, so the
// scheduler need not know about them.
package nonblock

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
)

// Conn is a connection that reads and writes by the functions Read and Write of this package. Its deadlines are those
// of the connection that it wraps.
type Conn struct {
	net.Conn
	raw syscall.RawConn

	// tryRead and tryWrite are the callbacks of raw, for one reader and one writer at a time, and the fields below are
	// the variables that they use. They are made once, since making a closure for each call would allocate.
	tryRead, tryWrite func(fd uintptr) bool
	readMu, writeMu   sync.Mutex
	reading, writing  []byte
	readN, writeN     int
	readErr, writeErr error
}

// Wrap returns a Conn that wraps c if c is directly above a socket, otherwise c itself.
func Wrap(c net.Conn) net.Conn {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return c
	}
	w := &Conn{Conn: c, raw: raw}
	w.tryRead = func(fd uintptr) bool {
		w.readN, w.readErr = Read(fd, w.reading)
		return w.readErr != syscall.EAGAIN
	}
	w.tryWrite = func(fd uintptr) bool {
		for len(w.writing) > 0 {
			n, err := Write(fd, w.writing)
			if err != nil {
				w.writeErr = err
				return err != syscall.EAGAIN
			}
			w.writing = w.writing[n:]
			w.writeN += n
		}
		w.writeErr = nil
		return true
	}
	return w
}

// Listener wraps the connections that it accepts in a Conn.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Wrap(c), nil
}

// Read implements net.Conn.
func (c *Conn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.readMu.Lock()
	defer c.readMu.Unlock()
	c.reading = b
	err := c.raw.Read(c.tryRead)
	c.reading = nil
	switch {
	case err != nil:
		return 0, renamed(err, "read")
	case c.readErr != nil:
		return 0, c.failed("read", c.readErr)
	case c.readN == 0:
		return 0, io.EOF
	}
	return c.readN, nil
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	c.writing, c.writeN, c.writeErr = b, 0, nil
	err := c.raw.Write(c.tryWrite)
	c.writing = nil
	switch {
	case err != nil:
		return c.writeN, renamed(err, "write")
	case c.writeErr != nil:
		return c.writeN, c.failed("write", c.writeErr)
	}
	return c.writeN, nil
}

// CloseWrite ends the stream to the peer. net/http calls it before it drops the rest of a request.
func (c *Conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// SyscallConn implements syscall.Conn.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.raw, nil }

// renamed returns an error of raw, whose operations are named raw-read and raw-write, with op as the name of the
// operation.
func renamed(err error, op string) error {
	if e, ok := err.(*net.OpError); ok {
		e.Op = op
	}
	return err
}

// failed returns the error that package net would return for a failed system call.
func (c *Conn) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: c.RemoteAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(),
		Err: os.NewSyscallError(op, err)}
}

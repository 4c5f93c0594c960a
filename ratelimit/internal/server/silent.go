package server

import (
	"net"
	"sync"
	"time"
)

// Listener wraps a listener for grpc.Server.Serve. Closing it ends the connections that have not begun HTTP/2 yet.
// grpc-go waits for these before it sends any GOAWAY, in Stop too, so a silent client would delay a stop for as long as
// greeting.
func Listener(l net.Listener) net.Listener {
	return &listener{Listener: l, silent: map[*silentConn]struct{}{}}
}

// greeting is how long a client may take for the beginning of HTTP/2.
const greeting = 10 * time.Second

type listener struct {
	net.Listener
	mu     sync.Mutex
	silent map[*silentConn]struct{}
	closed bool
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &silentConn{Conn: conn, l: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		conn.Close() // the next read reports it
		return c, nil
	}
	l.silent[c] = struct{}{}
	return c, nil
}

// Close implements net.Listener.
func (l *listener) Close() error {
	err := l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for c := range l.silent {
		c.Conn.Close()
	}
	clear(l.silent)
	return err
}

func (l *listener) spoke(c *silentConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.silent, c)
}

// silentConn is on its listener's list until grpc-go has received the beginning of HTTP/2, after which it removes the
// deadline, or has given up.
type silentConn struct {
	net.Conn
	l *listener
}

// SetDeadline implements net.Conn.
func (c *silentConn) SetDeadline(t time.Time) error {
	if t.IsZero() {
		c.l.spoke(c)
	}
	return c.Conn.SetDeadline(t)
}

// Close implements net.Conn.
func (c *silentConn) Close() error {
	c.l.spoke(c)
	return c.Conn.Close()
}

package server

import (
	"net"
	"sync"
	"time"
)

// Listener wraps a listener for grpc.Server.Serve. Closing the result also closes the connections on which the client
// has not begun HTTP/2 yet. grpc-go's Stop and GracefulStop wait for such connections before they send any GOAWAY, so a
// silent client would delay a stop by up to the duration in greeting.
func Listener(l net.Listener) net.Listener {
	return &listener{Listener: l, silent: map[*silentConn]struct{}{}}
}

// greeting is the time that a client has to send the beginning of HTTP/2.
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
		conn.Close() // the next read reports that the connection is closed
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

// silentConn is a connection that stays on its listener's list until grpc-go has received the beginning of HTTP/2, when
// grpc-go removes the deadline, or until grpc-go closes the connection.
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

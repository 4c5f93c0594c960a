package memcached

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

// nodeConn is a connection that its node can close.
type nodeConn struct {
	net.Conn
	node *node
}

// NetConn returns the connection below.
func (c *nodeConn) NetConn() net.Conn { return c.Conn }

func (c *nodeConn) Close() error {
	c.node.connsMu.Lock()
	delete(c.node.conns, c)
	c.node.connsMu.Unlock()
	return c.Conn.Close()
}

// dial opens a connection. It fails when the store closes.
func (n *node) dial() (*connection, error) {
	conn, err := n.store.dialer.Dial(n.store.ctx, n.addr)
	if err != nil {
		return nil, err
	}
	c := &nodeConn{Conn: conn, node: n}
	n.connsMu.Lock()
	n.conns[c] = struct{}{}
	n.connsMu.Unlock()
	return newConnection(c), nil
}

// breakOff closes all connections, including those that goroutines wait on.
func (n *node) breakOff() {
	n.connsMu.Lock()
	defer n.connsMu.Unlock()
	for c := range n.conns {
		c.Conn.Close()
	}
}

// withConn lets f send and read over an idle connection, or a new one. An error closes the connection: further bytes
// from the node would be taken for the next answer. When the node turns out to have closed the connection, f is called
// once more: the node has lost its counters, or has closed an idle connection, and the other idle connections are as
// old.
func (n *node) withConn(f func(*connection) error) error {
	err := n.withConnOnce(f)
	if closedByPeer(err) {
		n.closeIdle()
		err = n.withConnOnce(f)
	}
	return err
}

// withConnOnce bounds all of f by one time-out from now on. No caller waits longer, whatever its deadline; a caller
// that leaves earlier does not end the exchange, which others share.
func (n *node) withConnOnce(f func(*connection) error) error {
	c, err := n.takeIdle()
	if err != nil {
		return err
	}
	c.begin(time.Now().Add(n.store.o.Settings.Timeout))
	if err = f(c); err != nil {
		c.conn.Close()
		return err
	}
	n.putIdle(c)
	return nil
}

// takeIdle returns the connection that was used last, or a new one.
func (n *node) takeIdle() (*connection, error) {
	n.connsMu.Lock()
	last := len(n.idle) - 1
	if last < 0 {
		n.connsMu.Unlock()
		return n.dial()
	}
	c := n.idle[last]
	n.idle[last], n.idle = nil, n.idle[:last]
	n.connsMu.Unlock()
	if !c.inStep() {
		c.conn.Close()
		return n.dial()
	}
	return c, nil
}

// putIdle keeps a connection for the next exchange; the probe's connection may be one too many.
func (n *node) putIdle(c *connection) {
	n.connsMu.Lock()
	keep := len(n.idle) < n.store.o.Settings.MaxIdleConns
	if keep {
		n.idle = append(n.idle, c)
	}
	n.connsMu.Unlock()
	if !keep {
		c.conn.Close()
	}
}

// closeIdle closes the connections that no exchange uses.
func (n *node) closeIdle() {
	n.connsMu.Lock()
	idle := n.idle
	n.idle = nil
	n.connsMu.Unlock()
	for _, c := range idle {
		c.conn.Close() // fails only for a connection that is already broken
	}
}

func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

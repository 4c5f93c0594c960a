package memcached

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"syscall"
	"time"

	"gatehouse/ratelimit/internal/counter/link"
)

// connection speaks memcached's text protocol (protocol.txt, "Increment/Decrement", "Storage commands" and "Retrieval
// command"). One write carries many increments: at 20,000 counters a second, a round trip for each would cost two
// system calls for each.
type connection struct {
	conn  net.Conn
	in    *bufio.Reader
	out   []byte
	alive func() bool // reports whether conn is alive
}

func newConnection(conn net.Conn) *connection {
	return &connection{conn: conn, in: bufio.NewReaderSize(conn, 4<<10), alive: link.Aliveness(conn)}
}

// inStep reports whether the next reply will be the reply to the next command: the node has neither ended the
// connection nor sent surplus bytes.
func (l *connection) inStep() bool { return l.in.Buffered() == 0 && l.alive() }

// reply is the node's reply to one command.
type reply struct {
	total int64 // of an increment
	// missing: the counter to change does not exist, or the counter to make exists.
	missing bool
	err     error // the node refuses the command; the connection stays in step
	fault   bool  // the node's fault, not the command's
}

// begin starts a batch that must be finished by end.
func (l *connection) begin(end time.Time) {
	l.out = l.out[:0]
	l.conn.SetDeadline(end) // an error concerns the connection, and occurs at the write too
}

// shift adds a change to an existing counter; memcached stops at 0.
func (l *connection) shift(key string, change int64) {
	command := "incr "
	if change < 0 {
		command = "decr "
	}
	l.out = append(append(append(l.out, command...), key...), ' ')
	l.out = append(strconv.AppendUint(l.out, hitsOf(change), 10), "\r\n"...)
}

// add makes a counter that does not exist.
func (l *connection) add(key string, value int64, expiry int32) {
	l.out = append(append(append(l.out, "add "...), key...), " 0 "...)
	l.out = append(strconv.AppendInt(l.out, int64(expiry), 10), ' ')
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], value, 10)
	l.out = append(strconv.AppendInt(l.out, int64(len(text)), 10), "\r\n"...)
	l.out = append(append(l.out, text...), "\r\n"...)
}

// remove deletes a counter.
func (l *connection) remove(key string) {
	l.out = append(append(append(l.out, "delete "...), key...), "\r\n"...)
}

// flush writes the batch. The node's replies meanwhile fit into the sockets' buffers: at most maxIncrs lines of two
// dozen bytes.
func (l *connection) flush() error {
	_, err := l.conn.Write(l.out)
	return err
}

// reply reads the reply to the next command. An error is one of the connection.
func (l *connection) reply() (reply, error) {
	line, err := l.in.ReadSlice('\n')
	if err != nil {
		return reply{}, err
	}
	return parseReply(line)
}

// errUnknownReply means that the peer speaks another protocol, or is out of step.
var errUnknownReply = errors.New("not memcached's answer to an increment")

// parseReply parses one line from the node. An error means that the connection cannot be used any longer.
func parseReply(line []byte) (reply, error) {
	text := bytes.TrimRight(line, " \r\n")
	switch {
	case string(text) == "STORED", string(text) == "DELETED":
		return reply{}, nil
	case string(text) == "NOT_FOUND", string(text) == "NOT_STORED":
		return reply{missing: true}, nil
	case len(text) > 0 && '0' <= text[0] && text[0] <= '9':
		total, err := strconv.ParseUint(string(text), 10, 64)
		if err != nil {
			return reply{}, fmt.Errorf("%w: %q", errUnknownReply, text)
		}
		return reply{total: int64(min(total, math.MaxInt64))}, nil
	case string(text) == "ERROR", bytes.HasPrefix(text, []byte("CLIENT_ERROR ")):
		return reply{err: fmt.Errorf("memcached: %.200q", text)}, nil
	case bytes.HasPrefix(text, []byte("SERVER_ERROR ")):
		return reply{err: fmt.Errorf("memcached: %.200q", text), fault: true}, nil
	}
	return reply{}, fmt.Errorf("%w: %.200q", errUnknownReply, text)
}

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

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

// connection speaks memcached's text protocol (protocol.txt in memcached's source, "Increment/Decrement", "Storage
// commands" and "Retrieval command"). Commands are gathered in the field out, so that one write carries many of them:
// at 20,000 counters a second, a round trip for each command would cost two system calls for each.
type connection struct {
	conn  net.Conn
	in    *bufio.Reader
	out   []byte
	alive func() bool // reports whether the node has ended conn or sent something unrequested
}

func newConnection(conn net.Conn) *connection {
	return &connection{conn: conn, in: bufio.NewReaderSize(conn, 4<<10), alive: link.Aliveness(conn)}
}

// inStep reports whether the next bytes to arrive will be the reply to the next command. This is not so if the node has
// ended the connection or has sent more bytes than it should.
func (l *connection) inStep() bool { return l.in.Buffered() == 0 && l.alive() }

// reply is the node's reply to one command.
type reply struct {
	total int64 // the counter's total after an increment
	// missing means that the counter to change does not exist, or that the counter to create does exist.
	missing bool
	err     error // the node has refused the command, and the connection can still be used
	fault   bool  // err is a fault of the node and not of the command
}

// begin starts a batch of commands, whose replies must all have been read before the time end.
func (l *connection) begin(end time.Time) {
	l.out = l.out[:0]
	l.conn.SetDeadline(end) // if this fails, writing will fail too
}

// shift appends a command that adds change to an existing counter. A negative change is subtracted; memcached stops at
// 0.
func (l *connection) shift(key string, change int64) {
	command := "incr "
	if change < 0 {
		command = "decr "
	}
	l.out = append(append(append(l.out, command...), key...), ' ')
	l.out = append(strconv.AppendUint(l.out, hitsOf(change), 10), "\r\n"...)
}

// add appends a command that creates a counter unless it exists. expiry is as in memcached's protocol; see expiryOf.
func (l *connection) add(key string, value int64, expiry int32) {
	l.out = append(append(append(l.out, "add "...), key...), " 0 "...)
	l.out = append(strconv.AppendInt(l.out, int64(expiry), 10), ' ')
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], value, 10)
	l.out = append(strconv.AppendInt(l.out, int64(len(text)), 10), "\r\n"...)
	l.out = append(append(l.out, text...), "\r\n"...)
}

// remove appends a command that deletes a counter.
func (l *connection) remove(key string) {
	l.out = append(append(append(l.out, "delete "...), key...), "\r\n"...)
}

// flush sends the appended commands. It does not read, but cannot block because of unread replies: these fit into the
// sockets' buffers, since there are at most maxIncrs lines of two dozen bytes.
func (l *connection) flush() error {
	_, err := l.conn.Write(l.out)
	return err
}

// reply reads the reply to the next command. An error is one of the connection, which must not be used any longer.
func (l *connection) reply() (reply, error) {
	line, err := l.in.ReadSlice('\n')
	if err != nil {
		return reply{}, err
	}
	return parseReply(line)
}

// errUnknownReply means that the peer speaks another protocol, or answers another command than the next.
var errUnknownReply = errors.New("not memcached's answer to an increment")

// parseReply parses a reply, which is one line. An error means that the connection must not be used any longer.
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

// nodeConn is a connection that is listed in node.conns until it is closed.
type nodeConn struct {
	net.Conn
	node *node
}

// NetConn returns the underlying connection.
func (c *nodeConn) NetConn() net.Conn { return c.Conn }

// Close implements net.Conn. It also removes the connection from node.conns.
func (c *nodeConn) Close() error {
	c.node.connsMu.Lock()
	delete(c.node.conns, c)
	c.node.connsMu.Unlock()
	return c.Conn.Close()
}

// dial opens a connection to the node. It fails when the store is closed.
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

// breakOff closes all connections to the node. Goroutines that read from one then get an error.
func (n *node) breakOff() {
	n.connsMu.Lock()
	defer n.connsMu.Unlock()
	for c := range n.conns {
		c.Conn.Close()
	}
}

// withConn calls f, which sends commands and reads the answers, with an idle connection, or with a new one if no
// connection is idle. If f fails, the connection is closed, since bytes that still arrive would be taken for the next
// answer. If f fails because the node had closed the connection, f is called once more, over a new connection: a node
// closes idle connections, and when it restarts, all connections. The other idle connections are closed first, since
// they may be just as old.
func (n *node) withConn(f func(*connection) error) error {
	err := n.withConnOnce(f)
	if closedByPeer(err) {
		n.closeIdle()
		err = n.withConnOnce(f)
	}
	return err
}

// withConnOnce is withConn without the second call of f. f has to finish within the store's time-out, counted from now:
// no caller waits longer, whatever its deadline. A caller that stops waiting earlier does not end f, since other
// callers wait for the same answer.
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

// takeIdle returns the idle connection that was used last, or a new one.
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

// putIdle keeps a connection for the next call of withConn, or closes it if MaxIdleConns are kept already. Workers
// never use more connections, but a probe may use one in addition.
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

// closeIdle closes the connections that are not in use.
func (n *node) closeIdle() {
	n.connsMu.Lock()
	idle := n.idle
	n.idle = nil
	n.connsMu.Unlock()
	for _, c := range idle {
		c.conn.Close() // an error would only say that the connection was broken already
	}
}

func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

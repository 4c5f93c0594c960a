package memcached

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
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

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
// command"). Increments go many to a write: at 20,000 counters a second, a round trip for each would cost two system
// calls for each.
type connection struct {
	conn  net.Conn
	in    *bufio.Reader
	out   []byte
	alive func() bool // of conn
}

func newConnection(conn net.Conn) *connection {
	return &connection{conn: conn, in: bufio.NewReaderSize(conn, 4<<10), alive: link.Aliveness(conn)}
}

// inStep reports whether the next reply will be that to the next command: the node has neither ended the connection
// nor sent more than it was asked for.
func (l *connection) inStep() bool { return l.in.Buffered() == 0 && l.alive() }

// reply is what the node says to one command.
type reply struct {
	total int64 // of an increment
	// missing: there is no counter to shift, or one that was to be made is there.
	missing bool
	err     error // the node refuses the command; the next reply is the next command's
	fault   bool  // for want of its own, not because of the command
}

// begin starts a batch that must be over by then.
func (l *connection) begin(end time.Time) {
	l.out = l.out[:0]
	l.conn.SetDeadline(end) // an error is the connection's, which the write meets too
}

// shift adds a change to a counter that exists; below 0 memcached stays at 0.
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

// flush writes the batch. What the node says meanwhile fits into the sockets' buffers: at most maxIncrs
// lines of two dozen bytes.
func (l *connection) flush() error {
	_, err := l.conn.Write(l.out)
	return err
}

// reply reads what the node says to the next command. An error is the link's.
func (l *connection) reply() (reply, error) {
	line, err := l.in.ReadSlice('\n')
	if err != nil {
		return reply{}, err
	}
	return parseReply(line)
}

// errUnknownReply means that the other end speaks another protocol, or is out of step.
var errUnknownReply = errors.New("not memcached's answer to an increment")

// parseReply reads one line of the node's. An error means that the link is of no use any more.
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

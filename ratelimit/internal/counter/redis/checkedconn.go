package redis

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// Bounds of one reply, which are far beyond any that our commands have.
const (
	maxReplyLine   = 64 << 10
	maxReplyString = 1 << 20
	maxReplyValues = 1 << 18 // a cluster whose every slot is a range of its own has fewer
	maxReplyDepth  = 8
	maxDigits      = 20 // with the sign
)

// errUnexpected is the error of a connection on which more arrives than was asked for. What belongs to which command is
// not known any more.
var errUnexpected = errors.New("a reply that no command asked for")

// checkedConn is a connection whose replies are checked before rueidis reads them. rueidis allocates whatever a length
// announces, panics where it cannot, and takes a reply too many for that of the next command, or panics in a goroutine
// of its own.
type checkedConn struct {
	net.Conn
	expected int // replies that are still due

	kind   byte  // of the value under way; 0: none is
	last   byte  // the byte before, within a line
	line   int   // bytes of the line, behind the kind
	minus  bool  // the number in the line is negative
	number int64 // in the line, without its sign; more than 63 bits wrap
	body   int64 // bytes of a string that are still due, with the CRLF behind it
	values int64 // announced by the arrays of the reply
	open   [maxReplyDepth]int64
	depth  int // how many of open, each the values that an array still lacks
}

// Read implements net.Conn.
func (c *checkedConn) Read(p []byte) (int, error) {
	if c.expected == 0 {
		return 0, errUnexpected
	}
	n, err := c.Conn.Read(p)
	if wrong := c.check(p[:n]); wrong != nil {
		return 0, wrong
	}
	return n, err
}

// check goes through what has arrived, and fails before a value that is out of bounds is complete.
func (c *checkedConn) check(b []byte) error {
	for len(b) > 0 {
		switch {
		case c.body > 2:
			n := min(int64(len(b)), c.body-2)
			c.body, b = c.body-n, b[n:]
			continue
		case c.body > 0:
			if b[0] != "\n\r"[c.body-1] {
				return fmt.Errorf("a reply with byte %q behind a string, want CRLF", b[0])
			}
			if c.body--; c.body == 0 {
				c.valueEnds()
			}
		case c.kind == 0:
			if c.expected == 0 {
				return errUnexpected
			}
			if n := wholeTotal(b); n > 0 {
				b = b[n:]
				c.valueEnds()
				continue
			}
			c.kind, c.last, c.line, c.minus, c.number = b[0], 0, 0, false, 0
			if strings.IndexByte("+-:$*", c.kind) < 0 {
				return fmt.Errorf("a reply with a value of kind %q", c.kind)
			}
		default:
			if err := c.lineByte(b[0]); err != nil {
				return err
			}
		}
		b = b[1:]
	}
	return nil
}

// wholeTotal is the length of a plain number at the beginning, with all of its line, or 0: most replies are one.
func wholeTotal(b []byte) int {
	n := 1
	for n < len(b) && n < maxDigits && b[n]-'0' <= 9 {
		n++
	}
	if b[0] == ':' && n > 1 && len(b) > n+1 && b[n] == '\r' && b[n+1] == '\n' {
		return n + 2
	}
	return 0
}

// lineByte checks a byte of the line that follows a kind.
func (c *checkedConn) lineByte(b byte) error {
	text := c.kind == '+' || c.kind == '-'
	switch {
	case b == '\n' && c.last == '\r':
		return c.lineEnds()
	case b == '\n' || c.last == '\r' || c.line == maxReplyLine:
		return fmt.Errorf("a reply with a line that does not end in CRLF, or after more than %d bytes", maxReplyLine)
	case text, b == '\r' && '0' <= c.last:
	case b == '-' && c.line == 0:
		c.minus = true
	case b < '0' || b > '9' || c.line >= maxDigits:
		return fmt.Errorf("a reply with byte %q in a number", b)
	default:
		c.number = c.number*10 + int64(b-'0')
	}
	c.last = b
	c.line++
	return nil
}

// lineEnds checks the number of a line, now that it is complete.
func (c *checkedConn) lineEnds() error {
	isString, isArray := c.kind == '$', c.kind == '*'
	switch {
	case !isString && !isArray, c.minus && c.number == 1, isArray && c.number == 0:
		c.valueEnds()
	case c.minus || c.number < 0 || isString && c.number > maxReplyString ||
		isArray && (c.number > maxReplyValues-c.values || c.depth == maxReplyDepth):
		return fmt.Errorf("a reply with %c%d at depth %d", c.kind, c.number, c.depth)
	case isString:
		c.body = c.number + 2
	default:
		c.values += c.number
		c.open[c.depth] = c.number
		c.depth++
		c.kind = 0
	}
	return nil
}

// valueEnds notes that a value is complete, and the arrays whose last value it is.
func (c *checkedConn) valueEnds() {
	c.kind = 0
	for ; c.depth > 0; c.depth-- {
		if c.open[c.depth-1]--; c.open[c.depth-1] > 0 {
			return
		}
	}
	c.values = 0
	c.expected--
}

package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"gatehouse/ratelimit/internal/counter/link"
)

// access says how to connect and authenticate to the servers of one kind: a store's servers, or its sentinels.
type access struct {
	dialer         link.Dialer
	user, password string
	db             int
	clock          func() int64 // as Options.Clock
	skew           *skew        // nil: the server's clock is not read
}

// client is rueidis with one connection to one server.
//
// One command or batch is under way at a time, so that rueidis writes and reads in the caller's goroutine and needs
// none of its own; for this reason its timer for PINGs is off, too. A client is never closed: rueidis' Close waits, for
// ever after a panic, and has a goroutine of its own read the rest. Without its socket a client is garbage.
type client struct {
	rueidis.Client
	conn checkedConn
}

// client opens a connection with dial and has rueidis use it.
func (a *access) client(addr string, dial func(context.Context) (net.Conn, error)) (_ *client, err error) {
	c := new(client)
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	defer recovered(&err)
	c.conn.expected = 1 // the reply to HELLO
	if a.user != "" || a.password != "" {
		c.conn.expected++
	}
	if a.db != 0 {
		c.conn.expected++
	}
	c.Client, err = rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{addr},
		Username:    a.user,
		Password:    a.password,
		SelectDB:    a.db,
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (_ net.Conn, err error) {
			if c.conn.Conn != nil {
				return nil, net.ErrClosed // the address may lead to another server
			}
			c.conn.Conn, err = dial(ctx)
			return &c.conn, err
		},
		// KeepAlive turns rueidis' PINGs off; dial sets the socket's.
		Dialer:              net.Dialer{Timeout: a.dialer.Timeout, KeepAlive: -1},
		ConnWriteTimeout:    a.dialer.Timeout,
		ForceSingleClient:   true,
		AlwaysRESP2:         true,
		DisableCache:        true,
		DisableRetry:        true,
		ClientSetInfo:       rueidis.DisableClientSetInfo,
		PipelineMultiplex:   -1,
		BlockingPipeline:    1 << 30, // never: blocking pipelines take another connection
		BlockingPoolSize:    1,
		RingScaleEachConn:   4, // a ring of 16: there is one sender
		ReadBufferEachConn:  64 << 10,
		WriteBufferEachConn: 64 << 10,
	})
	return c, err
}

// do sends commands and waits for their replies.
func (c *client) do(cmds ...rueidis.Completed) (replies []rueidis.RedisResult, err error) {
	defer recovered(&err)
	c.conn.expected = len(cmds)
	return c.DoMulti(context.Background(), cmds...), nil
}

func (c *client) close() {
	if c.conn.Conn != nil {
		c.conn.Conn.Close()
	}
}

// recovered turns a panic of rueidis into an error.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("the client library has panicked: %v", r)
	}
}

// once sends commands over a connection of their own, which ends with ctx.
func (a *access) once(ctx context.Context, addr string,
	build func(rueidis.Builder) []rueidis.Completed) ([]rueidis.RedisResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // closes the connection
	c, err := a.client(addr, func(context.Context) (net.Conn, error) {
		conn, err := a.dialer.Dial(ctx, link.Endpoint{Network: "tcp", Addr: addr})
		if err == nil {
			context.AfterFunc(ctx, func() { conn.Close() })
		}
		return conn, err
	})
	if err != nil {
		return nil, err
	}
	return c.do(build(c.B())...)
}

// asked is what one server has said.
type asked[T any] struct {
	said T
	err  error
}

// askEach asks servers side by side. The channel gets an answer of each; what and the address stand before an error.
func askEach[T any](ctx context.Context, wg *sync.WaitGroup, addrs []string, what string,
	ask func(ctx context.Context, addr string) (T, error)) <-chan asked[T] {
	answers := make(chan asked[T], len(addrs))
	for _, addr := range addrs {
		wg.Go(func() {
			said, err := ask(ctx, addr)
			if err != nil {
				err = fmt.Errorf("%s%s: %w", what, addr, err)
			}
			answers <- asked[T]{said, err}
		})
	}
	return answers
}

// Bounds of one reply, far beyond any reply to our commands.
const (
	maxReplyLine   = 64 << 10
	maxReplyString = 1 << 20
	maxReplyValues = 1 << 18 // more than a cluster has in which every slot is a range of its own
	maxReplyDepth  = 8
	maxDigits      = 20 // with the sign
)

// errUnexpected is the error of a connection that receives more replies than it sent commands. It is then unknown which
// reply answers which command.
var errUnexpected = errors.New("a reply that no command asked for")

// checkedConn checks the replies on a connection before rueidis reads them. rueidis allocates any length that a reply
// announces, or panics where it cannot. It takes a surplus reply for the answer to the next command, or panics in a
// goroutine of its own.
type checkedConn struct {
	net.Conn
	expected int // replies that have not arrived

	kind   byte  // of the incomplete value; 0: none
	last   byte  // the previous byte of the line
	line   int   // bytes of the line after the kind
	minus  bool  // the number in the line is negative
	number int64 // the number in the line, without its sign; more than 63 bits wrap
	body   int64 // bytes of a string that have not arrived, with the CRLF after it
	values int64 // values that the arrays of the reply announced
	open   [maxReplyDepth]int64
	depth  int // how many of open are in use; each is the number of values that an array still lacks
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

// check checks the bytes that have arrived, and fails before a value that is out of bounds is complete.
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
				return fmt.Errorf("a reply that begins with %q: another kind of server than Redis", c.kind)
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

// wholeTotal returns the length of a plain number at the beginning of b, with its whole line, or 0. Most replies are
// plain numbers.
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

// lineByte checks a byte of the line after a kind.
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

// lineEnds checks the number of a complete line.
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

// valueEnds notes that a value is complete, and each array that ends with it.
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

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

// access says how to connect and authenticate to servers of one kind: to the servers of a store, or to the sentinels
// that name its master.
type access struct {
	dialer         link.Dialer
	user, password string
	db             int
	clock          func() int64 // replaces the server's clock; see Options.Clock
	skew           *skew        // compares clocks; nil: the server's clock is not read
}

// client is a client of the rueidis library with one connection to one server.
//
// Only one command or batch is sent at a time. rueidis then writes and reads in the caller's goroutine and starts none
// of its own; for the same reason, its timer for PINGs is turned off. A client is never closed by rueidis' Close, which
// starts a goroutine to read the rest and waits for it, for ever after a panic. Closing the socket is enough: the
// garbage collector frees everything else that a client has.
type client struct {
	rueidis.Client
	conn checkedConn
}

// client returns a client for the server at addr. dial opens its connection, which the client uses until it ends.
func (a *access) client(addr string, dial func(context.Context) (net.Conn, error)) (_ *client, err error) {
	c := new(client)
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	defer recovered(&err)
	c.conn.expected = 1 // HELLO, which is sent first, has one reply
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
				return nil, net.ErrClosed // a second dial: the address may lead to another server
			}
			c.conn.Conn, err = dial(ctx)
			return &c.conn, err
		},
		// A negative KeepAlive turns off the PINGs of rueidis; dial sets the socket's own keepalive.
		Dialer:              net.Dialer{Timeout: a.dialer.Timeout, KeepAlive: -1},
		ConnWriteTimeout:    a.dialer.Timeout,
		ForceSingleClient:   true,
		AlwaysRESP2:         true,
		DisableCache:        true,
		DisableRetry:        true,
		ClientSetInfo:       rueidis.DisableClientSetInfo,
		PipelineMultiplex:   -1,
		BlockingPipeline:    1 << 30, // never reached: blocking pipelines open another connection
		BlockingPoolSize:    1,
		RingScaleEachConn:   4, // a ring of 16 entries is enough for one sender
		ReadBufferEachConn:  64 << 10,
		WriteBufferEachConn: 64 << 10,
	})
	return c, err
}

// do sends commands and waits for the replies.
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

// recovered, deferred by a function that calls rueidis, turns a panic of rueidis into an error.
func recovered(err *error) {
	if r := recover(); r != nil {
		*err = fmt.Errorf("the client library has panicked: %v", r)
	}
}

// once sends the commands that build returns to the server at addr, over a new connection. It closes the connection
// when it has the replies, or when ctx ends.
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

// asked is the answer of one server to a query of askEach, or its error.
type asked[T any] struct {
	said T
	err  error
}

// askEach calls ask for all addresses at the same time. The returned channel gets one answer for each address. The text
// of an error begins with the text what and the address.
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

// These constants bound one reply. They are far beyond any valid reply to the store's commands.
const (
	maxReplyLine   = 64 << 10
	maxReplyString = 1 << 20
	maxReplyValues = 1 << 18 // more than CLUSTER SLOTS has if every slot is a range of its own
	maxReplyDepth  = 8
	maxDigits      = 20 // with a sign
)

// errUnexpected is the error of a connection that has received a reply without a command. It is then unknown which
// reply belongs to which command.
var errUnexpected = errors.New("a reply that no command asked for")

// checkedConn checks the replies on a connection before rueidis reads them, because rueidis trusts its server. Given a
// broken reply, rueidis allocates as much memory as the reply announces, or panics if there is not so much. Given a
// surplus reply, it takes it for the reply to the next command, or panics in a goroutine of its own.
type checkedConn struct {
	net.Conn
	expected int // how many replies have yet to arrive

	kind   byte  // the first byte of the value that is being received; 0: none
	last   byte  // the previous byte of the line
	line   int   // how many bytes the line has after the first
	minus  bool  // the number in the line is negative
	number int64 // the number in the line, without its sign; it wraps beyond 63 bits
	body   int64 // how many bytes of a string have yet to arrive, including the CRLF after it
	values int64 // how many values the arrays of the reply have announced
	open   [maxReplyDepth]int64
	depth  int // how many entries of open are in use; each is how many values an array still lacks
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

// check checks bytes that have arrived. It fails as soon as a value exceeds a bound, before the value is complete.
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

// wholeTotal returns the length of the first line of b, with its CRLF, if the line is a reply that is a plain number;
// otherwise 0. Most replies are plain numbers, and check skips such a reply as a whole.
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

// lineByte checks one byte of a line, after its first byte.
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

// lineEnds checks the number of a line that is complete, and prepares for the string or array that the line announces.
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

// valueEnds records that a value is complete, and with it each array whose last value it is.
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

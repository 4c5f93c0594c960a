package redis

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

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

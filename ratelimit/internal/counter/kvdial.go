package counter

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/redis/rueidis"
)

// endpoint is where one server listens: tcp and host:port, or unix and a path.
type endpoint struct{ network, addr string }

// dialer opens connections to all servers of one kind: those of a store, or its sentinels. Whatever the
// deployment, every connection comes from here.
type dialer struct {
	user, password string
	db             int
	tls            func(host string) *tls.Config // for the host dialled; nil: none
	timeout        time.Duration
	stats          *poolStats // nil: not counted
}

// dial opens one connection, within the time-out.
func (d *dialer) dial(ctx context.Context, to endpoint) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	nd := net.Dialer{KeepAlive: 10 * time.Second}
	conn, err := nd.DialContext(ctx, to.network, to.addr)
	if err != nil {
		return nil, err
	}
	if d.tls != nil {
		if conn, err = d.handshake(ctx, conn, to); err != nil {
			return nil, err
		}
	}
	if d.stats == nil {
		return conn, nil
	}
	d.stats.active.Add(1)
	d.stats.total.Add(1)
	return &countedConn{Conn: conn, stats: d.stats}, nil
}

func (d *dialer) handshake(ctx context.Context, conn net.Conn, to endpoint) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(to.addr) // empty for a socket's path
	secure := tls.Client(conn, d.tls(host))
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// client makes rueidis speak to one server over one connection, which dial opens, again after each loss.
//
// One command or batch is under way at a time, so that rueidis writes and reads in the caller's
// goroutine and needs none of its own; that is also why its timer for PINGs is off.
func (d *dialer) client(addr string, dial func(context.Context) (net.Conn, error)) (rueidis.Client, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{addr},
		Username:    d.user,
		Password:    d.password,
		SelectDB:    d.db,
		DialCtxFn: func(ctx context.Context, _ string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx)
		},
		Dialer:              net.Dialer{Timeout: d.timeout, KeepAlive: -1}, // its pings off; dial sets the socket's
		ConnWriteTimeout:    d.timeout,
		ForceSingleClient:   true,
		AlwaysRESP2:         true,
		DisableCache:        true,
		DisableRetry:        true,
		ClientSetInfo:       rueidis.DisableClientSetInfo,
		PipelineMultiplex:   -1,
		BlockingPipeline:    1 << 30, // never: it would take another connection
		BlockingPoolSize:    1,
		RingScaleEachConn:   4, // a ring of 16: there is one sender
		ReadBufferEachConn:  64 << 10,
		WriteBufferEachConn: 64 << 10,
	})
	if err != nil && c != nil {
		c.Close()
	}
	return c, err
}

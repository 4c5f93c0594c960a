package counter

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"time"
)

// endpoint is where one server listens: tcp and host:port, or unix and a path.
type endpoint struct{ network, addr string }

// dialer opens connections to all servers of one kind: those of a store, or its sentinels. Whatever the
// deployment, every connection comes from here.
type dialer struct {
	tls     func(host string) *tls.Config // for the host dialled; nil: none
	timeout time.Duration
	stats   *poolStats // nil: not counted
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

// isPort reports whether s is a port to connect to.
func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// Package link has what connections to any store need: dialling, metrics, the breaker, deadlines, and the distinction
// between a store that does not answer and a process that does not run.
package link

import (
	"context"
	"crypto/tls"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/shared/nonblock"
)

// Endpoint is the address of a server: tcp and host:port, or unix and a path.
type Endpoint struct{ Network, Addr string }

// Dialer opens connections to the servers of one kind: a store's servers, or its sentinels. Every connection comes from
// a Dialer, whatever the deployment.
type Dialer struct {
	TLS     func(host string) *tls.Config // returns the config for the dialled host; nil: no TLS
	Timeout time.Duration
	Stats   *PoolStats // nil: not counted
}

// Dial opens one connection, within the time-out.
func (d *Dialer) Dial(ctx context.Context, to Endpoint) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	nd := net.Dialer{KeepAlive: 10 * time.Second}
	conn, err := nd.DialContext(ctx, to.Network, to.Addr)
	if err != nil {
		return nil, err
	}
	conn = nonblock.Wrap(conn)
	if d.TLS != nil {
		if conn, err = d.handshake(ctx, conn, to); err != nil {
			return nil, err
		}
	}
	if d.Stats == nil {
		return conn, nil
	}
	d.Stats.active.Add(1)
	d.Stats.total.Add(1)
	return &countedConn{Conn: conn, stats: d.Stats}, nil
}

func (d *Dialer) handshake(ctx context.Context, conn net.Conn, to Endpoint) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(to.Addr) // empty for a socket's path
	secure := tls.Client(conn, d.TLS(host))
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// IsPort reports whether s is a valid port to connect to.
func IsPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// PoolStats are the metrics cx_active, cx_total and cx_local_close of a store's connections.
type PoolStats struct{ active, total, localClose atomic.Int64 }

// ActiveConns is the number of connections open now (cx_active).
func (s *PoolStats) ActiveConns() int64 { return s.active.Load() }

// TotalConns is the number of connections ever opened (cx_total).
func (s *PoolStats) TotalConns() int64 { return s.total.Load() }

// LocalCloses is the number of connections closed by this process (cx_local_close).
func (s *PoolStats) LocalCloses() int64 { return s.localClose.Load() }

// countedConn is a connection that PoolStats count.
type countedConn struct {
	net.Conn
	stats  *PoolStats
	once   sync.Once
	remote atomic.Bool // the peer or the network ended the connection
}

// NetConn returns the connection below.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		if e, ok := err.(net.Error); !ok || !e.Timeout() {
			c.remote.Store(true)
		}
	}
	return n, err
}

func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.stats.active.Add(-1)
		if !c.remote.Load() {
			c.stats.localClose.Add(1)
		}
	})
	return c.Conn.Close()
}

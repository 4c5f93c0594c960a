// Package link has what the connections to every kind of store need: dialing, TLS, metrics, deadlines, and a circuit
// breaker, which distinguishes a store that does not answer from a process that gets no time to run.
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

// Endpoint is the address of a server: tcp with host:port, or unix with the path of a socket.
type Endpoint struct{ Network, Addr string }

// Dialer opens the connections to the servers of one kind: to the servers of a store, or to the sentinels that name its
// master.
type Dialer struct {
	TLS     func(host string) *tls.Config // returns the config for the host that is dialed; nil: no TLS
	Timeout time.Duration
	Stats   *PoolStats // counts the connections; nil: they are not counted
}

// Dial opens one connection, including its TLS handshake, within d.Timeout.
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
	host, _, _ := net.SplitHostPort(to.Addr) // empty for the path of a unix socket
	secure := tls.Client(conn, d.TLS(host))
	if err := secure.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, err
	}
	return secure, nil
}

// IsPort reports whether s is the number of a port to which one can connect.
func IsPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// PoolStats counts a store's connections for the metrics cx_active, cx_total and cx_local_close.
type PoolStats struct{ active, total, localClose atomic.Int64 }

// ActiveConns returns the number of connections that are open now (cx_active).
func (s *PoolStats) ActiveConns() int64 { return s.active.Load() }

// TotalConns returns the number of connections that were ever opened (cx_total).
func (s *PoolStats) TotalConns() int64 { return s.total.Load() }

// LocalCloses returns the number of connections that this process has closed (cx_local_close).
func (s *PoolStats) LocalCloses() int64 { return s.localClose.Load() }

// countedConn is a connection that reports its end to PoolStats.
type countedConn struct {
	net.Conn
	stats  *PoolStats
	once   sync.Once
	remote atomic.Bool // a read has failed: the peer or the network ended the connection
}

// NetConn returns the underlying connection.
func (c *countedConn) NetConn() net.Conn { return c.Conn }

// Read implements net.Conn. It notes when the peer or the network has ended the connection.
func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		if e, ok := err.(net.Error); !ok || !e.Timeout() {
			c.remote.Store(true)
		}
	}
	return n, err
}

// Close implements net.Conn. It counts the end of the connection, once.
func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.stats.active.Add(-1)
		if !c.remote.Load() {
			c.stats.localClose.Add(1)
		}
	})
	return c.Conn.Close()
}

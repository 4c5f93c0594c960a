package link

import (
	"net"
	"sync"
	"sync/atomic"
)

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

package link

import (
	"net"
	"sync"
	"sync/atomic"
)

// PoolStats are the metrics cx_active, cx_total and cx_local_close of a store's connections.
type PoolStats struct{ Active, Total, LocalClose atomic.Int64 }

// countedConn is a connection that is counted in the pool's metrics.
type countedConn struct {
	net.Conn
	stats  *PoolStats
	once   sync.Once
	remote atomic.Bool // the other side ended it, or the network
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
		c.stats.Active.Add(-1)
		if !c.remote.Load() {
			c.stats.LocalClose.Add(1)
		}
	})
	return c.Conn.Close()
}

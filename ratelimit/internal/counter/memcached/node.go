package memcached

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// node is one memcached server. Fields are guarded by the store's mutex unless they say otherwise.
type node struct {
	store   *Store
	addr    nodeAddr
	breaker link.Breaker

	client *memcache.Client // for lookups
	link   *connection      // for increments, while there is one; the writer's own
	quiet  *time.Timer      // closes it
	batch  []pendingIncr    // the writer's own: what is under way
	open   []*pendingIncr   // likewise, those not done

	counts  map[string]*localCount
	lookups []*lookup // waiting
	workers int
	out     map[*lookup]struct{} // asked for now
	due     []*localCount        // with something pending, in order
	writing bool                 // somebody is
	gone    bool                 // no longer on the list
	retired bool                 // nor of use to anybody

	connsMu sync.Mutex
	conns   map[*nodeConn]struct{}
}

// nodeAddr is a server as gomemcache wants it: dialled by name, so that a name may move.
type nodeAddr struct{ network, text string }

func (a nodeAddr) Network() string { return a.network }
func (a nodeAddr) String() string  { return a.text }

// oneNode is the selector of a client that knows one server.
type oneNode struct{ addr net.Addr }

func (o oneNode) PickServer(string) (net.Addr, error)    { return o.addr, nil }
func (o oneNode) Each(f func(addr net.Addr) error) error { return f(o.addr) }

func (s *Store) newNode(addr string) *node {
	n := &node{
		store: s, addr: nodeAddr{"tcp", addr}, breaker: link.Breaker{Stall: s.o.Stall},
		counts: map[string]*localCount{}, out: map[*lookup]struct{}{}, conns: map[*nodeConn]struct{}{},
	}
	if strings.Contains(addr, "/") {
		n.addr.network = "unix"
	}
	n.client = memcache.NewFromSelector(oneNode{n.addr})
	n.client.Timeout, n.client.MaxIdleConns, n.client.DialContext = s.o.Timeout, s.o.MaxIdleConns, n.dial
	n.quiet = time.AfterFunc(writerIdle, n.hangUpIdle)
	return n
}

// dial opens a connection, and breaks off when the store closes.
func (n *node) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.store.ctx, cancel)()
	conn, err := n.store.dialer.Dial(ctx, link.Endpoint{Network: network, Addr: addr})
	if err != nil {
		return nil, err
	}
	c := &nodeConn{Conn: conn, node: n}
	n.connsMu.Lock()
	n.conns[c] = struct{}{}
	n.connsMu.Unlock()
	return c, nil
}

// nodeConn is a connection that the node can break off.
type nodeConn struct {
	net.Conn
	node *node
}

func (c *nodeConn) Close() error {
	c.node.connsMu.Lock()
	delete(c.node.conns, c)
	c.node.connsMu.Unlock()
	return c.Conn.Close()
}

// breakOff closes all connections under whoever waits on them.
func (n *node) breakOff() {
	n.connsMu.Lock()
	defer n.connsMu.Unlock()
	for c := range n.conns {
		c.Conn.Close()
	}
}

// rest closes the connections that nobody uses; for good, if nobody uses the node afterwards. Nobody is
// writing, and the store's mutex is held: a timer may be about to hang up, too.
func (n *node) rest() {
	n.quiet.Stop()
	n.client.Close() // an error is that of a connection already broken
	n.hangUp()
}

// count is the counter's, made if need be.
func (n *node) count(key string) *localCount {
	t := n.counts[key]
	if t == nil {
		t = &localCount{node: n, key: key}
		n.counts[key] = t
	}
	return t
}

// drop forgets a local count that nobody needs.
func (n *node) drop(t *localCount) {
	if t.idle() {
		delete(n.counts, t.key)
	}
}

// again repeats an operation once when its connection turns out to have been closed by the other side
// while it rested. A node that closes them has lost its counters, or has closed this one for being idle.
func again(c *memcache.Client, f func() error) error {
	err := f()
	if closedByPeer(err) {
		c.Close() // the others are as old
		err = f()
	}
	return err
}

func closedByPeer(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// failed notes a failure of the node.
func (n *node) failed(err error) {
	if n.store.ctx.Err() != nil {
		return // it was us
	}
	if n.breaker.Failed(time.Since(n.store.begun)) {
		n.lost(fmt.Sprintf("%d failures in a row, the last: %v", link.BreakerFailures, err))
	}
}

// stalled notes that a lookup has had no answer for the time of STORE_STALL.
func (n *node) stalled() {
	if n.breaker.Aged(n.store.o.Stall, time.Since(n.store.begun)) {
		n.lost("a look-up has been out for " + n.store.o.Stall.String())
	}
}

// lost answers everybody who waits for the node, now that its breaker is open, and probes it from now on.
func (n *node) lost(why string) {
	s := n.store
	s.o.Log.Error("a memcached node is lost; the failure mode answers for its keys until it is back", "node", n.addr.text,
		"why", why)
	s.mu.Lock()
	for l := range n.out {
		l.finish(counter.ErrOpen)
	}
	for _, l := range n.lookups {
		l.finish(counter.ErrOpen)
	}
	clear(n.lookups)
	n.lookups = n.lookups[:0]
	if s.ctx.Err() == nil {
		s.wg.Go(n.probe)
	}
	s.mu.Unlock()
	n.breakOff()
	n.client.Close() // those that rest are broken too
	n.hangUpIdle()
}

// probe asks a lost node whether it is back until it is, or nobody wants it.
func (n *node) probe() {
	s := n.store
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(link.ProbeEvery):
		}
		s.mu.Lock()
		retired := n.retired
		s.mu.Unlock()
		if retired {
			return
		}
		if again(n.client, n.client.Ping) != nil {
			continue
		}
		n.breaker.Probed(true)
		s.o.Log.Warn("a memcached node answers again", "node", n.addr.text)
		s.mu.Lock()
		n.startWriter()
		s.mu.Unlock()
		return
	}
}

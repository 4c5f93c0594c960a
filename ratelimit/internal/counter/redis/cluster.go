package redis

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

const (
	// refreshEvery is how often the table of slots is refreshed when nothing is wrong.
	refreshEvery = 5 * time.Second
	// refreshSoon is how often the table is refreshed while a node is lost. It is also the least time between
	// refreshes.
	refreshSoon = 100 * time.Millisecond
	// unwanted is how long a node may be without slots before it is closed.
	unwanted = 30 * time.Second
)

// Cluster is a counter.Store that counts hits in a Redis Cluster. It has a Server, with its own queue, connections and
// breaker, for each master, and a table that names the master of each slot.
//
// A request's hits are grouped by node, and each group is one call of the node's Server. So hits of different requests
// share the connections of their node, and a node that is lost delays only hits on its own keys. The cluster client of
// rueidis is not suitable: it sends a batch for several nodes as one, follows redirections by itself, and cannot drop a
// connection. So the slowest node would delay all hits, and there would be no batch of one node for a breaker to watch.
type Cluster struct {
	*link.PoolStats
	o     Options
	t     target // the credentials, and the addresses from the settings
	width int    // how many nodes one request uses at the same time

	slots  [slots]atomic.Pointer[clusterNode] // the node that serves each slot; nil: none
	splits sync.Pool                          // holds *split

	mu    sync.Mutex
	nodes map[string]*clusterNode // by address
	peers []string                // the addresses of all nodes that the settings or the cluster have named
	turn  int                     // index of the peer that the next refresh queries first
	down  bool                    // in the last refresh, no node reported the cluster as healthy

	kick chan struct{} // a value requests a refresh
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// clusterNode is one master of a cluster.
type clusterNode struct {
	server  *Server
	cluster *Cluster
	addr    string
	wanted  time.Time // when the node last had slots or was named by another node; guarded by Cluster.mu
}

// NewCluster connects to a cluster, and returns when a node has sent the table of slots. It retries as NewServer does.
func NewCluster(ctx context.Context, o Options) (*Cluster, error) {
	t, err := o.Settings.target()
	if err != nil {
		return nil, err
	}
	o = o.withDefaults()
	c := &Cluster{
		PoolStats: o.pool, o: o, t: t, nodes: map[string]*clusterNode{}, peers: t.addrs,
		width:  min(cmp.Or(o.Settings.Parallelism, o.Settings.PoolSize), o.Settings.PoolSize),
		splits: sync.Pool{New: func() any { return new(split) }},
		kick:   make(chan struct{}, 1),
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if err := reach(ctx, o, c.refresh); err != nil {
		c.Close()
		return nil, err
	}
	c.wg.Go(c.watch)
	return c, nil
}

// node returns the node at an address. If the address is new, node creates the node. c.mu is held.
func (c *Cluster) node(addr string) *clusterNode {
	n := c.nodes[addr]
	if n == nil {
		o := c.o
		o.Log = o.Log.With("node", addr)
		n = &clusterNode{server: newServer(o), cluster: c, addr: addr}
		n.server.trouble = c.trouble
		n.server.at(c.t, func() link.Endpoint { return link.Endpoint{Network: "tcp", Addr: addr} }, clusterServer)
		n.server.run(n.server.newLink(o.Settings.Timeout))
		c.nodes[addr] = n
	}
	n.wanted = time.Now()
	return n
}

// named returns the node whose address is to, in the form in which the node at the address from has sent it (see
// absolute). It returns nil if to is not a valid address.
func (c *Cluster) named(to, from string) *clusterNode {
	addr, ok := absolute(to, from)
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil
	}
	return c.node(addr)
}

// absolute returns the complete form of the address to, which the node at the address from has sent. If to has no host,
// the host is the same as in from.
func absolute(to, from string) (addr string, ok bool) {
	i := strings.LastIndexByte(to, ':')
	if i < 0 || !link.IsPort(to[i+1:]) {
		return "", false
	}
	host, port := strings.Trim(to[:i], "[]"), to[i+1:]
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(from)
	}
	addr = net.JoinHostPort(host, port)
	if host, _, err := net.SplitHostPort(addr); err != nil || host == "" {
		return "", false
	}
	return addr, true
}

// moved records that the node at from has redirected a key to the node at to, since the key's slot has moved there. It
// requests a refresh of the whole table.
func (c *Cluster) moved(key []byte, to, from string) {
	if n := c.named(to, from); n != nil {
		c.slots[slotOf(key)].Store(n)
	}
	c.trouble()
}

// trouble requests a refresh of the table of slots.
func (c *Cluster) trouble() { kick(c.kick) }

// kick sends a value to a channel that has room for one, unless one is already waiting.
func kick(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default: // a value is already waiting
	}
}

// watch refreshes the table of slots until the store is closed.
func (c *Cluster) watch() {
	refreshing(c.ctx, c.kick, func() (soon bool) {
		err := c.refresh(c.ctx)
		if err == nil {
			c.retire()
		}
		return err != nil || c.Open()
	})
}

// refreshing calls refresh repeatedly until ctx ends: whenever kick has a value, and otherwise after refreshEvery, or
// after refreshSoon if the last call returned true.
func refreshing(ctx context.Context, kick <-chan struct{}, refresh func() (soon bool)) {
	timer := time.NewTimer(refreshEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-kick:
		case <-timer.C:
		}
		next := refreshEvery
		if refresh() {
			next = refreshSoon
		}
		timer.Reset(next)
		select { // a short pause, so that many kicks cause one refresh
		case <-ctx.Done():
			return
		case <-time.After(refreshSoon):
		}
	}
}

// retire closes nodes that have had no slot for the time unwanted. They have left the cluster or have become replicas.
func (c *Cluster) retire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, n := range c.nodes {
		if time.Since(n.wanted) > unwanted {
			delete(c.nodes, addr)
			c.wg.Go(n.server.Close)
		}
	}
}

// Add implements Store.
func (c *Cluster) Add(ctx context.Context, req *counter.Request) error {
	switch {
	case len(req.Hits) == 0:
		return nil
	case req.Stop == counter.StopAll:
		return c.addStop(ctx, req)
	}
	return c.addHits(ctx, req)
}

// Peek implements Store.
func (c *Cluster) Peek(ctx context.Context, h *counter.Hit) error { return counter.Peek(ctx, c, h) }

// Reset implements Store.
func (c *Cluster) Reset(ctx context.Context, h *counter.Hit) error { return reset(ctx, c, h) }

// Close implements Store.
func (c *Cluster) Close() {
	c.stop()
	link.Wait(&c.wg)
	c.mu.Lock()
	defer c.mu.Unlock()
	for addr, n := range c.nodes {
		c.wg.Go(n.server.Close)
		delete(c.nodes, addr)
	}
	link.Wait(&c.wg)
}

// Open reports whether the breaker of any node is open.
func (c *Cluster) Open() bool { return c.any((*Server).Open) }

// Flapping reports whether the breaker of any node is flapping; see Server.Flapping.
func (c *Cluster) Flapping() bool { return c.any((*Server).Flapping) }

func (c *Cluster) any(is func(*Server) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if is(n.server) {
			return true
		}
	}
	return false
}

// sole returns the node that has all keys of a request. It returns nil if the keys are on several nodes, or if a key's
// slot has no node.
func (c *Cluster) sole(req *counter.Request) *clusterNode {
	n := c.slots[slotOf(req.Hits[0].Key)].Load()
	for i := range req.Hits[1:] {
		if c.slots[slotOf(req.Hits[1+i].Key)].Load() != n {
			return nil
		}
	}
	return n
}

// addHits carries out each hit of a request on the node that has its key.
func (c *Cluster) addHits(ctx context.Context, req *counter.Request) error {
	n := c.sole(req)
	if n == nil {
		return c.addSpread(ctx, req)
	}
	undone, err := n.add(ctx, req)
	switch {
	case err == link.ErrClosed: // the node was closed a moment ago
		return c.addSpread(ctx, req)
	case undone == nil:
		return err
	}
	return c.addElsewhere(ctx, req, n, undone)
}

// addElsewhere carries out the hits of a request that node n has not executed, on the nodes that can execute them.
func (c *Cluster) addElsewhere(ctx context.Context, req *counter.Request, n *clusterNode, undone *call) error {
	for i := range req.Hits {
		req.Hits[i].Err = nil
	}
	var left remainder
	var out counter.Outcome
	left.take(undone, req, nil, n.addr)
	n.server.recycle(undone)
	c.addLater(ctx, req, &left, &out)
	return out.Of(req)
}

// add sends a request to one node, and returns as Server.finish does.
func (n *clusterNode) add(ctx context.Context, req *counter.Request) (undone *call, err error) {
	call, err := n.server.begin(ctx, req, nil)
	if err != nil {
		return nil, err
	}
	return n.server.finish(ctx, call, req)
}

// addStop carries out a request under StopAll. If one node has all counters, one script decides. Otherwise
// counter.AddAcrossNodes reads all counters before it changes any.
func (c *Cluster) addStop(ctx context.Context, req *counter.Request) error {
	for tries := 0; ; tries++ {
		n := c.sole(req)
		if n == nil || tries > maxRedirects {
			break
		}
		undone, err := n.add(ctx, req)
		if undone == nil && err != link.ErrClosed {
			return err
		}
		is := notNow
		if undone != nil {
			is = *undone.hits[0].notExecuted // the same for all hits, which are in one script
			n.server.recycle(undone)
		}
		if is.reason == retryMoved {
			c.moved(req.Hits[0].Key, is.to, n.addr)
			continue
		}
		if is.reason == retryAsk || is.reason == retryApart {
			break
		}
		if err := pause(ctx, tries); err != nil {
			return err
		}
	}
	return counter.AddAcrossNodes(ctx, req, c.addHits)
}

// maxRedirects is how many times the hits of a request follow redirections at once; from then on, the caller pauses
// before each further try.
const maxRedirects = 4

// addLater carries out the hits in left, which were redirected or not executed at first. Hits that no node has executed
// before the caller's deadline or the store's time-out fail.
func (c *Cluster) addLater(ctx context.Context, req *counter.Request, left *remainder, out *counter.Outcome) {
	ctx, cancel := context.WithTimeout(ctx, c.o.Settings.Timeout)
	defer cancel()
	s := c.splits.Get().(*split)
	defer c.splits.Put(s)
	for n := 0; len(left.at) > 0; n++ {
		if left.reason > retryAsk || n >= maxRedirects {
			c.trouble()
			if err := pause(ctx, n); err != nil {
				for _, at := range left.at {
					out.Fail(&req.Hits[at], err)
				}
				return
			}
		}
		s.reset()
		less := new(remainder)
		for i := range left.req.Hits {
			h := &left.req.Hits[i]
			if to := c.next(h, left.to[i], left.from[i], left.asking[i]); to != nil {
				s.add(to, &left.req, h, left.at[i], left.asking[i])
			} else {
				less.add(&left.req, h, left.at[i], retryLater)
			}
		}
		c.carry(ctx, s, req, less, out)
		left = less
	}
}

// next returns the node to which a hit is to be sent again, or nil if no node serves its slot. to, from and asking are
// as in remainder.
func (c *Cluster) next(h *counter.Hit, to, from string, asking bool) *clusterNode {
	if asking {
		return c.named(to, from)
	}
	if to != "" {
		c.moved(h.Key, to, from)
	}
	return c.slots[slotOf(h.Key)].Load()
}

var errNoNode = errors.New("no node of the cluster answers")

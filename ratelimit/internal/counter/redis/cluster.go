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
	// refreshEvery is how often a node is queried for the slot table.
	refreshEvery = 5 * time.Second
	// refreshSoon is how often nodes are queried while a node is lost, and at most.
	refreshSoon = 100 * time.Millisecond
	// unwanted is how long a node may have no slots before it is given up.
	unwanted = 30 * time.Second
)

// Cluster counts in a Redis Cluster. Each master is a Server of its own, with its own queue, connections and breaker,
// and a table has the master of each slot.
//
// A request's hits are grouped by node, with one call of a Server for each node. So hits of different requests share
// the pipelines of their node, and a dead node delays only its own keys. rueidis' own client for clusters sends a batch
// for several nodes as one, follows redirections inside, and cannot drop a connection: the slowest node would delay
// all, and a breaker would have nothing to watch.
type Cluster struct {
	*link.PoolStats
	o     Options
	t     target // credentials and seeds
	width int    // nodes that one request uses at a time

	slots  [slots]atomic.Pointer[clusterNode] // nil: no node serves it
	splits sync.Pool                          // *split

	mu    sync.Mutex
	nodes map[string]*clusterNode // by address
	peers []string                // all addresses that the cluster or the settings named
	turn  int                     // index of the peer to query next
	down  bool                    // no node of the last query found the cluster healthy

	kick chan struct{} // requests a refresh
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// clusterNode is one master.
type clusterNode struct {
	server  *Server
	cluster *Cluster
	addr    string
	wanted  time.Time // when the node last had slots, or was named; guarded by Cluster.mu
}

// NewCluster returns when a node has sent the table of slots. See NewServer.
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

// node returns the node at an address, and makes it when the address is new. c.mu is held.
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

// named returns the node at an address that the node at from has named.
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

// absolute completes the address to, as the node at from names it. Without a host, to has the host of from.
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

// moved records that a slot has moved to another node, and requests a refresh of the whole table.
func (c *Cluster) moved(key []byte, to, from string) {
	if n := c.named(to, from); n != nil {
		c.slots[slotOf(key)].Store(n)
	}
	c.trouble()
}

// trouble requests a refresh.
func (c *Cluster) trouble() { kick(c.kick) }

// kick sends to a channel that has room for one value.
func kick(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default: // a value is already waiting
	}
}

// watch keeps the table of slots fresh.
func (c *Cluster) watch() {
	refreshing(c.ctx, c.kick, func() (soon bool) {
		err := c.refresh(c.ctx)
		if err == nil {
			c.retire()
		}
		return err != nil || c.Open()
	})
}

// refreshing calls refresh every refreshEvery, whenever kick has a value, and soon again after a refresh that returns
// true, until ctx ends.
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
		select { // many kicks at once cause one refresh
		case <-ctx.Done():
			return
		case <-time.After(refreshSoon):
		}
	}
}

// retire gives up nodes that have had no slot for a while: they have left the cluster, or have become replicas.
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

// Flapping reports whether the breaker of any node flaps, as Server.Flapping does.
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

// sole returns the node that has all keys of a request; nil if several nodes or no node have them.
func (c *Cluster) sole(req *counter.Request) *clusterNode {
	n := c.slots[slotOf(req.Hits[0].Key)].Load()
	for i := range req.Hits[1:] {
		if c.slots[slotOf(req.Hits[1+i].Key)].Load() != n {
			return nil
		}
	}
	return n
}

// addHits carries out the hits of a request on the nodes that have their keys.
func (c *Cluster) addHits(ctx context.Context, req *counter.Request) error {
	n := c.sole(req)
	if n == nil {
		return c.addSpread(ctx, req)
	}
	undone, err := n.add(ctx, req)
	switch {
	case err == link.ErrClosed: // the node was just given up
		return c.addSpread(ctx, req)
	case undone == nil:
		return err
	}
	return c.addElsewhere(ctx, req, n, undone)
}

// addElsewhere carries out the hits that node n could not, on the nodes that can.
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

// add sends one request to one node; see finish.
func (n *clusterNode) add(ctx context.Context, req *counter.Request) (undone *call, err error) {
	call, err := n.server.begin(ctx, req, nil)
	if err != nil {
		return nil, err
	}
	return n.server.finish(ctx, call, req)
}

// addStop lets one script decide where one node has all counters. Otherwise it reads the counters before it writes
// them.
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
			is = *undone.hits[0].notExecuted // the same for all hits, since one script carries them
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

// maxRedirects is how many redirections in a row are followed without a pause.
const maxRedirects = 4

// addLater carries out the hits that were redirected or not executed at first.
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

// next returns the node to send a redirected hit to; nil if no node serves its slot.
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

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
	// refreshSoon is how often while a node is lost, and at most.
	refreshSoon = 100 * time.Millisecond
	// unwanted nodes, without slots for this long, are given up.
	unwanted = 30 * time.Second
)

// Cluster counts in a Redis Cluster: each master is a Server of its own, with its own queue,
// connections and breaker, and a table says which slot is whose.
//
// A request's hits are grouped by node, one call of a Server each, so that hits of different requests
// meet in one pipeline for each node and a dead node holds up its own keys only. rueidis' own client
// for clusters sends a batch for several nodes as one, follows redirections inside, and cannot drop
// a connection: the slowest node would hold up all, and there would be nothing for a breaker to watch.
type Cluster struct {
	*link.PoolStats
	o     Options
	t     target // whose credentials and seeds
	width int    // nodes that one request uses at a time

	slots  [slots]atomic.Pointer[clusterNode] // nil: no node serves it
	splits sync.Pool                          // *split

	mu    sync.Mutex
	nodes map[string]*clusterNode // by address
	peers []string                // all addresses that the cluster named, and those of the settings
	turn  int                     // the peer to query next
	down  bool                    // no queried node found the cluster healthy the last time

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
	wanted  time.Time // when it last had slots, or was named; guarded by Cluster.mu
}

// NewCluster returns when a node has said which slots are where. See NewServer.
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

// node is the store at an address, made when it is first named. c.mu is held.
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

// named is the node that another one has named; from is that other's address.
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

// absolute is the address of a node as another one gives it. No host is the other's own.
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

// kick wakes whoever waits for the channel, which has room for one.
func kick(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default: // it is to wake already
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

// refreshing calls refresh every refreshEvery, when it is kicked, and soon again where that says so, until ctx ends.
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

// retire gives up nodes that have had no slot for a while: they have left the cluster, or are replicas now.
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
func (c *Cluster) Peek(ctx context.Context, h *counter.Hit) error { return peek(ctx, c, h) }

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

// Flapping is as Server's, of any node.
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

// sole is the node that has all keys of a request; nil: there are several, or none.
func (c *Cluster) sole(req *counter.Request) *clusterNode {
	n := c.slots[slotOf(req.Hits[0].Key)].Load()
	for i := range req.Hits[1:] {
		if c.slots[slotOf(req.Hits[1+i].Key)].Load() != n {
			return nil
		}
	}
	return n
}

// addHits carries out the hits of a request, whatever nodes they belong to.
func (c *Cluster) addHits(ctx context.Context, req *counter.Request) error {
	n := c.sole(req)
	if n == nil {
		return c.addSpread(ctx, req)
	}
	undone, err := n.add(ctx, req)
	switch {
	case err == link.ErrClosed: // the node has just been given up
		return c.addSpread(ctx, req)
	case undone == nil:
		return err
	}
	return c.addElsewhere(ctx, req, n, undone)
}

// addElsewhere carries out what a node could not, where it can be.
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

// addWhole is addHits, and fails as a whole.
func (c *Cluster) addWhole(ctx context.Context, req *counter.Request) error {
	return counter.Whole(req, c.addHits(ctx, req))
}

// add is one request to one node; see finish.
func (n *clusterNode) add(ctx context.Context, req *counter.Request) (undone *call, err error) {
	call, err := n.server.begin(ctx, req, nil)
	if err != nil {
		return nil, err
	}
	return n.server.finish(ctx, call, req)
}

// addStop lets one script decide where one node has all counters, and else reads before it writes.
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
			is = *undone.hits[0].notExecuted // of all, for one script carries them
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
	return counter.AddAcrossNodes(ctx, req, c.addWhole)
}

// maxRedirects is how many redirections in a row are followed without a pause.
const maxRedirects = 4

// addLater carries out the hits that were redirected or not executed the first time.
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
		s.reset(&left.req)
		less := new(remainder)
		for i := range left.req.Hits {
			h := &left.req.Hits[i]
			if to := c.next(h, left.to[i], left.from[i], left.asking[i]); to != nil {
				s.add(to, h, left.at[i], left.asking[i])
			} else {
				less.later(&left.req, h, left.at[i])
			}
		}
		c.carry(ctx, s, req, less, out)
		left = less
	}
}

// next is the node to send a redirected hit to; nil: no node serves its slot.
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

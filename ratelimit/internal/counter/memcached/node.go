package memcached

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// node is one memcached server with its connections, queues and local counts. The store's mutex guards the fields,
// unless their comments say otherwise.
type node struct {
	store   *Store
	addr    link.Endpoint // a host name is looked up for each dial, so that it may move to another address
	breaker link.Breaker

	link  *connection    // the connection for increments; nil: none; used only by the writer
	quiet *time.Timer    // closes the writer's connection after writerIdle
	batch []pendingIncr  // the changes being sent; used only by the writer
	open  []*pendingIncr // the changes without a reply; used only by the writer

	counts  map[string]*localCount
	lookups []*lookup // in the queue, not sent yet
	workers int
	out     map[*lookup]struct{} // lookups that were sent and have no answer
	due     []*localCount        // local counts with pending hits, oldest first
	writing bool                 // a writer goroutine is running
	gone    bool                 // no longer on the store's list of nodes
	retired bool                 // no longer on the list, and with nothing left to write

	connsMu sync.Mutex
	conns   map[*nodeConn]struct{}
	idle    []*connection // idle connections for lookups; the one used last is at the end
}

func (s *Store) newNode(addr string) *node {
	n := &node{
		store: s, addr: link.Endpoint{Network: "tcp", Addr: addr}, breaker: link.Breaker{Stall: s.o.Stall},
		counts: map[string]*localCount{}, out: map[*lookup]struct{}{}, conns: map[*nodeConn]struct{}{},
	}
	if strings.Contains(addr, "/") {
		n.addr.Network = "unix"
	}
	n.quiet = time.AfterFunc(writerIdle, n.hangUpIdle)
	return n
}

// rest closes all idle connections of a node; if the node is used again, it opens new ones. The store's mutex is held,
// and no write is in progress, but the timer n.quiet may be closing the writer's connection at the same time.
func (n *node) rest() {
	n.quiet.Stop()
	n.closeIdle()
	n.hangUp()
}

// count returns the local count of a key, and creates it if there is none.
func (n *node) count(key string) *localCount {
	t := n.counts[key]
	if t == nil {
		t = &localCount{node: n, key: key}
		n.counts[key] = t
	}
	return t
}

// drop forgets a local count, unless it is still needed.
func (n *node) drop(t *localCount) {
	if t.idle() {
		delete(n.counts, t.key)
	}
}

// failed records a failure of the node's connection. If the breaker opens because of it, the node is lost.
func (n *node) failed(err error) {
	if n.store.ctx.Err() != nil {
		return // the store was closed
	}
	if n.breaker.Failed(time.Since(n.store.begun)) {
		n.lost(fmt.Sprintf("%d failures in a row, the last: %v", link.BreakerFailures, err))
	}
}

// stalled records that a lookup has had no answer for STORE_STALL. If the breaker opens because of it, the node is
// lost.
func (n *node) stalled() {
	if n.breaker.Aged(n.store.o.Stall, time.Since(n.store.begun)) {
		n.lost("a look-up has been out for " + n.store.o.Stall.String())
	}
}

// lost is called when the node's breaker has opened. It answers all callers that wait for the node, closes the
// connections, and starts to probe the node.
func (n *node) lost(why string) {
	s := n.store
	s.o.Log.Error("a memcached node is lost; the failure mode answers for its keys until it is back", "node",
		n.addr.Addr, "why", why)
	if n.breaker.Warns(time.Since(n.store.begun)) {
		s.o.Log.Warn("a memcached node is lost and found over and over", "node", n.addr.Addr,
			"openings within a minute, more than", link.Flaps)
	}
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
	n.closeIdle() // the idle connections are broken too
	n.hangUpIdle()
}

// probe checks a lost node every link.ProbeEvery, until the node answers again or is no longer used.
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
		if n.withConn((*connection).version) != nil {
			continue
		}
		n.breaker.Probed(true)
		s.o.Log.Warn("a memcached node answers again", "node", n.addr.Addr)
		s.mu.Lock()
		n.startWriter()
		s.mu.Unlock()
		return
	}
}

// Reset implements Store. The counter is deleted only after its pending hits have been written, so that no earlier hit
// creates it again. Hits that are pending in other processes may do so.
func (s *Store) Reset(ctx context.Context, h *counter.Hit) error {
	key, err := storedKey(h.Key, s.o.HashKeys)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	if err := s.queueReset(key, done); err != nil {
		return err
	}
	outcome, err := link.Await(ctx, done, s.o.Settings.Timeout)
	return cmp.Or(err, outcome)
}

func (s *Store) queueReset(key string, done chan<- error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return link.ErrClosed
	}
	n := s.ring.Load().pick(key)
	if n.breaker.IsOpen() {
		return counter.ErrOpen
	}
	t := n.count(key)
	t.resets = append(t.resets, done)
	if !t.queued {
		s.waiting++
		n.queue(t)
	}
	return nil
}

// localCount is what this process knows about a counter beyond the total in the node: the hits that it has counted but
// that the node may not show yet.
//
// Hits are written to the node only in the background, after they were answered. Without a localCount, later requests
// would not see these hits, and many concurrent requests could exceed a limit. So totals are exact within one process;
// hits of other processes are seen late, by about one round trip.
//
// A localCount exists while a call uses the counter or a change of it is pending. The store's mutex guards all fields.
type localCount struct {
	node *node
	key  string
	pins int // how many calls use the counter

	// base is the least that the node's total is known to be, without the changes in the fields sent and pending.
	base int64
	// sent is the change that was sent to the node but not confirmed; the totals that the node reports may or may not
	// include it. pending is the change that was not sent yet. A negative change is a refund.
	sent, pending int64
	// shrunk counts the events that have lowered the node's total: refunds and resets. A total that was looked up
	// before such an event says nothing about the present one.
	shrunk uint32
	// ends is when the counter is to expire if the pending change creates it, in Unix seconds.
	ends int64

	queued bool // in node.due, the queue of counters to be written
	// resets has the calls of Reset that wait until the counter is deleted. It is deleted after the pending change was
	// written.
	resets []chan<- error
}

// learn takes over the total that a lookup has found. shrunk is the value of t.shrunk when the lookup was sent.
func (t *localCount) learn(seen int64, shrunk uint32) {
	if shrunk != t.shrunk {
		return
	}
	// The total may include the change that was sent but not confirmed, or a part of it.
	t.base = max(t.base, seen-max(0, t.sent))
}

// total returns the counter's total as far as this process knows it, including the changes that are not written yet.
func (t *localCount) total() int64 {
	return shifted(shifted(t.base, t.sent), t.pending)
}

// shifted returns total + by, but at least 0 and at most 2^63-1.
func shifted(total, by int64) int64 {
	if by > 0 {
		return counter.Saturate(total, by)
	}
	return max(0, total+by)
}

// arrived records that the node has carried out the change that was sent. total is the node's total after it.
func (t *localCount) arrived(total int64) {
	if t.sent < 0 {
		t.shrunk++
	}
	t.base, t.sent = total, 0
}

// idle reports whether the local count is no longer needed.
func (t *localCount) idle() bool { return t.pins == 0 && t.sent == 0 && t.pending == 0 && !t.queued }

// deleted records that the node has deleted the counter, after which totals of earlier lookups are not valid any
// longer.
func (t *localCount) deleted() {
	t.shrunk++
	t.base, t.sent = 0, 0
}

// hitsOf returns how many hits there are in a change, which is negative for a refund.
func hitsOf(change int64) uint64 {
	if change == math.MinInt64 {
		return 1 << 63
	}
	return uint64(max(change, -change))
}

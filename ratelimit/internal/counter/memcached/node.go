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

// node is one memcached server. The store's mutex guards the fields unless their comments say otherwise.
type node struct {
	store   *Store
	addr    link.Endpoint // dialled by name, so that a name may move
	breaker link.Breaker

	link  *connection    // for increments; used by the writer only; nil: none
	quiet *time.Timer    // closes the idle connection
	batch []pendingIncr  // used by the writer only: the changes being sent
	open  []*pendingIncr // used by the writer only: changes without a reply

	counts  map[string]*localCount
	lookups []*lookup // waiting
	workers int
	out     map[*lookup]struct{} // sent lookups without an answer
	due     []*localCount        // with pending hits, oldest first
	writing bool                 // a writer goroutine is running
	gone    bool                 // no longer on the list
	retired bool                 // no longer on the list, and nothing is pending

	connsMu sync.Mutex
	conns   map[*nodeConn]struct{}
	idle    []*connection // for lookups, in the order of their last use
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

// rest closes all idle connections; if the node is not used afterwards, for good. The store's mutex is held and no
// write is in progress, but a timer may be about to close the writer's connection, too.
func (n *node) rest() {
	n.quiet.Stop()
	n.closeIdle()
	n.hangUp()
}

// count returns the key's local count, and makes it if there is none.
func (n *node) count(key string) *localCount {
	t := n.counts[key]
	if t == nil {
		t = &localCount{node: n, key: key}
		n.counts[key] = t
	}
	return t
}

// drop forgets a local count that is no longer needed.
func (n *node) drop(t *localCount) {
	if t.idle() {
		delete(n.counts, t.key)
	}
}

// failed notes a failure of the node.
func (n *node) failed(err error) {
	if n.store.ctx.Err() != nil {
		return // the store was closed
	}
	if n.breaker.Failed(time.Since(n.store.begun)) {
		n.lost(fmt.Sprintf("%d failures in a row, the last: %v", link.BreakerFailures, err))
	}
}

// stalled notes that a lookup has had no answer for STORE_STALL.
func (n *node) stalled() {
	if n.breaker.Aged(n.store.o.Stall, time.Since(n.store.begun)) {
		n.lost("a look-up has been out for " + n.store.o.Stall.String())
	}
}

// lost answers all callers that wait for the node, since its breaker has opened, and starts probing it.
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
	n.closeIdle() // idle connections are broken too
	n.hangUpIdle()
}

// probe queries a lost node until it answers again or is no longer used.
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

// Reset implements Store. The counter is deleted after its pending change is written, so that no earlier hit makes it
// again. Other processes may write their pending changes afterwards.
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

// localCount is what this process knows of a counter and its node may not show yet.
//
// memcached is read first and written afterwards, in the background. Without adding the hits here, hits on their way
// would be invisible, and many concurrent hits could exceed a limit. So within one process the totals are exact; only
// between processes are hits seen late, by about one round trip.
//
// A localCount lives while a call uses the counter or a change is pending. The store guards all fields.
type localCount struct {
	node *node
	key  string
	pins int // calls that use the counter

	// base is the least that the counter is known to be, without sent and pending.
	base int64
	// sent is a change on its way, which the node's answers may or may not include; pending is a change that waits.
	// Negative changes are refunds.
	sent, pending int64
	// shrunk counts refunds that have arrived: a total from a lookup before the refund is not comparable.
	shrunk uint32
	// ends is when a counter made by the pending change expires, in Unix seconds.
	ends int64

	queued bool // in the node's queue
	// resets wait until the counter is deleted, which happens after the pending change is written.
	resets []chan<- error
}

// learn takes in the total from a lookup. shrunk is the local count's value when the lookup was sent.
func (t *localCount) learn(seen int64, shrunk uint32) {
	if shrunk != t.shrunk {
		return
	}
	// The total may include part of the change on its way.
	t.base = max(t.base, seen-max(0, t.sent))
}

// total returns the counter's total as far as it is known.
func (t *localCount) total() int64 {
	return shifted(shifted(t.base, t.sent), t.pending)
}

// shifted returns total + by, at least 0 and at most 2^63-1.
func shifted(total, by int64) int64 {
	if by > 0 {
		return counter.Saturate(total, by)
	}
	return max(0, total+by)
}

// arrived notes that the node has applied the sent change, and that its total is now total.
func (t *localCount) arrived(total int64) {
	if t.sent < 0 {
		t.shrunk++
	}
	t.base, t.sent = total, 0
}

// idle reports whether the local count is no longer needed.
func (t *localCount) idle() bool { return t.pins == 0 && t.sent == 0 && t.pending == 0 && !t.queued }

// deleted notes that the counter was deleted: totals from earlier lookups are not valid any longer.
func (t *localCount) deleted() {
	t.shrunk++
	t.base, t.sent = 0, 0
}

// hitsOf returns how many hits a change of the counter represents.
func hitsOf(change int64) uint64 {
	if change == math.MinInt64 {
		return 1 << 63
	}
	return uint64(max(change, -change))
}

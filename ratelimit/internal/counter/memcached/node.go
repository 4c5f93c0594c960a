package memcached

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// node is one memcached server. Fields are guarded by the store's mutex unless they say otherwise.
type node struct {
	store   *Store
	addr    link.Endpoint // dialled by name, so that a name may move
	breaker link.Breaker

	link  *connection    // for increments, while there is one; the writer's own
	quiet *time.Timer    // closes it
	batch []pendingIncr  // the writer's own: what is under way
	open  []*pendingIncr // likewise, those not done

	counts  map[string]*localCount
	lookups []*lookup // waiting
	workers int
	out     map[*lookup]struct{} // under way
	due     []*localCount        // with pending hits, oldest first
	writing bool                 // a goroutine is
	gone    bool                 // no longer on the list
	retired bool                 // nor in use any more

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

// rest closes all idle connections, for good if the node is not used afterwards. No write is under way, and the store's
// mutex is held: a timer may be about to hang up, too.
func (n *node) rest() {
	n.quiet.Stop()
	n.closeIdle()
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

// drop forgets a local count that is no longer needed.
func (n *node) drop(t *localCount) {
	if t.idle() {
		delete(n.counts, t.key)
	}
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
	n.closeIdle() // those that rest are broken too
	n.hangUpIdle()
}

// probe queries a lost node until it is back or is no longer used.
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

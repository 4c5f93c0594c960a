package counter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const (
	// maxLookKeys bounds one look-up.
	maxLookKeys = 256
	// maxTellers is how many increments are on their way to a node at once: the protocol has one answer
	// for each, and the client waits for it.
	maxTellers = 16
	// tellerIdle is how long their connections stay open when nothing is to be told.
	tellerIdle = 10 * time.Second
)

// node is one memcached server. Fields are guarded by the store's mutex unless they say otherwise.
type node struct {
	store   *Memcache
	addr    nodeAddr
	breaker breaker

	// The client's cap of idle connections is per address. Look-ups have one client, with the operator's
	// number, increments another, whose connections close after a while: else either would open and
	// close one for most operations.
	looker, teller *memcache.Client
	quiet          *time.Timer // closes the teller's connections

	tallies map[string]*tally
	looks   []*look // waiting
	lookers int
	out     map[*look]struct{} // asked for now
	due     []*tally           // with something owed, in order
	tellers int
	gone    bool // no longer on the list
	retired bool // nor of use to anybody

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

func (s *Memcache) newNode(addr string) *node {
	n := &node{
		store: s, addr: nodeAddr{"tcp", addr}, breaker: breaker{stall: s.o.Stall},
		tallies: map[string]*tally{}, out: map[*look]struct{}{}, conns: map[*nodeConn]struct{}{},
	}
	if strings.Contains(addr, "/") {
		n.addr.network = "unix"
	}
	n.looker, n.teller = n.client(s.o.MaxIdleConns), n.client(maxTellers)
	n.quiet = time.AfterFunc(tellerIdle, func() { n.teller.Close() })
	return n
}

func (n *node) client(idle int) *memcache.Client {
	c := memcache.NewFromSelector(oneNode{n.addr})
	c.Timeout, c.MaxIdleConns, c.DialContext = n.store.o.Timeout, idle, n.dial
	return c
}

// dial opens a connection, and breaks off when the store closes.
func (n *node) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.store.ctx, cancel)()
	conn, err := n.store.dialer.dial(ctx, endpoint{network, addr})
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

// rest closes the connections that nobody uses; for good, if nobody uses the node afterwards.
func (n *node) rest() {
	n.quiet.Stop()
	n.looker.Close() // an error is that of a connection already broken
	n.teller.Close()
}

// tally is the counter's, made if need be.
func (n *node) tally(key string) *tally {
	t := n.tallies[key]
	if t == nil {
		t = &tally{node: n, key: key}
		n.tallies[key] = t
	}
	return t
}

// drop forgets a tally that nobody needs.
func (n *node) drop(t *tally) {
	if t.idle() {
		delete(n.tallies, t.key)
	}
}

// look is what one call wants to know of one node.
type look struct {
	asking  *asking
	node    *node
	tallies []*tally // each once
	shrunk  []uint32 // theirs when the look was sent
	seen    []int64  // the answers; -1: no number
	done    bool
	err     error
}

// add pins a counter that the call asks for.
func (l *look) add(t *tally) {
	for _, have := range l.tallies {
		if have == t {
			return
		}
	}
	t.pins++
	l.tallies = append(l.tallies, t)
}

// release lets go of the counters.
func (l *look) release() {
	for _, t := range l.tallies {
		t.pins--
		l.node.drop(t)
	}
}

// finish notes the outcome and wakes the caller when it was the last.
func (l *look) finish(err error) {
	if l.done {
		return
	}
	l.done, l.err = true, err
	delete(l.node.out, l)
	a := l.asking
	if a.open--; a.left {
		l.release()
	} else if a.open == 0 {
		a.ready <- struct{}{}
	}
}

// enqueue puts a look into the queue and sees to it that somebody takes it.
func (n *node) enqueue(l *look) {
	n.looks = append(n.looks, l)
	if n.lookers < n.store.o.MaxIdleConns {
		n.lookers++
		n.store.wg.Go(n.lookOut)
	}
}

// forget takes a look whose caller has gone out of the queue; one that is under way ends by itself.
func (n *node) forget(l *look) {
	for i, have := range n.looks {
		if have == l {
			n.looks = append(n.looks[:i], n.looks[i+1:]...)
			l.finish(ErrTimeout)
			return
		}
	}
}

// lookOut asks for what waits until nothing does.
func (n *node) lookOut() {
	s := n.store
	var batch []*look
	var keys []string
	for {
		// Whoever is ready to run goes first, so that their looks come along; as lane.take.
		runtime.Gosched()
		runtime.Gosched()
		s.mu.Lock()
		if batch, keys = n.takeLooks(batch[:0], keys[:0]); len(batch) == 0 {
			n.lookers--
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()

		var stall *time.Timer
		if s.o.Stall > 0 {
			stall = time.AfterFunc(s.o.Stall, n.stalled)
		}
		items, err := n.get(keys)
		if stall != nil {
			stall.Stop()
		}
		if err == nil {
			n.breaker.answered()
		} else {
			n.failed(err)
			err = linkError(err)
		}
		s.mu.Lock()
		for _, l := range batch {
			if err == nil {
				l.read(items)
			}
			l.finish(err)
		}
		s.mu.Unlock()
		clear(batch)
	}
}

// takeLooks moves looks from the queue into a batch, with the keys to ask for.
func (n *node) takeLooks(batch []*look, keys []string) ([]*look, []string) {
	taken := 0
	for _, l := range n.looks {
		if taken > 0 && len(keys)+len(l.tallies) > maxLookKeys {
			break
		}
		taken++
		for _, t := range l.tallies {
			l.shrunk = append(l.shrunk, t.shrunk)
			keys = append(keys, t.key)
		}
		n.out[l] = struct{}{}
		batch = append(batch, l)
	}
	rest := copy(n.looks, n.looks[taken:])
	clear(n.looks[rest:])
	n.looks = n.looks[:rest]
	return batch, unique(keys)
}

// unique drops keys that stand there twice: many calls ask for a hot one.
func unique(keys []string) []string {
	if len(keys) < 2 {
		return keys
	}
	seen := make(map[string]struct{}, len(keys))
	kept := keys[:0]
	for _, k := range keys {
		if _, twice := seen[k]; !twice {
			seen[k] = struct{}{}
			kept = append(kept, k)
		}
	}
	return kept
}

// read takes the answers out of a look-up.
func (l *look) read(items map[string]*memcache.Item) {
	if l.done {
		return
	}
	for _, t := range l.tallies {
		seen := int64(0)
		if item := items[t.key]; item != nil {
			var err error
			if seen, err = memcacheTotal(item.Value); err != nil {
				seen = -1
			}
		}
		l.seen = append(l.seen, seen)
	}
}

func (n *node) get(keys []string) (items map[string]*memcache.Item, err error) {
	st := &n.store.stats
	st.KeysRequested.Add(uint64(len(keys)))
	err = again(n.looker, func() error {
		items, err = n.looker.GetMulti(keys)
		return err
	})
	if err != nil {
		st.Multiget.Error.Add(1)
		return nil, err
	}
	st.Multiget.Success.Add(1)
	st.KeysFound.Add(uint64(len(items)))
	return items, nil
}

// again repeats an operation once when its connection turns out to have been closed by the other side
// while it rested. A node that closes them has lost its counters, or has closed this one for being idle.
func again(c *memcache.Client, f func() error) error {
	err := f()
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		c.Close() // the others are as old
		err = f()
	}
	return err
}

// queue puts a counter with something owed into the queue and sees to it that somebody tells.
func (n *node) queue(t *tally) {
	t.queued = true
	n.due = append(n.due, t)
	n.tellAll()
}

// tellAll starts a teller if one more is of use.
func (n *node) tellAll() {
	if n.tellers < maxTellers && n.tellers < len(n.due) && !n.breaker.open.Load() && n.store.ctx.Err() == nil {
		n.tellers++
		n.store.wg.Go(n.tell)
	}
}

// tell tells the node of what is owed until nothing is.
func (n *node) tell() {
	s := n.store
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { n.tellers-- }()
	for {
		t := n.nextDue()
		if t == nil {
			n.quiet.Reset(tellerIdle)
			return
		}
		change, ends := t.sent, t.ends
		s.mu.Unlock()
		total, err := n.count(t.key, change, ends)
		if err != nil && nodeFault(err) {
			n.failed(err)
		}
		s.mu.Lock()
		if err == nil {
			t.arrived(total)
		} else {
			s.dropped += size(change)
			t.sent = 0
		}
		n.drop(t)
	}
}

// nextDue takes the next counter out of the queue, with what it is owed as sent; nil: none, or no use.
func (n *node) nextDue() *tally {
	if n.breaker.open.Load() || n.store.ctx.Err() != nil {
		return nil
	}
	for i, t := range n.due {
		if t.sent != 0 {
			continue // somebody is telling of it: one after the other, or an answer could not be understood
		}
		copy(n.due[1:i+1], n.due[:i])
		n.due[0], n.due = nil, n.due[1:]
		n.store.waiting--
		t.queued = false
		if t.sent, t.owed = t.owed, 0; t.sent == 0 {
			n.drop(t)
			return n.nextDue() // hits and refunds have cancelled out
		}
		return t
	}
	return nil
}

// count adds the change to a counter and returns its total.
func (n *node) count(key string, change, ends int64) (total int64, err error) {
	st := &n.store.stats
	for range 3 {
		var after uint64
		err = again(n.teller, func() error {
			if change < 0 {
				after, err = n.teller.Decrement(key, size(change))
			} else {
				after, err = n.teller.Increment(key, uint64(change))
			}
			return err
		})
		switch {
		case err == nil:
			st.Increment.Success.Add(1)
			return int64(min(after, math.MaxInt64)), nil
		case !errors.Is(err, memcache.ErrCacheMiss):
			st.Increment.Error.Add(1)
			return 0, err
		}
		st.Increment.Miss.Add(1)
		expiry, alive := memcacheExpiry(ends, time.Now().Unix())
		if change < 0 || !alive {
			return 0, nil // nothing to give back; or the window is over
		}
		item := &memcache.Item{Key: key, Value: strconv.AppendInt(nil, change, 10), Expiration: expiry}
		switch err = again(n.teller, func() error { return n.teller.Add(item) }); {
		case err == nil:
			st.Add.Success.Add(1)
			return change, nil
		case !errors.Is(err, memcache.ErrNotStored):
			st.Add.Error.Add(1)
			return 0, err
		}
		st.Add.NotStored.Add(1) // another process was first
	}
	return 0, fmt.Errorf("a counter came and went: %w", err)
}

// nodeFault says whether an error of an increment is the node's and not the counter's.
func nodeFault(err error) bool {
	return !errors.Is(err, memcache.ErrNotStored) && !strings.Contains(err.Error(), "client error")
}

// failed notes a failure of the node.
func (n *node) failed(err error) {
	if n.store.ctx.Err() != nil {
		return // it was us
	}
	if n.breaker.failed(time.Since(n.store.begun)) {
		n.lost(fmt.Sprintf("%d failures in a row, the last: %v", breakerFailures, err))
	}
}

// stalled notes that a look-up has had no answer for the time of STORE_STALL.
func (n *node) stalled() {
	if n.breaker.aged(n.store.o.Stall, time.Since(n.store.begun)) {
		n.lost("a look-up has been out for " + n.store.o.Stall.String())
	}
}

// lost answers everybody who waits for the node, now that its breaker is open, and probes it from now on.
func (n *node) lost(why string) {
	s := n.store
	s.o.Log.Error("a memcached node is lost; the failure mode answers for its keys until it is back", "node", n.addr.text, "why", why)
	s.mu.Lock()
	for l := range n.out {
		l.finish(ErrOpen)
	}
	for _, l := range n.looks {
		l.finish(ErrOpen)
	}
	clear(n.looks)
	n.looks = n.looks[:0]
	if s.ctx.Err() == nil {
		s.wg.Go(n.probe)
	}
	s.mu.Unlock()
	n.breakOff()
	n.looker.Close() // those that rest are broken too
	n.teller.Close()
}

// probe asks a lost node whether it is back until it is, or nobody wants it.
func (n *node) probe() {
	s := n.store
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(probeEvery):
		}
		s.mu.Lock()
		retired := n.retired
		s.mu.Unlock()
		if retired {
			return
		}
		if again(n.looker, n.looker.Ping) != nil {
			continue
		}
		n.breaker.probed(true)
		s.o.Log.Warn("a memcached node answers again", "node", n.addr.text)
		s.mu.Lock()
		n.tellAll()
		s.mu.Unlock()
		return
	}
}

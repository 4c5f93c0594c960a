// Package memcached is a counter.Store that counts hits in the nodes of memcached. It supports fixed windows only.
package memcached

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/link"
)

// Settings say where the nodes are, and bound the use of them. A 0 means the default, except for Refresh.
type Settings struct {
	// host:port,host:port…, or paths of unix sockets. The number and order of the nodes determine the node of each key,
	// so every instance must list the same.
	Nodes []string `env:"HOST_PORT"`
	// _service._proto.name of DNS SRV records that name the nodes, instead of MCACHE_HOST_PORT.
	SRV string `env:"SRV"`
	// Pause between DNS look-ups of MCACHE_SRV; a look-up that fails changes nothing. 0: only at start.
	Refresh time.Duration `env:"SRV_REFRESH" envDefault:"0s" min:"0s"`
	// How many connections to a node stay open for look-ups, and how many look-ups may be under way at once; less than
	// 1 means 2.
	MaxIdleConns int `env:"MAX_IDLE_CONNS" envDefault:"2"`
	// Longest time for connecting, for each operation, and for calls without a deadline.
	Timeout time.Duration `env:"TIMEOUT" envDefault:"500ms" min:"1ms"`
	// How many counters may have hits that are not yet written. Beyond this number, hits are answered but never
	// written, and a statistic counts them.
	QueueSize int `env:"QUEUE_SIZE" envDefault:"10000" min:"1"`
}

// Options configures New. Zero values mean the defaults given.
type Options struct {
	Settings Settings
	// Resolver looks up Settings.SRV; nil: the system's resolver.
	Resolver *net.Resolver
	// TLS makes the TLS config for the host that is dialed; nil: no TLS.
	TLS func(host string) *tls.Config
	// HashKeys replaces each key that memcached would refuse by the key's hash. Without it, Add fails for such a key
	// with a KeyError.
	HashKeys bool
	// JitterMax is EXPIRATION_JITTER_MAX_SECONDS: a random number of seconds, at most JitterMax and at most a tenth of
	// the window, is added to a counter's time to live. 0 or negative: nothing is added.
	JitterMax int64
	// Stall is STORE_STALL: a node that has not answered a lookup for so long counts as lost. 0 means 250 ms; negative:
	// a node may take for ever.
	Stall time.Duration
	// Log gets a line when a node is lost or answers again, and when the list of nodes changes. It may be nil.
	Log *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Settings.MaxIdleConns < 1 {
		o.Settings.MaxIdleConns = 2
	}
	o.Resolver = cmp.Or(o.Resolver, net.DefaultResolver)
	o.Settings.Timeout = cmp.Or(o.Settings.Timeout, 500*time.Millisecond)
	o.Settings.QueueSize = cmp.Or(o.Settings.QueueSize, 10_000)
	o.Stall = cmp.Or(o.Stall, 250*time.Millisecond)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return o
}

// Store counts hits in memcached nodes that many processes share.
//
// Add first looks up the totals in the nodes, by one lookup for all calls that wait. Then it answers by these totals,
// and the hits are written to the nodes in the background, added up for each counter. So limits can be exceeded by the
// hits that other processes have admitted within about a round trip; see localCount. If a node is lost, only the hits
// on its own keys fail: Add then returns ErrPartial.
//
// Store differs from the other stores in two points: keys have at most 250 bytes, without white space and control
// characters; and under Request.Stop, a request is atomic only among the requests of this process.
type Store struct {
	link.PoolStats
	o      Options
	dialer link.Dialer
	stats  Stats
	ring   atomic.Pointer[ring]
	begun  time.Time

	mu      sync.Mutex
	waiting int           // how many local counts are in the queues of all nodes
	dropped uint64        // hits that were answered but not written
	nodes   []*node       // the nodes of the ring, each once, and former nodes that still have hits to be written
	looks   []counter.Hit // memory for countOrStop
	closed  bool

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Stats counts operations by their outcome. The names are those of the statistics of envoyproxy/ratelimit.
type Stats struct {
	Multiget                 struct{ Success, Error atomic.Uint64 }
	Increment                struct{ Success, Miss, Error atomic.Uint64 }
	Add                      struct{ Success, NotStored, Error atomic.Uint64 }
	KeysRequested, KeysFound atomic.Uint64
	ResolveFailures          atomic.Uint64
}

// New returns a store. If Settings.SRV names the nodes, New looks them up in DNS, but it connects to no node yet.
func New(ctx context.Context, o Options) (*Store, error) {
	s := &Store{o: o.withDefaults(), begun: time.Now()}
	s.dialer = link.Dialer{TLS: o.TLS, Timeout: s.o.Settings.Timeout, Stats: &s.PoolStats}
	nodes := o.Settings.Nodes
	if o.Settings.SRV != "" {
		var err error
		if nodes, err = s.resolve(ctx); err != nil {
			return nil, err
		}
	}
	if len(nodes) == 0 {
		return nil, errors.New("no memcached nodes")
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.setNodes(nodes)
	if o.Settings.SRV != "" && o.Settings.Refresh > 0 {
		s.wg.Go(s.follow)
	}
	return s, nil
}

// call is one call of Add in progress.
type call struct {
	hits    []callHit
	lookups []*lookup
	open    int  // how many lookups have not been answered
	left    bool // the caller waits no longer, so each lookup releases its local counts when it ends
	ready   chan struct{}
}

// callHit says which local count and which lookup have the total of a hit.
type callHit struct {
	count  *localCount
	lookup *lookup // nil: the hit was not looked up, and err says why
	err    error
}

// Add implements Store.
func (s *Store) Add(ctx context.Context, req *counter.Request) error {
	if len(req.Hits) == 0 {
		return nil
	}
	stay := s.o.Settings.Timeout
	if deadline, ok := ctx.Deadline(); ok {
		remaining := time.Until(deadline)
		stay = min(stay, remaining-min(link.LeaveBefore, remaining/4))
	}
	if stay <= 0 {
		return counter.ErrTimeout
	}
	a := &call{hits: make([]callHit, len(req.Hits)), ready: make(chan struct{}, 1)}
	keys := make([]string, len(req.Hits))
	for i := range req.Hits {
		keys[i], a.hits[i].err = storedKey(req.Hits[i].Key, s.o.HashKeys)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return link.ErrClosed
	}
	s.lookUp(a, keys)
	asked := a.open > 0
	s.mu.Unlock()

	gone := counter.ErrTimeout // the error for lookups that have no answer by then
	if asked {
		_, gone = link.Await(ctx, a.ready, stay)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answer(a, req, gone)
}

// lookUp finds and pins the local counts of a request's keys, and queues one lookup at each node that has some of them.
// s.mu is held.
func (s *Store) lookUp(a *call, keys []string) {
	ring := s.ring.Load()
	for i, key := range keys {
		h := &a.hits[i]
		if h.err != nil {
			continue
		}
		n := ring.pick(key)
		if n.breaker.IsOpen() {
			h.err = counter.ErrOpen
			continue
		}
		h.count = n.count(key)
		h.lookup = a.lookupAt(n)
		h.lookup.add(h.count)
	}
	a.open = len(a.lookups)
	for _, l := range a.lookups {
		l.node.enqueue(l)
	}
}

func (a *call) lookupAt(n *node) *lookup {
	for _, l := range a.lookups {
		if l.node == n {
			return l
		}
	}
	l := &lookup{call: a, node: n}
	a.lookups = append(a.lookups, l)
	return l
}

// answer works out the totals of the hits, and puts the hits into the nodes' queues to be written. s.mu is held. gone
// is the error for lookups that have no answer yet.
func (s *Store) answer(a *call, req *counter.Request, gone error) error {
	a.left = true
	for _, l := range a.lookups {
		if !l.done {
			l.node.forget(l)
			l.err = gone
			continue
		}
		defer l.release()
		for i, seen := range l.seen { // empty if the lookup has failed
			if seen >= 0 {
				l.counts[i].learn(seen, l.shrunk[i])
			}
		}
	}
	failed, badKeys := 0, 0
	var first error
	for i := range req.Hits {
		err := a.hits[i].failure()
		if req.Hits[i].Err = err; err == nil {
			continue
		}
		failed++
		first = cmp.Or(first, err)
		if _, bad := errors.AsType[*counter.KeyError](err); bad {
			badKeys++
		}
	}
	if failed == len(req.Hits) && badKeys == 0 {
		return first
	}
	if req.Stop != counter.StopNone {
		s.countOrStop(a, req)
	} else {
		for i := range req.Hits {
			if h := &req.Hits[i]; h.Err == nil {
				t := a.hits[i].count
				before := t.total()
				h.After, h.Spared = h.AddTo(before), false
				s.enqueueIncr(t, h, h.After-before, req.Now)
			}
		}
	}
	if failed > 0 {
		return counter.ErrPartial
	}
	return nil
}

// failure returns why the hit has no total, or nil if it has one.
func (h *callHit) failure() error {
	if h.err != nil {
		return h.err
	}
	if h.lookup.err != nil {
		return h.lookup.err
	}
	if h.lookup.seen[slices.Index(h.lookup.counts, h.count)] < 0 {
		return fmt.Errorf("%w: a counter holds no number", counter.ErrUnavailable)
	}
	return nil
}

// countOrStop works out the totals of a request under Request.Stop, and queues its hits unless one of them exceeds its
// limit. s.mu is held, which makes the request atomic within this process.
func (s *Store) countOrStop(a *call, req *counter.Request) {
	s.looks = s.looks[:0]
	for i := range req.Hits {
		look := counter.Hit{Err: req.Hits[i].Err}
		if look.Err == nil {
			look.After = a.hits[i].count.total()
		}
		s.looks = append(s.looks, look)
	}
	held := counter.JudgeStop(req.Hits, s.looks, false)
	for i := range req.Hits {
		if h := &req.Hits[i]; h.Err == nil && !held && !h.Over(h.After) {
			t := a.hits[i].count
			s.enqueueIncr(t, h, h.After-t.total(), req.Now)
		}
	}
}

// enqueueIncr adds a change to the pending change of a local count, and queues it to be written. If the queue is full,
// the change is dropped and counted. s.mu is held.
func (s *Store) enqueueIncr(t *localCount, h *counter.Hit, change, now int64) {
	if change == 0 {
		return
	}
	if !t.queued {
		if s.waiting >= s.o.Settings.QueueSize {
			s.dropped += hitsOf(change)
			return
		}
		s.waiting++
		t.node.queue(t)
	}
	t.pending += change
	ends := h.End + counter.ExpirySlack
	if j := min(s.o.JitterMax, h.Window/10); j > 0 {
		ends += rand.Int64N(j)
	}
	t.ends = max(t.ends, ends, now+1)
}

// Peek implements Store.
func (s *Store) Peek(ctx context.Context, h *counter.Hit) error { return counter.Peek(ctx, s, h) }

// Close implements Store. It first waits for hits to be written, for at most two time-outs.
func (s *Store) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	for end := time.Now().Add(2 * s.o.Settings.Timeout); s.writesPending() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	s.stop()
	s.mu.Lock()
	nodes, lost := slices.Clone(s.nodes), s.dropped // copied, since writers may still take nodes off the list
	s.mu.Unlock()
	for _, n := range nodes {
		n.breakOff()
	}
	s.wg.Wait() // afterwards, no writer changes the counts of lost hits
	s.mu.Lock()
	for _, n := range s.nodes {
		for _, t := range n.counts {
			s.dropped += hitsOf(t.pending)
		}
		n.rest()
	}
	lost = s.dropped - lost
	s.mu.Unlock()
	if lost > 0 {
		s.o.Log.Warn("hits were not written to memcached before the shutdown", "hits", lost)
	}
}

// writesPending reports whether a node that works has hits to be written.
func (s *Store) writesPending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		if !n.breaker.IsOpen() && (len(n.due) > 0 || n.writing) {
			return true
		}
	}
	return false
}

// Stats returns the counts of operations, which continue to change.
func (s *Store) Stats() *Stats { return &s.stats }

// Dropped returns how many hits were answered but never written, because the queue was full or their node failed.
func (s *Store) Dropped() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// Waiting returns how many counters have hits that wait to be written.
func (s *Store) Waiting() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.waiting)
}

// Nodes returns how many nodes are on the list, and how many of them are lost.
func (s *Store) Nodes() (all, lost int64) {
	ring := s.ring.Load()
	for _, n := range ring.nodes {
		if n.breaker.IsOpen() {
			lost++
		}
	}
	return int64(len(ring.nodes)), lost
}

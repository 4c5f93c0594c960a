// Package memory is a counter.Store that counts hits in this process.
package memory

import (
	"cmp"
	"context"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/siphash"
)

// DefaultMaxKeys is the default of MEMORY_MAX_KEYS. So many counters take about 45 MiB.
const DefaultMaxKeys = 1_000_000

// maxShards bounds the number of shards, each of which has a lock. A full store of the default size then has 4,000
// counters in each shard, and growing a shard's table holds its lock for some 50 µs.
const maxShards = 256

// minShardKeys is how many counters a shard should hold at least, so that each shard has some to evict.
const minShardKeys = 1024

// Settings bound the memory of the store.
type Settings struct {
	// How many counters the memory backend holds at most. When it is full, those least used against their limits are
	// dropped, never one at its limit.
	MaxKeys int `env:"MEMORY_MAX_KEYS" envDefault:"1000000" min:"1"` // 0 means DefaultMaxKeys
}

// Options configures New.
type Options struct {
	Settings Settings
	// Evicted is called for each counter in use that is dropped because the store is full. A lock is held during the
	// call, so it must be quick. It may be nil.
	Evicted func()
	// Clock returns the time in µs since the Unix epoch, for sliding windows and token buckets; nil: the wall clock is
	// used.
	Clock func() int64
}

// Store counts hits in this process. It is exact under any concurrency, and bounded in memory: it holds at most MaxKeys
// counters, and stores keys as 128-bit keyed hashes. It never waits, and need not be closed.
//
// If the store is full of counters in use, a new counter replaces one of a random sample: the one whose limit is used
// least. A counter at or over its limit is never dropped, since that would admit hits that the limit has refused; if
// all counters of the sample are at their limits, Add fails with ErrFull. So a client that sends a million invented
// values can neither remove counters that are over their limits nor block the rule for all other clients.
type Store struct {
	secret  siphash.Secret
	shards  []shard
	mask    uint64
	max     int64
	keys    atomic.Int64 // how many counters all shards hold
	evicted func()
	clock   func() int64 // nil: the wall clock
	stops   sync.Pool    // holds *stopScratch
}

// New returns an empty store.
func New(o Options) *Store {
	o.Settings.MaxKeys = cmp.Or(o.Settings.MaxKeys, DefaultMaxKeys)
	if o.Evicted == nil {
		o.Evicted = func() {}
	}
	n := min(maxShards, max(1, o.Settings.MaxKeys/minShardKeys))
	n = 1 << (bits.Len(uint(n)) - 1)
	return &Store{
		secret:  siphash.NewSecret(),
		shards:  make([]shard, n),
		mask:    uint64(n - 1),
		max:     int64(o.Settings.MaxKeys),
		evicted: o.Evicted,
		clock:   o.Clock,
		stops:   sync.Pool{New: func() any { return new(stopScratch) }},
	}
}

// instant returns the time in µs. known is the time if the caller knows it, otherwise 0. The wall clock may be set
// back; counter.Meter.Load bounds the effect on counters.
func (m *Store) instant(known int64) int64 {
	switch {
	case m.clock != nil:
		return m.clock()
	case known != 0:
		return known
	}
	return time.Now().UnixMicro()
}

// Len returns how many counters the store holds. They include counters of windows that have ended but that no sweep has
// removed yet.
func (m *Store) Len() int { return int(m.keys.Load()) }

// Close does nothing, since the store has neither goroutines nor connections.
func (m *Store) Close() {}

// Peek implements Store.
func (m *Store) Peek(_ context.Context, h *counter.Hit) error {
	x := m.id(h.Key)
	s := m.shard(x)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h.Algorithm == counter.FixedWindow {
		h.After = s.total(x)
		return nil
	}
	s.load(x, h, m.instant(0))
	h.JudgeChange(counter.Change{}) // fills in the answer as for a hit with N = 0
	return nil
}

// Reset implements Store.
func (m *Store) Reset(_ context.Context, h *counter.Hit) error {
	x := m.id(h.Key)
	s := m.shard(x)
	s.mu.Lock()
	defer s.mu.Unlock()
	there := false
	switch {
	case h.Algorithm == counter.FixedWindow:
		there = s.fixed.delete(x)
	case s.meters != nil:
		there = s.meters.delete(x)
	}
	if there {
		m.keys.Add(-1)
	}
	return nil
}

// Immediate implements counter.Immediate.
func (*Store) Immediate() {}

// Add implements Store. Its only error is ErrFull. It does not allocate.
func (m *Store) Add(_ context.Context, req *counter.Request) error {
	switch req.Stop {
	case counter.StopAll:
		return m.addOrStop(req)
	case counter.StopEach:
		for i := range req.Hits {
			one := counter.Request{Hits: req.Hits[i : i+1], Now: req.Now}
			if err := m.addOrStop(&one); err != nil {
				return err
			}
		}
		return nil
	}
	instant := int64(0) // the time in µs, read once and only if a hit needs it
	for i := range req.Hits {
		h := &req.Hits[i]
		x := m.id(h.Key)
		s := m.shard(x)
		if instant == 0 && h.Algorithm != counter.FixedWindow {
			instant = m.instant(req.Instant)
		}
		var ok bool
		s.mu.Lock()
		if h.Algorithm == counter.FixedWindow {
			h.After, ok = m.add(s, x, h, req.Now)
			h.Spared = false
		} else {
			ok = m.judge(s, x, h, req.Now, instant)
		}
		s.mu.Unlock()
		if !ok {
			return counter.ErrFull
		}
	}
	return nil
}

// id returns the hash of a key. The lowest bit of B is always set, since B is 0 in an empty slot.
func (m *Store) id(key []byte) siphash.ID {
	x := m.secret.Sum(key)
	x.B |= 1
	return x
}

// shard returns the shard of an id. The low bits of A choose the shard; the high bits choose the place in the shard's
// table.
func (m *Store) shard(x siphash.ID) *shard { return &m.shards[x.A&m.mask] }

// add carries out one hit on a fixed window; the shard's lock is held. It returns false if there is no room for a new
// counter.
func (m *Store) add(s *shard, x siphash.ID, h *counter.Hit, now int64) (after int64, ok bool) {
	limit, end := uint32(min(h.Limit, math.MaxUint32)), uint32(min(max(h.End, 0), math.MaxUint32))
	if sl, _ := s.fixed.find(x); sl != nil {
		v := &sl.v
		v.count = h.AddTo(v.count)
		if h.N > 0 {
			// In the default layout of keys, rules of different units can share a key. The counter lives until the
			// longest window ends.
			v.limit, v.end = limit, max(v.end, end)
		}
		return v.count, true
	}
	if h.N == 0 || h.Refund {
		return 0, true
	}
	m.keys.Add(-int64(s.fixed.sweep(func(t *total) bool { return t.expired(now - sweepGrace) })))
	if !m.reserve(s, now) {
		return 0, false
	}
	s.fixed.makeRoom()
	after = h.AddTo(0)
	s.fixed.place(slot[total]{id: x, v: total{count: after, limit: limit, end: end}})
	return after, true
}

// reserve makes room for one more counter, and evicts another if the store is full. The shard's lock is held. It
// returns false if no counter may be evicted.
func (m *Store) reserve(s *shard, now int64) bool {
	if m.keys.Add(1) <= m.max {
		return true
	}
	m.keys.Add(-1)
	live, ok := s.evict(now, m.instant)
	if live {
		m.evicted()
	}
	return ok
}

// sweepGrace is how many seconds a counter is kept after the end of its window: a request that has read the clock just
// before the end may be carried out just after it.
const sweepGrace = 2

// total is the counter of a fixed window. With its id it takes 32 bytes, so that two share a cache line.
type total struct {
	count int64
	limit uint32 // the limit of the last hit, at most 2^32-1
	end   uint32 // when the window ends, in Unix seconds; good until the year 2106
}

func (t *total) expired(now int64) bool { return int64(t.end) <= now }

// full reports whether the counter has reached its limit. Evicting it would admit hits that the limit has refused.
func (t *total) full() bool { return t.count >= int64(t.limit) }

// shard is one part of the store, with a lock of its own. It has exactly the size of a cache line.
type shard struct {
	mu     sync.Mutex
	fixed  table[total]
	meters *meters // the table of sliding windows and token buckets; nil until the first of them
}

func (s *shard) total(x siphash.ID) int64 {
	if sl, _ := s.fixed.find(x); sl != nil {
		return sl.v.count
	}
	return 0
}

// evict drops one counter of a random sample to make room for another: a counter that is no longer in use if the sample
// has such a counter, otherwise the counter whose limit is used least, but never a counter at or over its limit. live
// reports that the dropped counter was in use; ok reports that a counter was dropped. clock returns the time in µs for
// sliding windows and token buckets.
func (s *shard) evict(now int64, clock func(int64) int64) (live, ok bool) {
	i, least, dead := s.fixed.leastUsed(func(t *total) (used float64, full, dead bool) {
		return float64(t.count) / float64(t.limit), t.full(), t.expired(now)
	})
	if s.meters != nil && !dead {
		instant := clock(0)
		j, used, over := s.meters.leastUsed(func(v *meter) (share float64, full, dead bool) {
			used, capacity, dead := v.used(instant)
			return float64(used) / float64(capacity), uint64(used) >= capacity, dead
		})
		if over || j >= 0 && used < least {
			s.meters.remove(j)
			return !over, true
		}
	}
	if i < 0 {
		return false, false
	}
	s.fixed.remove(i)
	return !dead, true
}

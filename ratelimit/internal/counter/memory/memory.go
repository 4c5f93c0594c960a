// Package memory counts hits in this process.
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

// DefaultMaxKeys is the default of MEMORY_MAX_KEYS: about 45 MiB when all counters are in use.
const DefaultMaxKeys = 1_000_000

// maxShards bounds the number of locks. A full store of the default size then has 4,000 counters in each shard, and
// growing a shard holds its lock for some 50 µs.
const maxShards = 256

// minShardKeys keeps shards large enough that each has counters to evict.
const minShardKeys = 1024

// Settings bound the store.
type Settings struct {
	// Counters that the memory backend holds at most; then those least used against their limits are
	// dropped, never one at its limit.
	MaxKeys int `env:"MEMORY_MAX_KEYS" envDefault:"1000000" min:"1"` // 0: DefaultMaxKeys
}

// Options configures New.
type Options struct {
	Settings Settings
	// Evicted is called for each live counter that is dropped because the store is full. It is called with a lock held,
	// so it must be quick. May be nil.
	Evicted func()
	// Clock returns the time in µs since the Unix epoch, for sliding windows and token buckets; nil is the wall clock.
	Clock func() int64
}

// Store counts in this process: exactly, under any concurrency, within a bounded memory. Keys are kept as 128-bit keyed
// hashes. It never waits and needs no closing.
//
// When MaxKeys counters are live, a new counter replaces, among a sample, the one least used against its limit.
// Counters at or over their limits are never dropped; where the sample has no others, Add fails with ErrFull. Otherwise
// a client that invents a million values would either free the blocked values or block the rule for every client.
type Store struct {
	secret  siphash.Secret
	shards  []shard
	mask    uint64
	max     int64
	keys    atomic.Int64 // counters stored, in all shards
	evicted func()
	clock   func() int64 // nil: the wall clock
	stops   sync.Pool    // *stopScratch
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

// instant returns the time in µs. The wall clock may go back; counter.Meter.Load bounds the effect on counters.
func (m *Store) instant(known int64) int64 {
	switch {
	case m.clock != nil:
		return m.clock()
	case known != 0:
		return known
	}
	return time.Now().UnixMicro()
}

// Len returns the number of counters held, including counters of ended windows that no sweep has reached yet.
func (m *Store) Len() int { return int(m.keys.Load()) }

// Close does nothing: the store has neither goroutines nor connections.
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
	h.JudgeChange(counter.Change{}) // as for a hit with N = 0
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

// Immediate implements the interface of that name.
func (*Store) Immediate() {}

// Add implements Store. The only error is ErrFull; 0 allocations.
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
	instant := int64(0) // the time, read once
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

// id hashes a key. The lowest bit of B is set, so that no id looks like an empty slot.
func (m *Store) id(key []byte) siphash.ID {
	x := m.secret.Sum(key)
	x.B |= 1
	return x
}

// shard returns the shard of an id, by the low bits of A; the high bits give the place within the shard.
func (m *Store) shard(x siphash.ID) *shard { return &m.shards[x.A&m.mask] }

// add carries out one hit; the shard's lock is held. It returns false if there is no room.
func (m *Store) add(s *shard, x siphash.ID, h *counter.Hit, now int64) (after int64, ok bool) {
	limit, end := uint32(min(h.Limit, math.MaxUint32)), uint32(min(max(h.End, 0), math.MaxUint32))
	if sl, _ := s.fixed.find(x); sl != nil {
		v := &sl.v
		v.count = h.AddTo(v.count)
		if h.N > 0 {
			// Rules of different units can share a key of the default layout: the longest window wins.
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

// reserve counts one more counter, and evicts another one where the store is full; the shard's lock is held. It returns
// false if no counter may be evicted.
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

// sweepGrace is how many seconds a counter is kept after its window, for requests that took their time just before the
// window's end and arrive just after it.
const sweepGrace = 2

// total is the counter of a fixed window: 32 bytes with its id, so that two share a cache line.
type total struct {
	count int64
	limit uint32 // the limit at the last hit, at most 2^32-1
	end   uint32 // Unix seconds: good until the year 2106
}

func (t *total) expired(now int64) bool { return int64(t.end) <= now }

// full reports whether the counter is at its limit: evicting it would admit hits that the limit has refused.
func (t *total) full() bool { return t.count >= int64(t.limit) }

// shard is one part of the store, exactly a cache line.
type shard struct {
	mu     sync.Mutex
	fixed  table[total]
	meters *meters // nil until the first sliding window or token bucket
}

func (s *shard) total(x siphash.ID) int64 {
	if sl, _ := s.fixed.find(x); sl != nil {
		return sl.v.count
	}
	return 0
}

// evict drops one counter to make room for another: of the samples a dead counter, otherwise the one least used against
// its limit, never one at or over its limit. live reports that the dropped counter was still in use. clock returns the
// instant for counters that use the clock.
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

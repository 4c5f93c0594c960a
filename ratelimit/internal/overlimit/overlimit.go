// Package overlimit remembers in this process which counters are over their limits, so that hits on them need no store.
package overlimit

import (
	"encoding/binary"

	"github.com/coocood/freecache"

	"gatehouse/ratelimit/internal/siphash"
)

// maxCachedKey is the longest key that the over-limit cache keeps unchanged. freecache refuses entries above a 1024th
// of its size, at least 488 bytes; longer keys are kept as their hash.
const maxCachedKey = 400

// Cache remembers counters that were over their limit, so that a blocked caller costs no store
// (LOCAL_CACHE_SIZE_IN_BYTES). It has the last known counter, not a verdict: overrides share counters, so the caller
// compares the counter with the limit in force.
//
// An entry may disappear at any time, evicted by others. A hit that is answered before a refund and remembered after it
// stays until the window ends.
type Cache struct {
	cache  *freecache.Cache
	secret siphash.Secret
}

// New returns an empty cache of about size bytes, at least 512 KiB, allocated at once.
func New(size int) *Cache { return newCache(size, nil) }

// newCache is New with a clock; nil is the real clock.
func newCache(size int, clock freecache.Timer) *Cache {
	return &Cache{freecache.NewCacheCustomTimer(size, clock), siphash.NewSecret()}
}

// Get returns the last known counter for key. 0 allocations.
func (o *Cache) Get(key []byte) (value int64, ok bool) {
	var long [16]byte
	var buf [8]byte
	v, err := o.cache.GetWithBuf(o.key(key, &long), buf[:])
	if err != nil || len(v) != len(buf) {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(v)), true
}

// Set remembers a counter for ttl seconds: to the window's end (Response's reset, never 0).
func (o *Cache) Set(key []byte, value int64, ttl int) {
	if ttl <= 0 {
		return // freecache would keep it for ever
	}
	var long [16]byte
	var buf [8]byte
	binary.LittleEndian.PutUint64(buf[:], uint64(value))
	o.cache.Set(o.key(key, &long), buf[:], ttl) // fits by construction, so Set cannot fail
}

// Wait says until when a sliding window or a token bucket that is over its limit admits not even one hit. Both times
// are in µs, from a zero that the caller chooses.
type Wait struct {
	// Pass is when one hit passes. Until is when the store has to be called again, at most a second earlier.
	Pass, Until int64
	// Limit and Capacity are the numbers by which the counter was judged; with other numbers it is another counter.
	Limit, Capacity uint32
}

// GetWait returns the Wait for the key of a sliding window or a token bucket. 0 allocations.
func (o *Cache) GetWait(key []byte) (w Wait, ok bool) {
	var long [16]byte
	var buf [24]byte
	v, err := o.cache.GetWithBuf(o.key(key, &long), buf[:])
	if err != nil || len(v) != len(buf) {
		return Wait{}, false
	}
	return Wait{
		Pass: int64(binary.LittleEndian.Uint64(v)), Until: int64(binary.LittleEndian.Uint64(v[8:])),
		Limit: binary.LittleEndian.Uint32(v[16:]), Capacity: binary.LittleEndian.Uint32(v[20:]),
	}, true
}

// SetWait remembers a sliding window or a token bucket for ttl seconds. Set is never called with its key.
func (o *Cache) SetWait(key []byte, w Wait, ttl int) {
	if ttl <= 0 {
		return // freecache would keep it for ever
	}
	var long [16]byte
	var buf [24]byte
	binary.LittleEndian.PutUint64(buf[:], uint64(w.Pass))
	binary.LittleEndian.PutUint64(buf[8:], uint64(w.Until))
	binary.LittleEndian.PutUint32(buf[16:], w.Limit)
	binary.LittleEndian.PutUint32(buf[20:], w.Capacity)
	o.cache.Set(o.key(key, &long), buf[:], ttl)
}

// Delete forgets a counter, which has been refunded.
func (o *Cache) Delete(key []byte) {
	var long [16]byte
	o.cache.Del(o.key(key, &long))
}

// Clear forgets all counters, since the rules have changed. The statistics start again from 0.
func (o *Cache) Clear() { o.cache.Clear() }

// key returns the key in the cache. A hash equals a short key of 16 bytes only by chance, since the hash is keyed.
func (o *Cache) key(key []byte, long *[16]byte) []byte {
	if len(key) <= maxCachedKey {
		return key
	}
	x := o.secret.Sum(key)
	binary.LittleEndian.PutUint64(long[:8], x.A)
	binary.LittleEndian.PutUint64(long[8:], x.B)
	return long[:]
}

// Gauges returns the gauges below ratelimit.localcache, by their names there.
func (o *Cache) Gauges() map[string]func() int64 {
	c := o.cache
	return map[string]func() int64{
		"evacuateCount": c.EvacuateCount, "expiredCount": c.ExpiredCount, "entryCount": c.EntryCount,
		"averageAccessTime": c.AverageAccessTime, "hitCount": c.HitCount, "missCount": c.MissCount,
		"lookupCount": c.LookupCount, "overwriteCount": c.OverwriteCount,
	}
}

// Package overlimit remembers, in this process's memory, which counters are over their limits, so that further hits on
// them are answered without calling the store.
package overlimit

import (
	"encoding/binary"

	"github.com/coocood/freecache"

	"gatehouse/ratelimit/internal/siphash"
)

// maxCachedKey is the longest counter key, in bytes, that the cache stores as it is. freecache refuses an entry whose
// key and value together exceed about a 1024th of the cache's size, which is at least 488 bytes. So a longer key is
// replaced by its hash.
const maxCachedKey = 400

// Cache remembers counters that were over their limit, so that a client that keeps sending hits does not cost a call of
// the store for each hit (LOCAL_CACHE_SIZE_IN_BYTES). It stores the last known count, not a verdict: requests with
// limits of their own (overrides) share counters, so the caller of Get compares the count with the limit in force.
//
// An entry may disappear at any time, evicted by other entries. An entry may also be stale: if a hit is answered before
// a refund of its counter, but is entered into the cache after the refund, the entry stays until the window ends.
type Cache struct {
	cache  *freecache.Cache
	secret siphash.Secret
}

// New returns an empty cache of about size bytes, at least 512 KiB. All of the memory is allocated at once.
func New(size int) *Cache { return newCache(size, nil) }

// newCache is New with a clock; if clock is nil, the cache uses the real time.
func newCache(size int, clock freecache.Timer) *Cache {
	return &Cache{freecache.NewCacheCustomTimer(size, clock), siphash.NewSecret()}
}

// Get returns the last known count for key. It does not allocate.
func (o *Cache) Get(key []byte) (value int64, ok bool) {
	var long [16]byte
	var buf [8]byte
	v, err := o.cache.GetWithBuf(o.key(key, &long), buf[:])
	if err != nil || len(v) != len(buf) {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(v)), true
}

// Set remembers the count of a fixed window for ttl seconds, the time until the window ends.
func (o *Cache) Set(key []byte, value int64, ttl int) {
	if ttl <= 0 {
		return // freecache would keep the entry for ever
	}
	var long [16]byte
	var buf [8]byte
	binary.LittleEndian.PutUint64(buf[:], uint64(value))
	o.cache.Set(o.key(key, &long), buf[:], ttl) // the entry is small enough by construction, so Set cannot fail
}

// Wait says until when a sliding window or a token bucket that is over its limit admits not even one hit. Its times are
// in µs since an instant that the caller chooses, the same for all calls.
type Wait struct {
	// Pass is when one hit will be admitted. Until is when the entry ends, so that the store has to be called again: at
	// most a second before Pass.
	Pass, Until int64
	// Limit and Capacity are the numbers of the rule by which the counter was judged. Under a rule with other numbers,
	// the entry is not valid.
	Limit, Capacity uint32
}

// GetWait returns the Wait for the key of a sliding window or a token bucket. It does not allocate.
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

// SetWait remembers for ttl seconds that a sliding window or a token bucket is over its limit. A key that is used with
// SetWait and GetWait is never used with Set and Get, whose values have another form.
func (o *Cache) SetWait(key []byte, w Wait, ttl int) {
	if ttl <= 0 {
		return // freecache would keep the entry for ever
	}
	var long [16]byte
	var buf [24]byte
	binary.LittleEndian.PutUint64(buf[:], uint64(w.Pass))
	binary.LittleEndian.PutUint64(buf[8:], uint64(w.Until))
	binary.LittleEndian.PutUint32(buf[16:], w.Limit)
	binary.LittleEndian.PutUint32(buf[20:], w.Capacity)
	o.cache.Set(o.key(key, &long), buf[:], ttl)
}

// Delete forgets the counter of a key: a refund has lowered it, so that it may be under its limit.
func (o *Cache) Delete(key []byte) {
	var long [16]byte
	o.cache.Del(o.key(key, &long))
}

// Clear forgets all counters. It is called when the rules have changed. It also sets the statistics of Gauges back to
// 0.
func (o *Cache) Clear() { o.cache.Clear() }

// key returns the key under which freecache stores a counter: the counter's own key or, if that is longer than
// maxCachedKey, a hash of it in long. The hash is keyed, so a client cannot make up a short key of 16 bytes that equals
// the hash of another key.
func (o *Cache) key(key []byte, long *[16]byte) []byte {
	if len(key) <= maxCachedKey {
		return key
	}
	x := o.secret.Sum(key)
	binary.LittleEndian.PutUint64(long[:8], x.A)
	binary.LittleEndian.PutUint64(long[8:], x.B)
	return long[:]
}

// Gauges returns the cache's gauges by the last part of their names; the full names begin with ratelimit.localcache.
func (o *Cache) Gauges() map[string]func() int64 {
	c := o.cache
	return map[string]func() int64{
		"evacuateCount": c.EvacuateCount, "expiredCount": c.ExpiredCount, "entryCount": c.EntryCount,
		"averageAccessTime": c.AverageAccessTime, "hitCount": c.HitCount, "missCount": c.MissCount,
		"lookupCount": c.LookupCount, "overwriteCount": c.OverwriteCount,
	}
}

package counter

import (
	"encoding/binary"

	"github.com/coocood/freecache"
)

// maxCachedKey is the longest key that the over-limit cache keeps as it is. freecache refuses entries
// above a 1024th of its size, 488 bytes at the smallest; longer keys are kept as their hash.
const maxCachedKey = 400

// OverLimit remembers counters that were over their limit, so that a blocked caller costs no store
// (LOCAL_CACHE_SIZE_IN_BYTES). It holds the counter last seen,
// not a verdict: overrides share counters, so the caller judges it against the limit in force.
//
// An entry may be missing at any time, evicted by others. A hit answered before a refund and
// remembered after it stays until the window ends.
type OverLimit struct {
	cache  *freecache.Cache
	secret secret
}

// NewOverLimit returns an empty cache of about size bytes, at least 512 KiB, all taken at once.
func NewOverLimit(size int) *OverLimit { return newOverLimit(size, nil) }

// newOverLimit takes the clock too; nil is the real one.
func newOverLimit(size int, clock freecache.Timer) *OverLimit {
	return &OverLimit{freecache.NewCacheCustomTimer(size, clock), newSecret()}
}

// Get returns the counter last seen for key. 0 allocations.
func (o *OverLimit) Get(key []byte) (value int64, ok bool) {
	var long [16]byte
	var buf [8]byte
	v, err := o.cache.GetWithBuf(o.key(key, &long), buf[:])
	if err != nil || len(v) != len(buf) {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(v)), true
}

// Set remembers a counter for ttl seconds: to the window's end (Response's reset, never 0).
func (o *OverLimit) Set(key []byte, value int64, ttl int) {
	if ttl <= 0 {
		return // freecache would keep it for ever
	}
	var long [16]byte
	var buf [8]byte
	binary.LittleEndian.PutUint64(buf[:], uint64(value))
	o.cache.Set(o.key(key, &long), buf[:], ttl) // fits by construction, so it cannot fail
}

// Delete forgets a counter: it has been refunded.
func (o *OverLimit) Delete(key []byte) {
	var long [16]byte
	o.cache.Del(o.key(key, &long))
}

// Clear forgets all of them: the rules have changed. The statistics start again from 0.
func (o *OverLimit) Clear() { o.cache.Clear() }

// key is what the cache knows a key by. A hash never meets a short key of 16 bytes by more than
// chance, since it is keyed.
func (o *OverLimit) key(key []byte, long *[16]byte) []byte {
	if len(key) <= maxCachedKey {
		return key
	}
	x := o.secret.sum(key)
	binary.LittleEndian.PutUint64(long[:8], x.a)
	binary.LittleEndian.PutUint64(long[8:], x.b)
	return long[:]
}

// OverLimitStats are the gauges below ratelimit.localcache, by their names there.
type OverLimitStats struct {
	EvacuateCount, ExpiredCount, EntryCount, AverageAccessTime int64
	HitCount, MissCount, LookupCount, OverwriteCount           int64
}

// Stats reads the gauges.
func (o *OverLimit) Stats() OverLimitStats {
	c := o.cache
	return OverLimitStats{
		c.EvacuateCount(), c.ExpiredCount(), c.EntryCount(), c.AverageAccessTime(),
		c.HitCount(), c.MissCount(), c.LookupCount(), c.OverwriteCount(),
	}
}

//go:build linux

package main

import (
	"math/bits"
	"time"
)

// histogram counts durations in buckets of 1.6 % width (64 to each power of two), so that percentiles need no memory
// for each call and their error is never larger than that.
type histogram struct {
	counts [buckets]uint64
	n      uint64
	max    time.Duration // exact
}

const (
	subBits = 6
	// buckets reaches 2^40 ns, some 18 minutes. Longer durations fall into the last bucket.
	buckets = (40-subBits)<<subBits + 1<<subBits
)

// bucketOf returns a duration's bucket: exact below 128 ns; above, by the number's six bits after its leading one.
func bucketOf(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < 2<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return min(shift<<subBits+int(v>>shift), buckets-1)
}

// upperBound returns the longest duration of a bucket.
func upperBound(bucket int) time.Duration {
	if bucket < 2<<subBits {
		return time.Duration(bucket)
	}
	shift := bucket>>subBits - 1
	top := bucket - shift<<subBits
	return time.Duration((top+1)<<shift - 1)
}

func (h *histogram) record(d time.Duration) {
	h.counts[bucketOf(d)]++
	h.n++
	h.max = max(h.max, d)
}

// quantile returns the duration that the share q of all calls did not exceed, 0 without calls.
func (h *histogram) quantile(q float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := min(uint64(q*float64(h.n)), h.n-1)
	var seen uint64
	for i, c := range h.counts {
		if seen += c; seen > rank {
			return min(upperBound(i), h.max)
		}
	}
	return h.max
}

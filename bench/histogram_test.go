//go:build linux

package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestBuckets(t *testing.T) {
	last := -1
	for d := time.Duration(1); d < 1<<39; d += d/100 + 1 {
		b := bucketOf(d)
		if b < last {
			t.Fatalf("bucketOf(%d) = %d, less than that of a shorter duration", d, b)
		}
		last = b
		if top := upperBound(b); top < d || float64(top) > float64(d)*1.016+1 {
			t.Fatalf("%d lies in a bucket that ends at %d", d, top)
		}
		if b > 0 && upperBound(b-1) >= d {
			t.Fatalf("%d lies in bucket %d, but the one before ends at %d", d, b, upperBound(b-1))
		}
	}
	if got := bucketOf(time.Hour); got != buckets-1 {
		t.Errorf("an hour lies in bucket %d, want the last, %d", got, buckets-1)
	}
	if got := bucketOf(-1); got != 0 {
		t.Errorf("a clock that went backwards lies in bucket %d, want 0", got)
	}
}

func TestQuantile(t *testing.T) {
	var h histogram
	if got := h.quantile(.99); got != 0 {
		t.Errorf("quantile of nothing = %v, want 0", got)
	}
	var all []time.Duration
	for range 10_000 {
		d := time.Duration(rand.ExpFloat64() * 1e6)
		all = append(all, d)
		h.record(d)
	}
	slices.Sort(all)
	for _, q := range []float64{0, .5, .9, .99, .999, 1} {
		want := all[min(int(q*10_000), 9_999)]
		if got := h.quantile(q); got < want || float64(got) > float64(want)*1.016+1 {
			t.Errorf("quantile(%v) = %v, want %v or up to 1.6 %% more", q, got, want)
		}
	}
	if h.max != all[9_999] {
		t.Errorf("max = %v, want %v", h.max, all[9_999])
	}
}

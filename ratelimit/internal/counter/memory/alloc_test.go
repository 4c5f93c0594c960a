//go:build !race

package memory

import (
	"fmt"
	"runtime"
	"testing"

	"gatehouse/ratelimit/internal/counter"
	"gatehouse/ratelimit/internal/counter/countertest"
)

func TestMemoryAlloc(t *testing.T) {
	m := New(Options{})
	f := func(what string, req *counter.Request) {
		t.Helper()
		if n := testing.AllocsPerRun(1000, func() {
			if m.Add(t.Context(), req) != nil {
				t.Fatal("not counted")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations, want 0", what, n)
		}
	}
	hits := []counter.Hit{hit("a", 1, 10, noon+60), hit("b", 1, 10, noon+60), hit("a", 0, 10, noon+60)}
	f("three hits", &counter.Request{Hits: hits, Now: noon})
	f("with the stop option", &counter.Request{Hits: hits, Now: noon, Stop: counter.StopAll})
	hits = append(hits, countertest.Sliding("w", 1, 10), countertest.Bucket("b", 1, 10, 10),
		countertest.Refund(countertest.Bucket("b", 1, 10, 10)), countertest.Sliding("w", 0, 10),
		countertest.Sliding("w", 11, 10))
	f("all algorithms", &counter.Request{Hits: hits, Now: noon})
	f("all algorithms with the stop option", &counter.Request{Hits: hits, Now: noon, Stop: counter.StopAll})
	f("each hit with its own check", &counter.Request{Hits: hits, Now: noon, Stop: counter.StopEach})
	peek := countertest.Bucket("b", 0, 10, 10)
	if n := testing.AllocsPerRun(1000, func() { m.Peek(t.Context(), &peek) }); n != 0 {
		t.Errorf("a look: %v allocations, want 0", n)
	}
}

// A million live counters must leave the daemon below 200 MiB, the collector's headroom included.
func TestMemoryAlloc_million(t *testing.T) {
	for _, algorithm := range []counter.Algorithm{counter.FixedWindow, counter.SlidingWindow, counter.TokenBucket} {
		t.Run(algorithm.String(), func(t *testing.T) { million(t, algorithm) })
	}
}

func million(t *testing.T, algorithm counter.Algorithm) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	evicted := 0
	m := New(Options{Evicted: func() { evicted++ }})
	req := counter.Request{Hits: make([]counter.Hit, 1), Now: noon}
	var key []byte
	for i := range 1_000_000 {
		key = fmt.Appendf(key[:0], "bench_user_%06d_%d", i, noon)
		req.Hits[0] = counter.Hit{Key: key, N: 1, End: noon + 60,
			Meter: counter.Meter{Algorithm: algorithm, Limit: 10, Burst: 10, Window: 3600}}
		if err := m.Add(t.Context(), &req); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if m.Len() != 1_000_000 || evicted != 0 {
		t.Errorf("%d counters, %d evicted", m.Len(), evicted)
	}
	taken := (int64(after.HeapSys) - int64(before.HeapSys)) >> 20 // below zero where stacks took spans of the heap
	runtime.GC()
	runtime.ReadMemStats(&after)
	live := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) >> 20
	t.Logf("heap taken from the system %d MiB, live %d MiB", taken, live)
	mostTaken, mostLive := int64(150), int64(60)
	if algorithm != counter.FixedWindow { // a slot is half as large again
		mostTaken, mostLive = 190, 90
	}
	if taken > mostTaken || live > mostLive {
		t.Errorf("heap %d MiB, live %d MiB; want at most %d and %d", taken, live, mostTaken, mostLive)
	}
	runtime.KeepAlive(m)
}

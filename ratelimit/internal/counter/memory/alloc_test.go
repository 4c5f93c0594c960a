//go:build !race

package memory

import (
	"fmt"
	"runtime"
	"testing"

	"gatehouse/ratelimit/internal/counter"
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
}

// A million live counters must leave the daemon below 200 MiB, the collector's headroom included.
func TestMemoryAlloc_million(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	evicted := 0
	m := New(Options{Evicted: func() { evicted++ }})
	req := counter.Request{Hits: make([]counter.Hit, 1), Now: noon}
	var key []byte
	for i := range 1_000_000 {
		key = fmt.Appendf(key[:0], "bench_user_%06d_%d", i, noon)
		req.Hits[0] = counter.Hit{Key: key, N: 1, Limit: 10, Window: 60, End: noon + 60}
		if err := m.Add(t.Context(), &req); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if m.Len() != 1_000_000 || evicted != 0 {
		t.Errorf("%d counters, %d evicted", m.Len(), evicted)
	}
	taken := (after.HeapSys - before.HeapSys) >> 20
	runtime.GC()
	runtime.ReadMemStats(&after)
	live := (after.HeapAlloc - before.HeapAlloc) >> 20
	t.Logf("heap taken from the system %d MiB, live %d MiB", taken, live)
	if taken > 150 || live > 60 {
		t.Errorf("heap %d MiB, live %d MiB; want at most 150 and 60", taken, live)
	}
	runtime.KeepAlive(m)
}

package stats

import (
	"runtime"
	"sync"
)

// GoRuntime adds the ratelimit.go.* series, which describe Go's runtime. They are read once per flush and per call of
// Each. Reading them stops the program for some tens of microseconds. `sys` and `lookups` are always 0, as dashboards
// for envoyproxy/ratelimit expect.
func (r *Registry) GoRuntime() {
	var (
		mu sync.Mutex
		m  runtime.MemStats
	)
	r.mu.Lock()
	r.before = append(r.before, func() {
		mu.Lock()
		defer mu.Unlock()
		runtime.ReadMemStats(&m)
	})
	r.mu.Unlock()

	read := func(f func() uint64) func() uint64 {
		return func() uint64 {
			mu.Lock()
			defer mu.Unlock()
			return f()
		}
	}
	gauge := func(name string, f func() uint64) {
		f = read(f)
		r.GaugeFunc("ratelimit.go."+name, func() int64 { return int64(f()) })
	}
	counter := func(name string, f func() uint64) { r.CounterFunc("ratelimit.go."+name, read(f)) }

	gauge("alloc", func() uint64 { return m.Alloc })
	counter("totalAlloc", func() uint64 { return m.TotalAlloc })
	gauge("sys", func() uint64 { return 0 })
	counter("lookups", func() uint64 { return 0 })
	counter("mallocs", func() uint64 { return m.Mallocs })
	counter("frees", func() uint64 { return m.Frees })
	gauge("heapAlloc", func() uint64 { return m.HeapAlloc })
	gauge("heapSys", func() uint64 { return m.HeapSys })
	gauge("heapIdle", func() uint64 { return m.HeapIdle })
	gauge("heapInuse", func() uint64 { return m.HeapInuse })
	gauge("heapReleased", func() uint64 { return m.HeapReleased })
	gauge("heapObjects", func() uint64 { return m.HeapObjects })
	gauge("nextGC", func() uint64 { return m.NextGC })
	gauge("lastGC", func() uint64 { return m.LastGC })
	counter("pauseTotalNs", func() uint64 { return m.PauseTotalNs })
	counter("numGC", func() uint64 { return uint64(m.NumGC) })
	gauge("gcCPUPercent", func() uint64 { return uint64(m.GCCPUFraction * 100) })
	gauge("numGoroutine", func() uint64 { return uint64(runtime.NumGoroutine()) })
}

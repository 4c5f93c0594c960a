package memlimit

import (
	"math"
	"runtime"
	"runtime/debug"
	"testing"

	"gatehouse/shared/await"
)

// The pace outlives collections, and a floor of nothing changes nothing.
func TestKeepHeapFloor(t *testing.T) {
	before := debug.SetGCPercent(100)
	limit := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetGCPercent(before); debug.SetMemoryLimit(limit) })
	percent := func() int { p := debug.SetGCPercent(100); debug.SetGCPercent(p); return p }
	KeepHeapFloor(0)
	if p := percent(); p != 100 {
		t.Errorf("no floor: %d %%", p)
	}
	KeepHeapFloor(64 << 20)
	if limit == math.MaxInt64 && percent() <= 100 {
		t.Errorf("floor of 64 MiB: %d %%", percent())
	}
	runtime.GC()
	debug.SetGCPercent(100)
	await.True(t, "the floor outlives a collection", func() bool {
		runtime.GC()
		return percent() != 100
	})
}

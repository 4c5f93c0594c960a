// Package memlimit bounds the memory that a daemon may leave to garbage.
//
// It knows no daemon and reads no setting.
package memlimit

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
)

// KeepHeapFloor lets the heap rest: the collector does not run before the heap has floor bytes. A
// daemon whose live heap is 4 MB would otherwise collect many times a second under load (13 % of the
// replaced service's CPU). Above the floor it is Go's usual doubling.
//
// The pacing is set again after each collection, from a cleanup of an object that dies in every one.
// The floor never exceeds half of the memory the process may use: GOMEMLIMIT, else the container's.
// Without GOMEMLIMIT nine tenths of the container's limit become Go's, with or without a floor.
func KeepHeapFloor(floor int64) {
	floor = min(floor, Limit()/2)
	if debug.SetMemoryLimit(-1) == math.MaxInt64 && Limit() < math.MaxInt64 {
		debug.SetMemoryLimit(Limit() / 10 * 9) // at its own limit a container is killed
	}
	if floor > 0 {
		pace(floor)
	}
}

func pace(floor int64) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	const smallest = 4 << 20 // the runtime takes a live heap below this for this
	heap := max(smallest, int64(live[0].Value.Uint64()))
	debug.SetGCPercent(int(max(100, (floor-heap)*100/heap)))

	sentinel := new([16]byte)
	runtime.AddCleanup(sentinel, pace, floor)
}

// Limit is the memory that the process may use, in bytes: GOMEMLIMIT or the control group's limit, whichever is less,
// else math.MaxInt64.
func Limit() int64 {
	limit := debug.SetMemoryLimit(-1)
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
			limit = min(limit, n)
		}
	}
	return limit
}

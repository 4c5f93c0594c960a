// Package memlimit bounds the memory of a daemon: it tunes Go's garbage collector to a minimum heap and to the limit of
// the container.
//
// It does not know the daemons and reads no settings.
package memlimit

import (
	"math"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
)

// KeepHeapFloor keeps the garbage collector from running before the heap has floor bytes. A daemon whose live heap is 4
// MB would otherwise collect many times a second under load (in supabase/auth, collecting takes 13 % of the CPU time).
// Above the floor, the heap may double between collections, as usual in Go.
//
// The pace is set again after each collection, by a cleanup of an object that dies in every collection. The floor never
// exceeds half of the memory that the process may use: GOMEMLIMIT or, without it, the container's limit. Without
// GOMEMLIMIT, Go's limit becomes nine tenths of the container's limit, with or without a floor. In a small container it
// becomes the container's limit less 16 MiB or a quarter, whichever is less: memory outside the heap does not shrink
// with the container, and a limit that is too low makes the collector run all the time.
func KeepHeapFloor(floor int64) {
	floor = min(floor, Limit()/2)
	if debug.SetMemoryLimit(-1) == math.MaxInt64 && Limit() < math.MaxInt64 {
		debug.SetMemoryLimit(soft(Limit())) // a container that exceeds its limit is killed
	}
	if floor > 0 {
		pace(floor)
	}
}

// soft returns the limit for Go's memory in a control group with this limit.
func soft(limit int64) int64 { return limit - max(limit/10, min(limit/4, 16<<20)) }

func pace(floor int64) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	const smallest = 4 << 20 // the runtime counts a smaller live heap as this size
	heap := max(smallest, int64(live[0].Value.Uint64()))
	debug.SetGCPercent(int(max(100, (floor-heap)*100/heap)))

	sentinel := new([16]byte)
	runtime.AddCleanup(sentinel, pace, floor)
}

// Limit returns how many bytes of memory the process may use: the lower of GOMEMLIMIT and the control group's limit.
// Without a limit it returns math.MaxInt64.
func Limit() int64 {
	return min(debug.SetMemoryLimit(-1), groupLimit("/"))
}

// groupLimit returns the lowest limit of the process's control group and of all groups above it that are mounted, up to
// the container's. root is the folder with /proc and /sys.
func groupLimit(root string) int64 {
	limit := int64(math.MaxInt64)
	groups, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		groups = []byte("0::/\n1:memory:/\n")
	}
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		mount, file := "sys/fs/cgroup", "memory.max"
		if slices.Contains(strings.Split(fields[1], ","), "memory") {
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		} else if fields[1] != "" {
			continue
		}
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			limit = min(limit, limitIn(filepath.Join(root, mount, group, file)))
			if group == "/" {
				break
			}
		}
	}
	return limit
}

// limitIn reads one limit from a file; math.MaxInt64 if there is none.
func limitIn(file string) int64 {
	b, _ := os.ReadFile(file) // without the file there is no limit
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil || n <= 0 {
		return math.MaxInt64
	}
	return n
}

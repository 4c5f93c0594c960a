package memlimit

import (
	"errors"
	"math"
	"os"
	"path/filepath"
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

func TestGroupLimit(t *testing.T) {
	t.Parallel()
	const v1, v2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
	type files map[string]string
	for name, test := range map[string]struct {
		groups string
		files  files
		want   int64
	}{
		"none":         {"0::/\n", nil, math.MaxInt64},
		"v2, a unit's": {"0::/s/a.service\n", files{v2 + "/s/a.service/memory.max": "64"}, 64},
		"v2, a parent's is less": {"0::/a/b/c\n",
			files{v2 + "/a/memory.max": "32", v2 + "/a/b/c/memory.max": "64"}, 32},
		"v2, no limit": {"0::/a\n", files{v2 + "/a/memory.max": "max"}, math.MaxInt64},
		"v1": {"4:cpu,memory:/a/b\n0::/x\n",
			files{v1 + "/a/b/memory.limit_in_bytes": "64", v1 + "/memory.limit_in_bytes": "128"}, 64},
		"v1, in a container": {"4:memory:/docker/1234\n", files{v1 + "/memory.limit_in_bytes": "128"}, 128},
		"v1, another's":      {"4:memory:/a\n3:pids:/b\n", files{v1 + "/b/memory.limit_in_bytes": "1"}, math.MaxInt64},
		"no /proc":           {"", files{v2 + "/memory.max": "5"}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			put := func(file, text string) {
				file = filepath.Join(root, file)
				err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text+"\n"), 0o644))
				if err != nil {
					t.Fatal(err)
				}
			}
			if test.groups != "" {
				put("proc/self/cgroup", test.groups)
			}
			for file, text := range test.files {
				put(file, text)
			}
			if got := groupLimit(root); got != test.want {
				t.Errorf("%d, want %d", got, test.want)
			}
		})
	}
}

func TestSoft(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for limit, want := range map[int64]int64{40 * mib: 30 * mib, 64 * mib: 48 * mib, 128 * mib: 112 * mib,
		200 * mib: 180 * mib, 1000 * mib: 900 * mib} {
		if got := soft(limit); got/mib != want/mib {
			t.Errorf("of %d MiB: %d, want %d", limit/mib, got/mib, want/mib)
		}
	}
}

package password

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// DefaultWorkers returns the number of processors that this process may use, rounded down, at least one: the number of
// cores, or the CPU quota of the process's control group if it is lower. GOMAXPROCS cannot be used, since it is rounded
// up.
func DefaultWorkers() int {
	cpus := float64(runtime.NumCPU())
	if quota, ok := cpuQuota("/"); ok {
		cpus = min(cpus, quota)
	}
	return max(1, int(cpus))
}

// cpuQuota returns the number of processors, possibly a fraction, that the control groups of this process allow; ok is
// false if there is no quota. It reads cgroup v2 (cpu.max), else v1 (cpu.cfs_*_us). It considers the process's control
// group and all groups above it, and returns the lowest quota. root is the root of the file system.
func cpuQuota(root string) (quota float64, ok bool) {
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup")) // without the file there is no quota
	quota = math.Inf(1)
	for line := range strings.Lines(string(text)) {
		// A line is ID:controllers:path. For cgroup v2, the ID is 0 and there are no controllers.
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		read, mount := quotaV1, "sys/fs/cgroup/cpu"
		switch {
		case parts[0] == "0" && parts[1] == "":
			read, mount = quotaV2, "sys/fs/cgroup"
		case !hasController(parts[1], "cpu"):
			continue
		}
		for path := filepath.Clean("/" + parts[2]); ; path = filepath.Dir(path) {
			if q, ok := read(filepath.Join(root, mount, path)); ok {
				quota = min(quota, q)
			}
			if path == "/" {
				break
			}
		}
	}
	return quota, !math.IsInf(quota, 1)
}

func hasController(list, name string) bool { return slices.Contains(strings.Split(list, ","), name) }

func quotaV2(dir string) (float64, bool) {
	text, _ := os.ReadFile(filepath.Join(dir, "cpu.max"))
	if parts := strings.Fields(string(text)); len(parts) == 2 {
		return ratio(parts[0], parts[1])
	}
	return 0, false
}

func quotaV1(dir string) (float64, bool) {
	quota, _ := os.ReadFile(filepath.Join(dir, "cpu.cfs_quota_us"))
	period, _ := os.ReadFile(filepath.Join(dir, "cpu.cfs_period_us"))
	return ratio(string(quota), string(period))
}

// ratio returns quota / period. "max", -1 and "", the text of a missing file, stand for no quota.
func ratio(quota, period string) (float64, bool) {
	q, badQuota := strconv.ParseFloat(strings.TrimSpace(quota), 64)
	p, badPeriod := strconv.ParseFloat(strings.TrimSpace(period), 64)
	return q / p, badQuota == nil && badPeriod == nil && q > 0 && p > 0
}

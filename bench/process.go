//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// usage is what a process has used since it started.
type usage struct {
	cpu    time.Duration // user and system time of all its threads
	rss    int64         // present resident memory, in bytes
	peak   uint64        // greatest resident memory so far, in bytes; without children
	reaped time.Duration // CPU time of children that have ended and for which the process has waited
}

// clockTick is the unit of the times in /proc. Linux fixes it at 1/100 s for programs in user space.
const clockTick = 10 * time.Millisecond

// readUsage returns what a process has used, from /proc, with the CPU time in nanoseconds: at 2,000 calls a second, the
// 10 ms steps of /proc are the CPU time of a hundred calls. The pid 0 stands for no process, which has used nothing.
func readUsage(pid int) (usage, error) {
	if pid == 0 {
		return usage{}, nil
	}
	process, err := procfs.NewProc(pid)
	if err != nil {
		return usage{}, fmt.Errorf("usage of process %d: %w", pid, err)
	}
	stat, err := process.Stat()
	if err != nil {
		return usage{}, err
	}
	u := usageOf(stat)
	status, err := process.NewStatus()
	u.peak = status.VmHWM
	return u, err
}

func usageOf(stat procfs.ProcStat) usage {
	return usage{
		cpu:    exactCPU(stat.PID, time.Duration(stat.UTime+stat.STime)*clockTick),
		rss:    int64(stat.ResidentMemory()),
		reaped: time.Duration(stat.CUTime+stat.CSTime) * clockTick,
	}
}

// readFamily returns what a process and its children have used together, including children that have ended.
// PostgreSQL, for example, has a process for each connection. Memory that processes share is counted for each of them.
func readFamily(pid int) (usage, error) {
	// A child that ends between two readings may be in neither of them; then read everything again.
	for try := 1; ; try++ {
		family, err := sumFamily(pid)
		if err != nil {
			return usage{}, err
		}
		after, err := readUsage(pid)
		if err != nil || after.reaped == family.reaped || try == 10 {
			return family, err
		}
	}
}

func sumFamily(pid int) (usage, error) {
	family, err := readUsage(pid)
	if err != nil {
		return usage{}, err
	}
	family.cpu += family.reaped
	processes, err := procfs.AllProcs()
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil || stat.PPID != pid { // an error means that the process has ended meanwhile
			continue
		}
		child := usageOf(stat)
		family.cpu += child.cpu + child.reaped
		family.rss += child.rss
	}
	return family, err
}

// exactCPU returns the user and system time of a process as the scheduler has counted it, in nanoseconds. Steps of 10
// ms would be too coarse for a load that takes a tenth of a second, and for a load that is spread over a dozen
// processes. It reads the process's CPU clock, whose number is as in clock_getcpuclockid(3). The clock includes ended
// threads; the exact times in /proc do not. If the clock cannot be read, exactCPU returns rounded.
func exactCPU(pid int, rounded time.Duration) time.Duration {
	const scheduled = 2 // CPUCLOCK_SCHED: the time that all threads have run
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return rounded
	}
	return time.Duration(t.Nano())
}

// controlGroup is a Linux control group with a memory limit and a CPU quota.
type controlGroup struct {
	dirs          []string // the group's folders: one, or one for each controller
	usage, events string   // paths of the memory controller's files
}

// newControlGroup creates a control group, of version 2 if the system has it, otherwise with the memory and cpu
// controllers of version 1. Only root may do this.
func newControlGroup(name string, memory int64, cores float64) (*controlGroup, error) {
	own, err := ownGroups()
	if err != nil {
		return nil, err
	}
	const period = 100_000 // in µs
	most, quota := fmt.Sprint(memory), fmt.Sprint(int(cores*period))
	// Version 2: create the group directly below the root, because a group that has processes cannot have subgroups
	// with controllers.
	dir := filepath.Join("/sys/fs/cgroup", name)
	g := &controlGroup{[]string{dir}, dir + "/memory.current", dir + "/memory.events"}
	limits := [][2]string{
		{"/sys/fs/cgroup/cgroup.subtree_control", "+memory +cpu"}, // creates the files of the other entries
		{dir + "/memory.max", most}, {dir + "/memory.swap.max", "0"},
		{dir + "/cpu.max", fmt.Sprintf("%s %d", quota, period)},
	}
	if own["memory"] != "" {
		dir, cpu := filepath.Join(own["memory"], name), filepath.Join(own["cpu"], name)
		g = &controlGroup{[]string{dir, cpu}, dir + "/memory.usage_in_bytes", dir + "/memory.oom_control"}
		limits = [][2]string{
			{dir + "/memory.limit_in_bytes", most}, {cpu + "/cpu.cfs_period_us", fmt.Sprint(period)},
			{cpu + "/cpu.cfs_quota_us", quota},
		}
	}
	for _, dir := range g.dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("control groups: %w", err)
		}
	}
	for _, limit := range limits {
		err := os.WriteFile(limit[0], []byte(limit[1]), 0o644)
		if err != nil && filepath.Base(limit[0]) != "memory.swap.max" {
			return nil, errors.Join(fmt.Errorf("control groups: %w", err), g.close())
		}
	}
	return g, nil
}

// ownGroups returns the folders of the version 1 groups to which this process belongs, by controller.
func ownGroups() (map[string]string, error) {
	self, err := procfs.Self()
	if err != nil {
		return nil, err
	}
	groups, err := self.Cgroups()
	own := map[string]string{}
	for _, g := range groups {
		for _, controller := range g.Controllers {
			own[controller] = filepath.Join("/sys/fs/cgroup", controller, g.Path)
		}
	}
	return own, err
}

// enter changes a command so that it joins the group before its program starts: the limits apply from the program's
// beginning.
func (g *controlGroup) enter(cmd *exec.Cmd) {
	script := ""
	for _, dir := range g.dirs {
		script += "echo $$ >" + dir + "/cgroup.procs && "
	}
	cmd.Args = append([]string{"sh", "-c", script + `exec "$0" "$@"`, cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
}

// used returns the memory that the group uses. It returns an error if the kernel has killed a process of the group.
func (g *controlGroup) used() (memory int64, err error) {
	usage, err := os.ReadFile(g.usage)
	events, failed := os.ReadFile(g.events)
	if err := errors.Join(err, failed); err != nil {
		return 0, err
	}
	memory, err = numberAfter(usage, "")
	kills, failed := numberAfter(events, "oom_kill ")
	if kills > 0 {
		failed = fmt.Errorf("the kernel killed %d processes for want of memory, %d MiB are in use", kills, memory>>20)
	}
	return memory, errors.Join(err, failed)
}

// close removes the group. No process may be in it.
func (g *controlGroup) close() (err error) {
	for _, dir := range g.dirs {
		err = errors.Join(err, os.Remove(dir))
	}
	return err
}

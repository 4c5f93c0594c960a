//go:build linux

package main

import (
	"fmt"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// usage is what a process has used since it started.
type usage struct {
	cpu    time.Duration // user and system time of all its threads
	rss    int64         // present resident memory, bytes
	reaped time.Duration // CPU time of children that have ended and were waited for
}

// clockTick is the unit of /proc's times. Linux fixes it at 100 a second for user space.
const clockTick = 10 * time.Millisecond

// readUsage reads /proc, and the CPU time in nanoseconds: at 2,000 calls a second a step of 10 ms is the CPU time of a
// hundred calls. A pid of 0 is no process and has used nothing.
func readUsage(pid int) (usage, error) {
	if pid == 0 {
		return usage{}, nil
	}
	process, err := procfs.NewProc(pid)
	if err != nil {
		return usage{}, fmt.Errorf("usage of process %d: %w", pid, err)
	}
	stat, err := process.Stat()
	return usageOf(stat), err
}

func usageOf(stat procfs.ProcStat) usage {
	return usage{
		cpu:    exactCPU(stat.PID, time.Duration(stat.UTime+stat.STime)*clockTick),
		rss:    int64(stat.ResidentMemory()),
		reaped: time.Duration(stat.CUTime+stat.CSTime) * clockTick,
	}
}

// peakRSS returns the most memory that a process has had, in bytes.
func peakRSS(pid int) (uint64, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	status, err := process.NewStatus()
	return status.VmHWM, err
}

// readFamily returns what a process and its children have used, including ended children: PostgreSQL has a process for
// each connection. Memory that they share counts once for each.
func readFamily(pid int) (usage, error) {
	// A child that ends during the reading is in neither sum; then everything is read again.
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
		if err != nil || stat.PPID != pid { // an error: the process has ended meanwhile
			continue
		}
		child := usageOf(stat)
		family.cpu += child.cpu + child.reaped
		family.rss += child.rss
	}
	return family, err
}

// exactCPU returns a process's user and system time as the scheduler counted it, in nanoseconds: steps of 10 ms hide a
// load that ends after a tenth of a second, or one spread over a dozen processes. It reads the process's own clock, as
// clock_getcpuclockid(3) names it, which includes ended threads; /proc has only the living ones. It returns rounded
// where the clock cannot be read.
func exactCPU(pid int, rounded time.Duration) time.Duration {
	const scheduled = 2 // CPUCLOCK_SCHED: all threads' time on a core
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return rounded
	}
	return time.Duration(t.Nano())
}

//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// usage is what a process has used since it started.
type usage struct {
	cpu time.Duration // user and system time of all its threads
	rss int64         // present resident memory, bytes

	parent int           // the process that waits for it
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
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, fmt.Errorf("usage of process %d: %w", pid, err)
	}
	u, err := parseStat(stat)
	u.cpu = exactCPU(pid, u.cpu)
	return u, err
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
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	for _, path := range stats {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended meanwhile
		}
		u, err := parseStat(stat)
		if err != nil {
			return usage{}, err
		}
		if u.parent != pid {
			continue
		}
		child, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return usage{}, err
		}
		family.cpu += exactCPU(child, u.cpu) + u.reaped
		family.rss += u.rss
	}
	return family, nil
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

// parseStat reads fields 4 (parent), 14 to 17 (utime, stime, and those of ended children) and 24 (rss in pages) of
// proc_pid_stat(5). The second field is the program's name in parentheses and may itself contain spaces and
// parentheses.
func parseStat(stat []byte) (usage, error) {
	end := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[end+1:]) // fields[0] is field 3
	if end < 0 || len(fields) < 22 {
		return usage{}, fmt.Errorf("not a /proc stat line: %q", stat)
	}
	var sum [6]int64
	for i, at := range []int{14, 15, 24, 4, 16, 17} {
		n, err := strconv.ParseInt(string(fields[at-3]), 10, 64)
		if err != nil {
			return usage{}, fmt.Errorf("field %d of a /proc stat line: %w", at, err)
		}
		sum[i] = n
	}
	return usage{
		cpu: time.Duration(sum[0]+sum[1]) * clockTick,
		rss: sum[2] * int64(os.Getpagesize()),

		parent: int(sum[3]),
		reaped: time.Duration(sum[4]+sum[5]) * clockTick,
	}, nil
}

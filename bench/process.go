//go:build linux

package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// usage is what a process has used since it began.
type usage struct {
	cpu time.Duration // user and system time of all its threads, in steps of 10 ms
	rss int64         // resident memory at this moment, bytes
}

// clockTick is the unit of /proc's times. Linux fixes it at 100 a second for user space.
const clockTick = 10 * time.Millisecond

// readUsage reads /proc. A pid of 0 is nobody and has used nothing.
func readUsage(pid int) (usage, error) {
	if pid == 0 {
		return usage{}, nil
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, fmt.Errorf("usage of process %d: %w", pid, err)
	}
	return parseStat(stat)
}

// parseStat takes fields 14, 15 (utime, stime) and 24 (rss in pages) of proc_pid_stat(5). The second
// field is the program's name in parentheses and may hold spaces and parentheses itself.
func parseStat(stat []byte) (usage, error) {
	end := bytes.LastIndexByte(stat, ')')
	fields := bytes.Fields(stat[end+1:]) // fields[0] is field 3
	if end < 0 || len(fields) < 22 {
		return usage{}, fmt.Errorf("not a /proc stat line: %q", stat)
	}
	var sum [3]int64
	for i, at := range []int{14, 15, 24} {
		n, err := strconv.ParseInt(string(fields[at-3]), 10, 64)
		if err != nil {
			return usage{}, fmt.Errorf("field %d of a /proc stat line: %w", at, err)
		}
		sum[i] = n
	}
	return usage{
		cpu: time.Duration(sum[0]+sum[1]) * clockTick,
		rss: sum[2] * int64(os.Getpagesize()),
	}, nil
}

//go:build linux

package main

import (
	"os"
	"testing"
	"time"

	"gatehouse/shared/must"
)

func TestReadUsage(t *testing.T) {
	before, err := readUsage(os.Getpid())
	must.Succeed(t, err)
	for began := time.Now(); time.Since(began) < 50*time.Millisecond; {
	}
	after, err := readUsage(os.Getpid())
	must.Succeed(t, err)
	if after.cpu <= before.cpu || after.rss <= 1<<20 {
		t.Errorf("50 ms of work took %v of CPU and %d bytes", after.cpu-before.cpu, after.rss)
	}
	if u, err := readUsage(0); err != nil || u != (usage{}) {
		t.Errorf("nobody used %+v, %v", u, err)
	}
	if _, err := readUsage(1 << 30); err == nil {
		t.Error("a process that is not there has a usage")
	}
}

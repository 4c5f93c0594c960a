//go:build linux

package main

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	f := func(stat string, cpu time.Duration, pages int64) {
		t.Helper()
		u, err := parseStat([]byte(stat))
		if err != nil {
			t.Fatal(err)
		}
		if u.cpu != cpu || u.rss != pages*int64(os.Getpagesize()) {
			t.Errorf("%+v, want cpu %v and %d pages", u, cpu, pages)
		}
	}
	rest := " S 1 2 3 0 -1 4194560 9 9 9 9 150 25 7 7 20 0 8 0 12345 1000000 1234 18446744073709551615 1 1"
	f("42 (redis-server)"+rest, 1750*time.Millisecond, 1234)
	f("42 (a name) with ) (both)"+rest, 1750*time.Millisecond, 1234)

	for _, bad := range []string{"", "42", "42 (x) S 1 2",
		"42 (x) S 1 2 3 0 -1 4194560 9 9 9 9 x 25 7 7 20 0 8 0 12345 1000000 1234 1"} {
		if u, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q parsed to %+v", bad, u)
		}
	}
}

func TestReadUsage(t *testing.T) {
	before, err := readUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 50*time.Millisecond; {
	}
	after, err := readUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
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

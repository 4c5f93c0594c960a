//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// startTestDatabase skips without PostgreSQL, unless the environment says that it must be there.
func startTestDatabase(t *testing.T) *database {
	t.Helper()
	l := &testbed{dir: t.TempDir()}
	d, err := startDatabase(t.Context(), l)
	testdb.Started(t, err)
	t.Cleanup(func() { l.close() })
	return d
}

func TestDatabase(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	d := startTestDatabase(t)
	url, err := d.createYardstick(t.Context())
	must.Succeed(t, err)
	must.Succeed(t, must.ErrOf(d.conn.Exec(t.Context(), "checkpoint")))
	before, err := d.read(t.Context())
	must.Succeed(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, kind := range []string{"select", "update"} {
		work, err := yardstickWork(ctx, kind, url)
		for range 300 {
			if err = errors.Join(err, work(ctx)); err != nil {
				t.Fatal(err)
			}
		}
	}
	after, err := d.read(t.Context())
	must.Succeed(t, err)
	// An update is a hundred bytes and more, the first on a page some thousands.
	if cpu, wal := after.store-before.store, after.wal-before.wal; cpu <= 0 || wal < 300*100 || wal > 300*10_000 {
		t.Errorf("300 updates took %v of CPU and %d bytes of WAL", cpu, wal)
	}

	counter, err := countTripsTo(d.server.Addr(), t.TempDir())
	must.Succeed(t, err)
	defer counter.listener.Close()
	conn, err := pgx.Connect(t.Context(), counter.url("yardstick"))
	must.Succeed(t, err)
	defer conn.Close(t.Context())
	f := func(want int64, ask func() error) {
		t.Helper()
		before := counter.trips.Load()
		must.Succeed(t, ask())
		// The counter counts an answer after it has passed it on.
		await.True(t, "the answers are counted", func() bool { return counter.trips.Load()-before >= want })
		if got := counter.trips.Load() - before; got != want {
			t.Errorf("%d round trips, want %d", got, want)
		}
	}
	var text string
	const long = "select repeat('Z', 100000)"
	ask := func() error { return conn.QueryRow(t.Context(), long).Scan(&text) }
	f(2, ask) // prepared first
	f(1, ask)
	f(1, func() error {
		var b pgx.Batch
		b.Queue(long)
		b.Queue(long)
		return conn.SendBatch(t.Context(), &b).Close()
	})
}

// TestReadFamily has a child work and end: its time stays with the family.
func TestReadFamily(t *testing.T) {
	before, err := readFamily(os.Getpid())
	must.Succeed(t, err)
	must.Succeed(t, exec.Command("sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").Run())
	after, err := readFamily(os.Getpid())
	must.Succeed(t, err)
	if after.cpu <= before.cpu || after.rss == 0 {
		t.Errorf("a child's work took %v of CPU; %d bytes", after.cpu-before.cpu, after.rss)
	}
	if _, err := readFamily(1 << 30); err == nil {
		t.Error("a process that is not there has a family")
	}
}

// TestReadFamily_endedThread has a thread of the process work and end: its time stays with the process.
func TestReadFamily_endedThread(t *testing.T) {
	const use = 100 * time.Millisecond
	thread := make(chan int)
	var work func()
	work = func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Gettid() == os.Getpid() {
			// But for the first thread, which Go never ends: it is kept busy while another works.
			defer runtime.UnlockOSThread()
			done := make(chan struct{})
			go func() { defer close(done); work() }()
			<-done
			return
		}
		var used unix.Timespec
		for used.Nano() < int64(use) {
			if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &used); err != nil {
				t.Error(err)
				break
			}
		}
		thread <- unix.Gettid()
	}
	go work()
	task := fmt.Sprintf("/proc/self/task/%d", <-thread)
	with, err := readFamily(os.Getpid())
	must.Succeed(t, err)
	await.True(t, "the thread ends", func() bool {
		_, err := os.Stat(task)
		return err != nil
	})
	without, err := readFamily(os.Getpid())
	must.Succeed(t, err)
	// Children that an earlier test has left may end meanwhile: what they leave to us is in steps of 10 ms.
	if without.cpu < with.cpu-use/2 {
		t.Errorf("a thread's end took %v from what the process has used", with.cpu-without.cpu)
	}
}

func TestOnly(t *testing.T) {
	f := func(only, want string) {
		t.Helper()
		s := &suite{only: only}
		a := &authSuite{suite: *s}
		got := ""
		if s.asked(append(slices.Collect(maps.Keys(scenarios)), "ratelimit")...) {
			got += "ratelimit"
		}
		for _, scenario := range []string{"single", "hot"} {
			if s.asked("ratelimit", scenario) {
				got += " " + scenario
			}
		}
		if s.asked(append(authScenarios, "auth")...) {
			got += " auth"
		}
		for _, l := range []line{bareLine, selectLine, updateLine, hs("signup"), hs("logout")} {
			if a.wants("auth", l) {
				got += " " + l.scenario
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-only %q: (-want +got)\n%s", only, diff)
		}
	}
	f("", "ratelimit single hot auth handler select update signup logout")
	f("ratelimit", "ratelimit single hot")
	f("auth", " auth handler select update signup logout")
	f("hot", "ratelimit hot")
	f("logout", " auth update signup logout")
	f("single,health", "ratelimit single auth handler")
}

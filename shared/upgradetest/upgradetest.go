// Package upgradetest is for tests that replace replicas under load: first replicas of the former release by replicas
// of the present program, and then the reverse.
package upgradetest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// Previous returns the folder with the programs and settings pages of the former release. If there is none, the test is
// skipped.
func Previous(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the former release")
	}
	var top string
	for dir := "."; ; dir = filepath.Join(dir, "..") {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			top = dir
			break
		}
	}
	cmd := exec.Command(".ci/previous")
	cmd.Dir = top
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 3 {
		t.Skipf("%s", exit.Stderr)
	} else if err != nil {
		t.Fatalf(".ci/previous: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// Phase returns for how long each of the five states of an upgrade is kept under load: a fifth of the duration in the
// environment variable UPGRADE_TIME; by default 0, which means only as long as the load needs.
func Phase(t testing.TB) time.Duration {
	t.Helper()
	text := os.Getenv("UPGRADE_TIME")
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("UPGRADE_TIME: %v", err)
	}
	return d / 5
}

// Fleet is the replicas of a daemon from which clients choose.
type Fleet[T any] struct {
	mu   sync.Mutex
	live []T
	next int
	done int
}

// Add adds a replica, which clients may choose from now on.
func (f *Fleet[T]) Add(one T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live = append(f.live, one)
}

// RemoveFirst removes the oldest replica and returns it.
func (f *Fleet[T]) RemoveFirst() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	one := f.live[0]
	f.live = f.live[1:]
	return one
}

// Pick returns a replica, each in turn.
func (f *Fleet[T]) Pick() T {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next++
	return f.live[f.next%len(f.live)]
}

// Run makes workers call work while it takes the fleet through five states: all replicas old, mixed, all new, mixed,
// all old. The function replace replaces one replica by one of the old or the new program. Each state lasts for the
// time pause, and longer if fewer than eight calls of work have returned by then.
func (f *Fleet[T]) Run(t testing.TB, pause time.Duration, work func(i int), replace func(old bool)) {
	t.Helper()
	const workers, enough = 4, 8
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := w; ctx.Err() == nil && !t.Failed(); i += workers {
				work(i)
				f.mu.Lock()
				f.done++
				f.mu.Unlock()
			}
		})
	}
	settle := func() {
		f.mu.Lock()
		until := f.done + enough
		f.mu.Unlock()
		for since := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			f.mu.Lock()
			ok := f.done >= until
			f.mu.Unlock()
			if t.Failed() || ok && time.Since(since) >= pause || time.Since(since) > pause+2*time.Minute {
				return
			}
		}
	}
	settle()
	for _, old := range []bool{false, false, true, true} {
		replace(old)
		settle()
	}
	stop()
	wg.Wait()
}

// Settings fails the test if the present program lacks a setting that the former release had, unless the changelog
// names it. before is the settings page of the former release, today the page of the present program.
func Settings(t testing.TB, before, today, changelog string) {
	t.Helper()
	name := regexp.MustCompile("`([A-Z][A-Z0-9_]{3,})`")
	for _, m := range name.FindAllStringSubmatch(before, -1) {
		if whole := "`" + m[1] + "`"; !strings.Contains(today, whole) && !strings.Contains(changelog, whole) {
			t.Errorf("%s of the former release is neither a setting nor in the changelog", m[1])
		}
	}
}

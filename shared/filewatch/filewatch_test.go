package filewatch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

// A directory that is made again under its name is followed when Follow is called again.
func TestFollow(t *testing.T) {
	path := "" // of the file whose change counts
	w := New(Options{Name: "test", Log: slog.New(slog.DiscardHandler), Poll: time.Hour,
		Signature: func() string { return "" }, Concerns: func(e fsnotify.Event) bool { return e.Name == path }})
	defer w.Close()
	top := t.TempDir()
	dir, other := filepath.Join(top, "dir"), filepath.Join(top, "other")
	mkdir := func(path string) {
		t.Helper()
		must.Succeed(t, os.MkdirAll(path, 0o755))
	}
	// noticed writes a file and says whether an event of it comes.
	noticed := func(dir string) bool {
		t.Helper()
		path = filepath.Join(dir, "file")
		must.Succeed(t, os.WriteFile(path, []byte(time.Now().String()), 0o644))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, changed := w.Wait(ctx, nil)
		return changed
	}
	mkdir(dir)
	mkdir(other)
	w.Follow(dir, filepath.Join(top, "missing"), dir)
	await.True(t, "an event", func() bool { return noticed(dir) })
	if noticed(other) {
		t.Error("an event of a directory that is not followed")
	}
	must.Succeed(t, os.RemoveAll(dir))
	mkdir(dir)
	w.Follow(dir)
	await.True(t, "an event of the directory made again", func() bool { return noticed(dir) })
	w.Follow(other)
	await.True(t, "an event of the other directory", func() bool { return noticed(other) })
	if noticed(dir) {
		t.Error("an event of a directory that is followed no more")
	}
}

// Another signature is a change, which a forced return does not wait for.
func TestWait(t *testing.T) {
	signature := "a"
	w := New(Options{Name: "test", Log: slog.New(slog.DiscardHandler), Poll: time.Millisecond, Settle: time.Hour,
		Most: 20 * time.Millisecond, Signature: func() string { return signature }})
	defer w.Close()
	if got := w.Follow(); got != "a" {
		t.Errorf("the signature is %q", got)
	}
	force := make(chan struct{}, 1)
	force <- struct{}{}
	if forced, ok := w.Wait(t.Context(), force); !forced || !ok {
		t.Errorf("forced: %v, %v", forced, ok)
	}
	signature = "b"
	if forced, ok := w.Wait(t.Context(), force); forced || !ok {
		t.Errorf("a change: %v, %v", forced, ok)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := w.Wait(ctx, nil); ok {
		t.Error("Wait outlives its context")
	}
}

// Wait returns when Settle has passed since the last change, and when Most has passed since the first if changes do not
// end.
func TestWait_settles(t *testing.T) {
	f := func(changes int, want time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			n := 0
			o := Options{Poll: time.Second, Settle: 5 * time.Second, Most: time.Minute,
				Signature: func() string { n = min(n+1, changes); return fmt.Sprint(n) }}
			w := &Watcher{o: o, tick: time.NewTicker(o.Poll)} // without notifications, which synctest cannot await
			defer w.Close()
			begun := time.Now()
			if _, ok := w.Wait(t.Context(), nil); !ok || time.Since(begun) != want {
				t.Errorf("%d changes, one a second: %t after %s, want %s", changes, ok, time.Since(begun), want)
			}
		})
	}
	f(1, 6*time.Second)
	f(10, 15*time.Second)
	f(1000, 61*time.Second)
}

func TestIdentity(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	write := func(text string) string {
		t.Helper()
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o644))
		return Identity(path)
	}
	if got := Identity(path); got != "none" {
		t.Errorf("a file that is not there: %q, want none", got)
	}
	folder := Identity(dir)
	short := write("one")
	if long := write("three"); long == short {
		t.Error("other contents have the same identity")
	}
	if got := Identity(dir); got != folder {
		t.Errorf("a directory with a new file: %q, want %q", got, folder)
	}
	before := Identity(path)
	must.Succeed(t, os.Chmod(path, 0o600))
	if got := Identity(path); got == before {
		t.Error("another mode has the same identity")
	}
}

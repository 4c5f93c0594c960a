// Package filewatch notices that files may have changed. It uses the system's notifications for the files' directories.
// Where there are none (no watches left, some network file systems, a symlink swapped further up the path), it compares
// a signature of the files from time to time. After a change it waits until no further change comes.
//
// It does not read files.
package filewatch

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options say what a Watcher watches, and when it reports a change.
type Options struct {
	// Name is the beginning of each line in Log.
	Name string
	Log  *slog.Logger
	// Signature returns a text that changes when the files change. The Watcher compares it every Poll.
	Signature func() string
	Poll      time.Duration
	// Settle is the time without changes after which Wait returns; Most bounds how long further changes can delay it.
	Settle, Most time.Duration
	// Concerns reports whether a notification is about a change of the files.
	Concerns func(fsnotify.Event) bool
}

// Watcher watches directories. Only one goroutine may use it.
type Watcher struct {
	o       Options
	w       *fsnotify.Watcher // nil if the system gives no notifications
	events  <-chan fsnotify.Event
	errors  <-chan error // each error means that notifications were lost
	watched []string
	tick    *time.Ticker
	seen    string // the signature that Follow took, or a later one
}

// New returns a Watcher that does not watch any directory yet.
func New(o Options) *Watcher {
	w := &Watcher{o: o, tick: time.NewTicker(o.Poll)}
	var err error
	if w.w, err = fsnotify.NewWatcher(); err != nil {
		o.Log.Warn(o.Name+": no change notifications; looking at the files instead", "every", o.Poll, "error", err)
		return w
	}
	w.events, w.errors = w.w.Events, w.w.Errors
	return w
}

// Follow makes the Watcher watch the given directories and no others, and returns the signature of the files. Call
// Follow again after each change: a directory that was removed and made again under the same name is a different
// directory to the system. Directories that cannot be watched are left out.
func (w *Watcher) Follow(dirs ...string) (signature string) {
	w.seen = w.o.Signature()
	if w.w == nil {
		return w.seen
	}
	for _, dir := range w.watched {
		w.w.Remove(dir) // the error means that the directory was removed
	}
	w.watched = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(dirs))),
		func(dir string) bool { return w.w.Add(dir) != nil })
	return w.seen
}

// Wait returns when the files have changed since Follow and no further change has followed for Settle, or at once when
// a value arrives from force; forced is set in the latter case. ok is false if ctx has ended.
func (w *Watcher) Wait(ctx context.Context, force <-chan struct{}) (forced, ok bool) {
	var rest <-chan time.Time // fires when the files have not changed for Settle
	var latest time.Time
	changed := func() {
		now := time.Now()
		if rest == nil {
			latest = now.Add(w.o.Most)
		}
		rest = time.After(min(w.o.Settle, max(0, latest.Sub(now))))
	}
	for {
		select {
		case <-ctx.Done():
			return false, false
		case <-force:
			return true, true
		case <-rest:
			return false, true
		case e := <-w.events:
			if w.o.Concerns(e) {
				changed()
			}
		case err := <-w.errors:
			w.o.Log.Warn(w.o.Name+": change notifications failed; reading the files", "error", err)
			changed()
		case <-w.tick.C:
			if s := w.o.Signature(); s != w.seen {
				w.seen = s
				changed()
			}
		}
	}
}

// Close ends the notifications.
func (w *Watcher) Close() {
	w.tick.Stop()
	if w.w != nil {
		w.w.Close()
	}
}

// Identity returns a text that changes when the file or directory at a path is replaced and, for a file, when its
// contents change.
func Identity(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "none"
	}
	id := ""
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		id = fmt.Sprint(sys.Dev, ":", sys.Ino)
	}
	if info.Mode()&fs.ModeDir == 0 {
		id += fmt.Sprint(" ", info.Size(), " ", info.ModTime().UnixNano(), " ", info.Mode())
	}
	return id
}

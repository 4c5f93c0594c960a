// Package filewatch notices that files may have changed: by the system's notifications for their directories and, where
// there are none (no watches left, some network file systems, a symlink swapped further up the path), by comparing a
// signature from time to time. It then waits until no further change comes.
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

// Options say what a Watcher notices, and when it reports it.
type Options struct {
	// Name begins the lines in Log.
	Name string
	Log  *slog.Logger
	// Signature returns a text that changes with the files; it is compared every Poll.
	Signature func() string
	Poll      time.Duration
	// Settle is how long nothing may change before Wait returns; Most is how long further changes may delay it.
	Settle, Most time.Duration
	// Concerns reports whether a notification is a change.
	Concerns func(fsnotify.Event) bool
}

// Watcher follows directories. One goroutine uses it.
type Watcher struct {
	o       Options
	w       *fsnotify.Watcher // nil without notifications
	events  <-chan fsnotify.Event
	errors  <-chan error // each means that events were lost
	watched []string
	tick    *time.Ticker
	seen    string // the signature of Follow, or a later one
}

// New returns a Watcher that follows nothing yet.
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

// Follow takes the signature and returns it, and watches only these directories. A directory that was removed and made
// again under the same name is a different directory to the system: call Follow again. Directories that cannot be
// watched are left out.
func (w *Watcher) Follow(dirs ...string) (signature string) {
	w.seen = w.o.Signature()
	if w.w == nil {
		return w.seen
	}
	for _, dir := range w.watched {
		w.w.Remove(dir) // fails for a removed directory
	}
	w.watched = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(dirs))),
		func(dir string) bool { return w.w.Add(dir) != nil })
	return w.seen
}

// Wait returns when something has changed since Follow and then settled, or at once when force has a value. ok is false
// when ctx has ended.
func (w *Watcher) Wait(ctx context.Context, force <-chan struct{}) (forced, ok bool) {
	var rest <-chan time.Time // runs after a change
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

// Identity returns a text that changes when the file or directory at a path is replaced or, for files, when its
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

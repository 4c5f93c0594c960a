package certs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is what a writer gets before the files are read.
	settle = 50 * time.Millisecond
	// retryAfter is what a writer gets to bring the second file of a pair.
	retryAfter = 300 * time.Millisecond
	// lookEvery is how often the files are looked at without a notification: file systems that
	// give none, and symlinks swapped further up the path.
	lookEvery = 500 * time.Millisecond
)

// watch tells a Store when to read again.
type watch struct {
	s       *Store
	w       *fsnotify.Watcher // nil where the system has none left
	events  chan fsnotify.Event
	errors  chan error
	watched map[string]bool
	seen    string // signature when the files were last read, or about to be
}

func newWatch(s *Store) *watch {
	w := &watch{s: s, watched: map[string]bool{}}
	var err error
	if w.w, err = fsnotify.NewWatcher(); err != nil {
		s.log.Warn("certs: no change notifications; looking at the files instead", "every", lookEvery, "error", err)
	} else {
		w.events, w.errors = w.w.Events, w.w.Errors
	}
	w.refresh()
	return w
}

func (w *watch) close() {
	if w.w != nil {
		w.w.Close()
	}
}

// run reads the files again whenever they may have changed, until ctx ends.
func (w *watch) run(ctx context.Context) {
	defer w.close()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	due := time.NewTimer(time.Hour)
	due.Stop()
	waiting := false // for due; never put off, or a busy directory would hide its certificates
	changed := func(after time.Duration) {
		if !waiting {
			waiting = true
			due.Reset(after)
		}
	}
	failed := false // the files were no good just now, and may be complete in a moment
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.events:
			changed(settle)
		case <-w.errors: // events were lost
			changed(settle)
		case <-look.C:
			if w.signature() != w.seen {
				changed(settle)
			}
		case <-due.C:
			waiting = false
			w.refresh() // before reading: what changes from here on is noticed
			switch err := w.s.reload(); {
			case err == nil:
				failed = false
			case failed:
				w.s.refused(err)
				failed = false
			default:
				failed = true
				changed(retryAfter)
			}
		}
	}
}

// refresh watches the directories that the files are in now, by name and where symlinks lead. A
// directory that went away and came back is another one to the system: its name does not tell.
func (w *watch) refresh() {
	w.seen = w.signature()
	if w.w == nil {
		return
	}
	want := map[string]bool{}
	for _, path := range w.s.files.paths() {
		want[filepath.Dir(path)] = true
		if real, err := filepath.EvalSymlinks(path); err == nil {
			want[filepath.Dir(real)] = true
		}
	}
	for dir := range w.watched {
		w.w.Remove(dir)
	}
	clear(w.watched)
	for dir := range want {
		if w.w.Add(dir) == nil { // one that cannot be watched is looked at
			w.watched[dir] = true
		}
	}
}

func (f Files) paths() (all []string) {
	for _, path := range []string{f.Cert, f.Key, f.CA} {
		if path != "" {
			all = append(all, path)
		}
	}
	return all
}

// signature changes when a file is another one or has other contents.
func (w *watch) signature() string {
	var b strings.Builder
	for _, path := range w.s.files.paths() {
		info, err := os.Stat(path)
		if err != nil {
			b.WriteString("none\n")
			continue
		}
		if sys, ok := info.Sys().(*syscall.Stat_t); ok {
			fmt.Fprint(&b, sys.Dev, ":", sys.Ino, " ")
		}
		fmt.Fprintln(&b, info.Size(), info.ModTime().UnixNano(), info.Mode())
	}
	return b.String()
}

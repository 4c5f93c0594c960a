package certs

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/shared/filewatch"
)

const (
	// settle is how long a writer has before the files are read.
	settle = 50 * time.Millisecond
	// retryAfter is how long a writer has to write the second file of a pair.
	retryAfter = 300 * time.Millisecond
	// lookEvery is how often the files are checked without a notification: for file systems without notifications, and
	// symlinks swapped further up the path.
	lookEvery = 500 * time.Millisecond
)

// watch signals a Store when to read again.
type watch struct {
	s    *Store
	w    *filewatch.Watcher
	seen string // signature when the files were last read, or are about to be
}

func newWatch(s *Store) *watch {
	w := &watch{s: s}
	var err error
	if w.w, err = filewatch.New(); err != nil {
		s.log.Warn("certs: no change notifications; looking at the files instead", "every", lookEvery, "error", err)
	}
	w.refresh()
	return w
}

// run reads the files again whenever they may have changed, until ctx ends.
func (w *watch) run(ctx context.Context) {
	defer w.w.Close()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	due := time.NewTimer(time.Hour)
	due.Stop()
	waiting := false // for due; never postponed, or a busy directory would hide its certificates
	changed := func(after time.Duration) {
		if !waiting {
			waiting = true
			due.Reset(after)
		}
	}
	failed := false // the files were just invalid, and may be complete in a moment
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.w.Events:
			changed(settle)
		case <-w.w.Errors: // events were lost
			changed(settle)
		case <-look.C:
			if w.signature() != w.seen {
				changed(settle)
			}
		case <-due.C:
			waiting = false
			w.refresh() // before reading, so that later changes are noticed
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

// refresh watches the directories in which the files are now, by name and where symlinks lead.
func (w *watch) refresh() {
	w.seen = w.signature()
	var dirs []string
	for _, path := range w.s.files.paths() {
		dirs = append(dirs, filepath.Dir(path))
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	w.w.Follow(dirs...)
}

func (f Files) paths() (all []string) {
	for _, path := range []string{f.Cert, f.Key, f.CA} {
		if path != "" {
			all = append(all, path)
		}
	}
	return all
}

// signature changes when a file is replaced or its contents change.
func (w *watch) signature() string {
	var b strings.Builder
	for _, path := range w.s.files.paths() {
		b.WriteString(filewatch.Identity(path) + "\n")
	}
	return b.String()
}

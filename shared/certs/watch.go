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

// watch reads the files again whenever they may have changed, until ctx ends.
func (s *Store) watch(ctx context.Context, w *filewatch.Watcher) {
	defer w.Close()
	for {
		if _, ok := w.Wait(ctx, nil); !ok {
			return
		}
		s.follow(w) // before reading, so that later changes are noticed
		if s.reload() == nil {
			continue
		}
		select { // the files may be complete in a moment
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
		s.follow(w)
		if err := s.reload(); err != nil {
			s.refused(err)
		}
	}
}

// follow watches the directories in which the files are now, by name and where symlinks lead.
func (s *Store) follow(w *filewatch.Watcher) {
	var dirs []string
	for _, path := range s.files.paths() {
		dirs = append(dirs, filepath.Dir(path))
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	w.Follow(dirs...)
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
func (f Files) signature() string {
	var b strings.Builder
	for _, path := range f.paths() {
		b.WriteString(filewatch.Identity(path) + "\n")
	}
	return b.String()
}

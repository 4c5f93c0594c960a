package certs

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"gatehouse/shared/filewatch"
)

const (
	// settle is the time after a change before the files are read, in which a program may finish writing them.
	settle = 50 * time.Millisecond
	// retryAfter is the time that a program has to write the second file of a pair, if the files do not match.
	retryAfter = 300 * time.Millisecond
	// lookEvery is how often the files are checked without a notification. It finds changes in file systems without
	// notifications, and swaps of symlinks further up the path.
	lookEvery = 500 * time.Millisecond
)

// watch reads the files again whenever they may have changed, until ctx ends.
func (s *Store) watch(ctx context.Context, w *filewatch.Watcher) {
	defer w.Close()
	for {
		if _, ok := w.Wait(ctx, nil); !ok {
			return
		}
		s.follow(w) // before reading, so that changes during reading are noticed
		if s.reload() == nil {
			continue
		}
		select { // try again in a moment: the files may be only half written
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

// follow starts watching the directories that have the files: those in their paths, and those to which symlinks lead.
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

// signature returns a text that changes when a file is replaced or its contents change.
func (f Files) signature() string {
	var b strings.Builder
	for _, path := range f.paths() {
		b.WriteString(filewatch.Identity(path) + "\n")
	}
	return b.String()
}

// Package filewatch notices that files may have changed, by the system's notifications for their directories. Where
// there are none (no watches left, some network file systems, a symlink swapped further up the path), its user compares
// the results of Identity from time to time.
//
// It does not read files, and does not wait for a writer to finish.
package filewatch

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// Watcher follows directories. One goroutine calls its methods; another may read the channels.
type Watcher struct {
	// Events and Errors are fsnotify's; an error means that events were lost. On systems without notifications both are
	// nil, and so never deliver.
	Events <-chan fsnotify.Event
	Errors <-chan error

	w       *fsnotify.Watcher // nil without notifications
	watched []string
}

// New always returns a Watcher; the error says why it gets no notifications.
func New() (*Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return &Watcher{}, err
	}
	return &Watcher{w: w, Events: w.Events, Errors: w.Errors}, nil
}

// Follow watches only these directories. A directory that was removed and made again under the same name is a different
// directory to the system: call Follow again. Directories that cannot be watched are left out.
func (w *Watcher) Follow(dirs ...string) {
	if w.w == nil {
		return
	}
	for _, dir := range w.watched {
		w.w.Remove(dir) // fails for a removed directory
	}
	w.watched = slices.DeleteFunc(slices.Compact(slices.Sorted(slices.Values(dirs))),
		func(dir string) bool { return w.w.Add(dir) != nil })
}

// Close ends the notifications.
func (w *Watcher) Close() {
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

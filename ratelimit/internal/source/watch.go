package source

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// kubernetesData is the symlink that Kubernetes renames into place when it updates a volume.
const kubernetesData = "..data"

// watch tells when the files may have changed: by notifications at once, by looking every few
// seconds where there are none.
type watch struct {
	f       *Files
	w       *fsnotify.Watcher // nil where the system has none left
	events  chan fsnotify.Event
	errors  chan error
	watched map[string]bool
	read    string // signature when the files were last read, or about to be
	seen    string // the same, or a later one that a tick found
	swapped bool   // the root, or Kubernetes' link, was made anew since
	tick    *time.Ticker
}

func (f *Files) newWatch() *watch {
	w := &watch{f: f, watched: map[string]bool{}, tick: time.NewTicker(f.o.poll)}
	var err error
	if w.w, err = fsnotify.NewWatcher(); err != nil {
		f.o.Log.Warn("source: no change notifications; looking at the files instead", "every", f.o.poll, "error", err)
	} else {
		w.events, w.errors = w.w.Events, w.w.Errors
	}
	w.refresh()
	return w
}

func (w *watch) close() {
	w.tick.Stop()
	if w.w != nil {
		w.w.Close()
	}
}

// refresh watches what exists now, and takes the signature. A directory that went away and came
// back is another one to the system: its name alone does not tell.
func (w *watch) refresh() {
	w.read, w.swapped = w.signature(), false
	w.seen = w.read
	if w.w == nil {
		return
	}
	dirs := []string{w.f.dir}
	if w.f.o.WatchRoot {
		dirs = append(dirs, filepath.Dir(w.f.o.Root))
	}
	for _, d := range dirs {
		// A directory that does not exist yet is found by looking. Removing first makes the
		// watch follow a name that leads elsewhere now.
		if w.watched[d] {
			w.w.Remove(d)
		}
		w.watched[d] = w.w.Add(d) == nil
	}
}

// wait returns when something changed and has come to rest, or at once when reload says so
// (forced); ok is false when ctx ended.
func (w *watch) wait(ctx context.Context, reload <-chan struct{}) (forced, ok bool) {
	var rest <-chan time.Time // runs once something changed
	var latest time.Time
	changed := func() {
		now := time.Now()
		if rest == nil {
			latest = now.Add(settleMax)
		}
		rest = time.After(min(settle, max(0, latest.Sub(now))))
	}
	for {
		select {
		case <-ctx.Done():
			return false, false
		case <-reload:
			return true, true
		case <-rest:
			return false, true
		case e := <-w.events:
			if w.concerns(e) {
				changed()
			}
		case err := <-w.errors: // events were lost
			w.f.o.Log.Warn("source: change notifications failed; reading the files", "error", err)
			changed()
		case <-w.tick.C:
			if s := w.signature(); s != w.seen {
				w.seen = s
				changed()
			}
		}
	}
}

// concerns says whether an event is a reason to reload.
func (w *watch) concerns(e fsnotify.Event) bool {
	if w.f.anyChange() && (filepath.Dir(e.Name) == w.f.dir || e.Name == w.f.dir) {
		return true
	}
	if !w.f.o.WatchRoot {
		return false
	}
	if !e.Has(fsnotify.Create) && !e.Has(fsnotify.Write) {
		return false
	}
	w.swapped = w.swapped || e.Name == w.f.o.Root || e.Name == filepath.Join(w.f.dir, kubernetesData)
	return w.swapped
}

// signature changes when the directory is another one, and, unless only the root counts, when a
// file in it or behind a symlink in it does.
func (w *watch) signature() string {
	var b strings.Builder
	if w.f.o.WatchRoot {
		to, err := filepath.EvalSymlinks(w.f.o.Root)
		fmt.Fprint(&b, to, err != nil, identity(w.f.o.Root), identity(w.f.dir))
	}
	if !w.f.anyChange() {
		return b.String()
	}
	b.WriteString(identity(w.f.dir))
	entries, err := os.ReadDir(w.f.dir)
	if err != nil {
		return b.String() + " unreadable"
	}
	for _, e := range entries {
		if isYAML(e.Name()) && !leftover(e.Name()) {
			b.WriteString("\n" + e.Name() + " " + identity(filepath.Join(w.f.dir, e.Name())))
		}
	}
	return b.String()
}

// identity tells one file or directory from another, and for files one content from another.
func identity(path string) string {
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

package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"gatehouse/shared/filewatch"
)

// kubernetesData is the symlink that Kubernetes renames into place when it updates a volume.
const kubernetesData = "..data"

// watch reports when the files may have changed: at once by notifications, and by polling every few seconds where there
// are no notifications.
type watch struct {
	f       *Files
	w       *filewatch.Watcher
	read    string // signature when the files were last read, or are about to be
	seen    string // the same, or a later signature that a tick found
	swapped bool   // the root, or Kubernetes' link, was replaced since
	tick    *time.Ticker
}

func (f *Files) newWatch() *watch {
	w := &watch{f: f, tick: time.NewTicker(f.o.poll)}
	var err error
	if w.w, err = filewatch.New(); err != nil {
		f.o.Log.Warn("source: no change notifications; looking at the files instead", "every", f.o.poll, "error", err)
	}
	w.refresh()
	return w
}

func (w *watch) close() {
	w.tick.Stop()
	w.w.Close()
}

// refresh watches the directories that exist now, and takes the signature. Polling finds a directory that does not
// exist yet.
func (w *watch) refresh() {
	w.read, w.swapped = w.signature(), false
	w.seen = w.read
	dirs := []string{w.f.dir}
	if w.f.o.WatchRoot {
		dirs = append(dirs, filepath.Dir(w.f.o.Root))
	}
	w.w.Follow(dirs...)
}

// wait returns when something has changed and then settled, or at once when reload has a value (forced). ok is false
// when ctx has ended.
func (w *watch) wait(ctx context.Context, reload <-chan struct{}) (forced, ok bool) {
	var rest <-chan time.Time // runs after a change
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
		case e := <-w.w.Events:
			if w.concerns(e) {
				changed()
			}
		case err := <-w.w.Errors: // events were lost
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

// concerns reports whether an event is a reason to reload.
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

// signature changes when the directory is replaced and, unless only the root counts, when a file in it or behind a
// symlink in it changes.
func (w *watch) signature() string {
	var b strings.Builder
	if w.f.o.WatchRoot {
		to, err := filepath.EvalSymlinks(w.f.o.Root)
		fmt.Fprint(&b, to, err != nil, filewatch.Identity(w.f.o.Root), filewatch.Identity(w.f.dir))
	}
	if !w.f.anyChange() {
		return b.String()
	}
	b.WriteString(filewatch.Identity(w.f.dir))
	entries, err := os.ReadDir(w.f.dir)
	if err != nil {
		return b.String() + " unreadable"
	}
	for _, e := range entries {
		if isYAML(e.Name()) && !leftover(e.Name()) {
			b.WriteString("\n" + e.Name() + " " + filewatch.Identity(filepath.Join(w.f.dir, e.Name())))
		}
	}
	return b.String()
}

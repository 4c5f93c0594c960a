package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/shared/filewatch"
)

// ReadDir reads dir/*.yaml and *.yml, sorted by name, as Files does; a file is named by its base name. Symlinks are
// followed, and a file to which two of them lead is read once.
//
// It also returns the names that it skipped, sub-directories with a slash, except names that begin with a dot: a
// Kubernetes volume is full of these. Every entry that cannot be read is an error of its own, next to the files that
// can be read. leftovers are files that editors and file managers left behind, dot files or not, which are never read.
func ReadDir(dir string, ignoreDotFiles bool) (files []rulefile.File, skipped, leftovers []string, errs []error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil {
		return nil, nil, nil, []error{fmt.Errorf("source: read the configuration directory: %w", err)}
	}
	seen := map[string]bool{}
	for _, e := range entries {
		name := e.Name()
		if leftover(name) {
			if isYAML(name) {
				leftovers = append(leftovers, name)
			}
			continue
		}
		if strings.HasPrefix(name, ".") && (ignoreDotFiles || !isYAML(name)) {
			continue
		}
		shown := name
		if e.IsDir() {
			shown += "/"
		}
		if !isYAML(name) {
			skipped = append(skipped, shown)
			continue
		}
		path := filepath.Join(dir, name)
		file, real, err := readFile(path)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("source: read %s: %w", path, err))
		case real == "" || seen[real]:
			skipped = append(skipped, shown)
		default:
			seen[real] = true
			files = append(files, rulefile.File{Name: name, Text: file})
		}
	}
	return files, skipped, leftovers, errs
}

// NotRead is the reason logged for skipped names.
const NotRead = "not read: only files named *.yaml or *.yml in the directory itself are, each once"

// leftover reports whether a name is one that Emacs gives its locks (symlinks that lead nowhere), or macOS the
// attributes of copied files (no YAML).
func leftover(name string) bool {
	return strings.HasPrefix(name, ".#") || strings.HasPrefix(name, "._")
}

// Leftover is the reason logged for a skipped leftover.
const Leftover = "not read: a leftover of an editor or file manager, not a file of rules"

// maxFileBytes is far above any set of rules that people maintain.
const maxFileBytes = 64 << 20

// readFile returns the contents of a regular file and the path it resolves to; "" for a directory, or a pipe that would
// never end.
func readFile(path string) (text []byte, real string, err error) {
	if real, err = filepath.EvalSymlinks(path); err != nil {
		return nil, "", err
	}
	info, err := os.Stat(real)
	if err != nil || !info.Mode().IsRegular() {
		return nil, "", err
	}
	if info.Size() > maxFileBytes {
		return nil, "", fmt.Errorf("the file has %d bytes, at most %d are read", info.Size(), maxFileBytes)
	}
	text, err = os.ReadFile(real)
	return text, real, err
}

func isYAML(name string) bool {
	ext := filepath.Ext(name)
	return ext == ".yaml" || ext == ".yml"
}

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

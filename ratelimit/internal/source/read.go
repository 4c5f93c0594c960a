package source

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

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

// watch reports when the files may have changed.
type watch struct {
	*filewatch.Watcher
	f       *Files
	read    string // signature when the files were last read, or are about to be
	swapped bool   // the root, or Kubernetes' link, was replaced since
}

func (f *Files) newWatch() *watch {
	w := &watch{f: f}
	w.Watcher = filewatch.New(filewatch.Options{Name: "source", Log: f.o.Log, Signature: w.signature, Poll: f.o.poll,
		Settle: settle, Most: settleMax, Concerns: w.concerns})
	w.refresh()
	return w
}

// refresh watches the directories that exist now, and takes the signature. Polling finds a directory that does not
// exist yet.
func (w *watch) refresh() {
	w.swapped = false
	dirs := []string{w.f.dir}
	if w.f.o.WatchRoot {
		dirs = append(dirs, filepath.Dir(w.f.o.Root))
	}
	w.read = w.Follow(dirs...)
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

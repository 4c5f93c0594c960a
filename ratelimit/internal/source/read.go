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

// ReadDir reads the files *.yaml and *.yml in a directory, sorted by name, as Files does. Each file gets its base name.
// Symlinks are followed; a file to which two symlinks lead is read once.
//
// skipped has the names of other entries, with a slash at the end for sub-directories, except for names that begin with
// a dot, of which a Kubernetes volume has many. errs has an error for each entry that cannot be read; the other files
// are returned all the same. leftovers has the files that editors and file managers left behind, which are never read,
// whether or not ignoreDotFiles is set.
func ReadDir(dir string, ignoreDotFiles bool) (files []rulefile.File, skipped, leftovers []string, errs []error) {
	entries, err := os.ReadDir(dir) // ReadDir sorts by name
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

// NotRead is the message that is logged with the names of skipped entries.
const NotRead = "not read: only files named *.yaml or *.yml in the directory itself are, each once"

// leftover reports whether a name is that of a lock of Emacs (a symlink that leads nowhere) or of a file in which macOS
// keeps the attributes of a copied file (not YAML).
func leftover(name string) bool {
	return strings.HasPrefix(name, ".#") || strings.HasPrefix(name, "._")
}

// Leftover is the message that is logged with the name of a leftover file.
const Leftover = "not read: a leftover of an editor or file manager, not a file of rules"

// maxFileBytes bounds the size of one file, in bytes. It is far more than any real rule file has.
const maxFileBytes = 64 << 20

// readFile returns the content of a regular file, and the path to which it resolves. real is "" for a directory, and
// for a pipe, which might never end.
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

// kubernetesData is the name of the symlink in a volume that Kubernetes replaces when it updates the volume.
const kubernetesData = "..data"

// watch reports when the files may have changed.
type watch struct {
	*filewatch.Watcher
	f       *Files
	read    string // the signature when the files were read last, or are about to be read
	swapped bool   // set if the root, or the symlink kubernetesData, has been replaced since then
}

func (f *Files) newWatch() *watch {
	w := &watch{f: f}
	w.Watcher = filewatch.New(filewatch.Options{Name: "source", Log: f.o.Log, Signature: w.signature, Poll: f.o.poll,
		Settle: settle, Most: settleMax, Concerns: w.concerns})
	w.refresh()
	return w
}

// refresh starts watching the directories that exist now, and takes their signature. A directory that does not exist
// yet is found by polling.
func (w *watch) refresh() {
	w.swapped = false
	dirs := []string{w.f.dir}
	if w.f.o.WatchRoot {
		dirs = append(dirs, filepath.Dir(w.f.o.Root))
	}
	w.read = w.Follow(dirs...)
}

// concerns reports whether a file system event is a reason to reload.
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

// signature returns a text that changes when the directory is replaced. If any change in the directory is a reason to
// reload, the text also changes when a file in the directory changes, or a file to which a symlink in the directory
// leads.
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

// Package source reads configuration from directories: whole sets of files, one after the other, each passed to one
// function.
//
// It knows directories, symlinks and when they change. It does not know what the files mean,
// whether a set was valid, or what uses it.
package source

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/stats"
)

// Set is one whole configuration as it lay there at one time.
type Set struct {
	// Files in order of their names; none is a valid set.
	Files []rulefile.File
	// Err says why the files could not be read; Files means nothing then.
	Err error
}

// Settings say where the files are and what makes them be read again.
type Settings struct {
	// Rules are read from RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY/*.yaml and *.yml.
	Root string `env:"RUNTIME_ROOT" envDefault:"/srv/runtime_data/current"`
	// Directory below RUNTIME_ROOT; may be empty.
	Subdirectory string `env:"RUNTIME_SUBDIRECTORY"`
	// Directory below that; `.` for that itself.
	AppDirectory string `env:"RUNTIME_APPDIRECTORY" envDefault:"config"`
	// true: files and directories whose names begin with a dot are not read.
	IgnoreDotFiles bool `env:"RUNTIME_IGNOREDOTFILES" envDefault:"false"`
	// true: RUNTIME_ROOT is a symlink and a swap of it reloads; false: any change in the directory does.
	WatchRoot bool `env:"RUNTIME_WATCH_ROOT" envDefault:"true"` // it also reloads at a Kubernetes swap inside the directory
	// true: a reload that finds no file at all is refused; false: it removes every limit, with a loud warning.
	RefuseEmpty bool `env:"RUNTIME_REFUSE_EMPTY" envDefault:"false"`
}

// FilesOptions are what NewFiles needs.
type FilesOptions struct {
	Settings
	Stats *stats.Registry
	// Log may be nil.
	Log *slog.Logger

	poll time.Duration // 0 means pollEvery
}

const (
	// settle is how long nothing may change before the files are read, settleMax how long that
	// may be put off by ever more changes.
	settle    = 100 * time.Millisecond
	settleMax = time.Second
	// retryAfter is how long a writer gets to finish a file that seems incomplete.
	retryAfter = 200 * time.Millisecond
	// pollEvery is how often the directory is read without a notification: file systems that give none, targets of
	// symlinks, directories that do not exist yet.
	pollEvery = 2 * time.Second
)

// Files watches a directory of YAML files.
type Files struct {
	o        FilesOptions
	dir      string // what is read
	reload   chan struct{}
	attempts *stats.Counter // runtime.load_attempts: times the directory was read
	failures *stats.Counter // runtime.load_failures: entries, or directories, that could not be
	values   atomic.Int64   // runtime.num_values: files read

	// Run's own.
	last    fingerprint // of what was handed over last
	applied bool        // something was handed over
	refused bool        // the set handed over last was not taken
	logged  string      // what logIgnored logged last

	leftovers []string // those of the last reading, which have been reported
	told      bool     // whether saved files count has been looked at
}

// fingerprint identifies a set. It stands for the texts, which may be large and are of no use
// once they have been read.
type fingerprint struct {
	files int
	sum   [sha256.Size]byte // of their names and texts
	err   string            // why there is no set; the files are then those of the last good one
}

func fingerprintOf(s Set) fingerprint {
	if s.Err != nil {
		return fingerprint{err: s.Err.Error()}
	}
	h := sha256.New()
	for _, file := range s.Files {
		fmt.Fprintf(h, "%q %d ", file.Name, len(file.Text))
		for piece := range slices.Chunk(file.Text, 64<<10) { // one of 64 MB at once would serve no request meanwhile
			h.Write(piece)
		}
	}
	return fingerprint{files: len(s.Files), sum: [sha256.Size]byte(h.Sum(nil))}
}

// NewFiles reads nothing yet.
func NewFiles(o FilesOptions) *Files {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Stats == nil {
		o.Stats = stats.NewRegistry(stats.Options{})
	}
	o.poll = cmp.Or(o.poll, pollEvery)
	if abs, err := filepath.Abs(o.Root); err == nil {
		o.Root = abs // and clean: a trailing slash would hide the symlink
	}
	f := &Files{
		o:        o,
		dir:      filepath.Join(o.Root, o.Subdirectory, o.AppDirectory),
		reload:   make(chan struct{}, 1),
		attempts: o.Stats.Counter("runtime.load_attempts"),
		failures: o.Stats.Counter("runtime.load_failures"),
	}
	o.Stats.GaugeFunc("runtime.num_values", f.values.Load)
	return f
}

// Reload has the files read and applied even if nothing seems to have changed (SIGHUP). It does
// not wait.
func (f *Files) Reload() {
	select {
	case f.reload <- struct{}{}:
	default: // one is due already
	}
}

// Run hands the present set to apply, and then each new one, until ctx ends; it then returns nil.
// apply runs in this goroutine, one call after the other. Its error is its own business: a set it
// refused is handed over again only when a file has changed, were it only its time or mode, or after
// Reload.
func (f *Files) Run(ctx context.Context, apply func(Set) error) error {
	w := f.newWatch()
	defer w.close()
	f.applyIfChanged(f.read(), apply, true)
	for {
		before := w.read
		forced, ok := w.wait(ctx, f.reload)
		if !ok {
			return nil
		}
		swapped := w.swapped
		w.refresh() // before reading: what changes from here on is noticed
		set := f.read()
		if !forced && unfinished(set) {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(retryAfter):
			}
			w.refresh()
			set = f.read()
		}
		f.applyIfChanged(set, apply, forced || swapped || w.read != before)
	}
}

// read takes the whole directory and counts.
func (f *Files) read() Set {
	f.attempts.Inc()
	files, skipped, leftovers, errs := ReadDir(f.dir, f.o.IgnoreDotFiles)
	if len(errs) > 0 {
		f.failures.Add(uint64(len(errs)))
		if _, err := os.Lstat(f.o.Root); errors.Is(err, fs.ErrNotExist) {
			return Set{Err: fmt.Errorf("source: RUNTIME_ROOT=%q does not exist; rules are read from %s", f.o.Root, f.dir)}
		}
		return Set{Err: errors.Join(errs...)}
	}
	f.warnUnfollowed()
	f.logIgnored(strings.Join(skipped, " "))
	for _, name := range leftovers {
		if !slices.Contains(f.leftovers, name) {
			f.o.Log.Warn("source: "+Leftover, "directory", f.dir, "name", name)
		}
	}
	f.leftovers = leftovers
	for i := range files {
		files[i].Name = f.shown(files[i].Name)
	}
	f.values.Store(int64(len(files)))
	return Set{Files: files}
}

// warnUnfollowed says, once, that a folder is read which nothing swaps: people save files there and wait in vain.
func (f *Files) warnUnfollowed() {
	if f.told || !f.o.WatchRoot {
		return
	}
	f.told = true
	root, err := os.Lstat(f.o.Root)
	if err != nil || root.Mode()&fs.ModeSymlink != 0 {
		return
	}
	if _, err := os.Lstat(filepath.Join(f.dir, kubernetesData)); err == nil {
		return
	}
	f.o.Log.Warn("source: files saved in the directory do not count until SIGHUP: RUNTIME_WATCH_ROOT is true, and "+
		"RUNTIME_ROOT is no symlink that could be swapped; RUNTIME_WATCH_ROOT=false makes saved files count",
		"directory", f.dir)
}

// logIgnored logs, once, what lies in the directory and is not read. Sub-directories get a warning:
// the replaced service reads them.
func (f *Files) logIgnored(skipped string) {
	if skipped == f.logged {
		return
	}
	if f.logged = skipped; skipped == "" {
		return
	}
	level := slog.LevelInfo
	if strings.Contains(skipped, "/") {
		level = slog.LevelWarn
	}
	f.o.Log.Log(context.Background(), level, "source: "+NotRead, "directory", f.dir, "names", skipped)
}

// shown is the name by which messages call a file: with WatchRoot its path below Subdirectory, `/`
// turned into `.`.
func (f *Files) shown(base string) string {
	app := strings.Trim(filepath.ToSlash(filepath.Clean(f.o.AppDirectory)), "/")
	if !f.o.WatchRoot || app == "." || app == "" {
		return base
	}
	return strings.ReplaceAll(app, "/", ".") + "." + base
}

// anyChange says that changes in the directory itself are a reason to reload, not only a swap of the
// root: without WatchRoot, and after a refused set, which people mend where it lies.
func (f *Files) anyChange() bool { return !f.o.WatchRoot || f.refused }

// unfinished reports whether a file may still be being written: it is missing or blank, or its last line has no end.
// Taking such a file for finished costs an error that the next reload corrects.
func unfinished(s Set) bool {
	if s.Err != nil {
		return true
	}
	for _, file := range s.Files {
		if len(bytes.TrimSpace(file.Text)) == 0 || file.Text[len(file.Text)-1] != '\n' {
			return true
		}
	}
	return false
}

// applyIfChanged applies set unless it is what was applied last and no file was touched since: the event may have
// been of another file, or of what had been read already.
func (f *Files) applyIfChanged(set Set, apply func(Set) error, touched bool) {
	if set.Err == nil && len(set.Files) == 0 {
		had := f.last.files > 0
		switch {
		case had && f.o.RefuseEmpty:
			set = Set{Err: fmt.Errorf("source: %s holds no configuration files any more; the rules already loaded "+
				"stay (RUNTIME_REFUSE_EMPTY)", f.dir)}
		case had:
			f.o.Log.Warn("source: NO CONFIGURATION FILES ANY MORE: every limit is gone", "directory", f.dir)
		case !f.applied:
			f.o.Log.Warn("source: no configuration files: nothing is limited", "directory", f.dir)
		}
	}
	now := fingerprintOf(set)
	if !touched && f.applied && now.same(f.last) {
		return
	}
	f.applied = true
	unread := set.Err != nil
	if unread {
		f.last.err = now.err // the files of before are still what a good set is compared with
	} else {
		f.last = now
	}
	f.refused = apply(set) != nil || unread // apply has counted and logged the error
}

// same says that b would change nothing after a.
func (a fingerprint) same(b fingerprint) bool {
	if a.err != "" || b.err != "" {
		return a.err == b.err
	}
	return a == b
}

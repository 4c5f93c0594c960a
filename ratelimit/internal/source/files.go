// Package source reads configuration from directories: whole sets of files, one after the other, each passed to one
// function.
//
// It knows directories, symlinks and when they change. It does not know what the files mean, whether a set was valid,
// or what uses the set.
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

// Set is one whole configuration as it was at one time.
type Set struct {
	// Files are in order of their names; no files at all are a valid set.
	Files []rulefile.File
	// Err is why the files could not be read; Files is not valid then.
	Err error
}

// Settings say where the files are and what makes the daemon read them again.
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
	WatchRoot bool `env:"RUNTIME_WATCH_ROOT" envDefault:"true"` // a Kubernetes swap inside the directory reloads too
	// true: a reload that finds no file at all is refused; false: it removes every limit, with a loud warning.
	RefuseEmpty bool `env:"RUNTIME_REFUSE_EMPTY" envDefault:"false"`
}

// FilesOptions are what NewFiles needs.
type FilesOptions struct {
	Settings
	Stats *stats.Registry
	Log   *slog.Logger

	poll time.Duration // 0 means pollEvery
}

const (
	// settle is how long nothing may change before the files are read; settleMax is how long further changes may delay
	// the reading.
	settle    = 100 * time.Millisecond
	settleMax = time.Second
	// retryAfter is how long a writer has to finish a file that seems incomplete.
	retryAfter = 200 * time.Millisecond
	// pollEvery is how often the directory is read without a notification, for file systems without notifications,
	// targets of symlinks, and directories that do not exist yet.
	pollEvery = 2 * time.Second
)

// Files watches a directory of YAML files.
type Files struct {
	o        FilesOptions
	dir      string // the directory to read
	reload   chan struct{}
	attempts *stats.Counter // runtime.load_attempts: times the directory was read
	failures *stats.Counter // runtime.load_failures: entries or directories that could not be read
	values   atomic.Int64   // runtime.num_values: files read

	// Fields of Run.
	last    fingerprint // of the set passed on last
	applied bool        // a set was passed on
	refused bool        // the set passed on last was refused
	logged  string      // what logIgnored logged last

	leftovers []string // of the last reading; already reported
	told      bool     // warnUnfollowed has run
}

// fingerprint identifies a set. It replaces the texts, which may be large and are of no use after reading.
type fingerprint struct {
	files int
	sum   [sha256.Size]byte // of their names and texts
	err   string            // why there is no set; files are then those of the last valid set
}

func fingerprintOf(s Set) fingerprint {
	if s.Err != nil {
		return fingerprint{err: s.Err.Error()}
	}
	h := sha256.New()
	for _, file := range s.Files {
		fmt.Fprintf(h, "%q %d ", file.Name, len(file.Text))
		for piece := range slices.Chunk(file.Text, 64<<10) { // hashing a file of 64 MB at once would block requests
			h.Write(piece)
		}
	}
	return fingerprint{files: len(s.Files), sum: [sha256.Size]byte(h.Sum(nil))}
}

// NewFiles returns a Files that has not read anything yet.
func NewFiles(o FilesOptions) *Files {
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

// Reload has the files read and applied even if nothing seems to have changed (SIGHUP). It does not wait.
func (f *Files) Reload() {
	select {
	case f.reload <- struct{}{}:
	default: // a reload is already pending
	}
}

// Run passes the present set to apply, and then each new one, until ctx ends; then it returns nil. apply runs in this
// goroutine, one call after the other. Run ignores its error, except that a refused set is passed on again only after
// Reload or when a file has changed, even if only its time or mode.
func (f *Files) Run(ctx context.Context, apply func(Set) error) error {
	w := f.newWatch()
	defer w.Close()
	f.applyIfChanged(f.read(), apply, true)
	for {
		before := w.read
		forced, ok := w.Wait(ctx, f.reload)
		if !ok {
			return nil
		}
		swapped := w.swapped
		w.refresh() // before reading, so that later changes are noticed
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

// read reads the whole directory and counts files and failures.
func (f *Files) read() Set {
	f.attempts.Inc()
	files, skipped, leftovers, errs := ReadDir(f.dir, f.o.IgnoreDotFiles)
	if len(errs) > 0 {
		f.failures.Add(uint64(len(errs)))
		err := errors.Join(errs...)
		if _, missing := os.Lstat(f.o.Root); errors.Is(missing, fs.ErrNotExist) {
			err = fmt.Errorf("source: RUNTIME_ROOT=%q does not exist; rules are read from %s", f.o.Root, f.dir)
		} else if of, ok := errors.AsType[*fs.PathError](err); ok && of.Path == f.dir && errors.Is(of, fs.ErrNotExist) {
			err = fmt.Errorf("%w; want RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY", err)
		}
		return Set{Err: err}
	}
	f.warnUnfollowed()
	f.logIgnored(strings.Join(skipped, " "), len(files) == 0)
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

// warnUnfollowed warns once about a folder that no swap replaces: files saved in the folder would never be loaded.
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

// logIgnored logs once the entries of the directory that are not read. Sub-directories get a warning, since the
// replaced service reads them, and so do files where no file is read: their names may have another ending.
func (f *Files) logIgnored(skipped string, none bool) {
	if skipped == f.logged {
		return
	}
	if f.logged = skipped; skipped == "" {
		return
	}
	level := slog.LevelInfo
	if none || strings.Contains(skipped, "/") {
		level = slog.LevelWarn
	}
	f.o.Log.Log(context.Background(), level, "source: "+NotRead, "directory", f.dir, "names", skipped)
}

// shown returns a file's name in messages: with WatchRoot its path below Subdirectory, with `.` for `/`.
func (f *Files) shown(base string) string {
	app := strings.Trim(filepath.ToSlash(filepath.Clean(f.o.AppDirectory)), "/")
	if !f.o.WatchRoot || app == "." || app == "" {
		return base
	}
	return strings.ReplaceAll(app, "/", ".") + "." + base
}

// anyChange reports whether changes in the directory itself are a reason to reload, and not only a swap of the root:
// without WatchRoot, and after a refused set, which operators repair in place.
func (f *Files) anyChange() bool { return !f.o.WatchRoot || f.refused }

// unfinished reports whether a file may still be being written: it is missing or blank, or its last line has no end.
// Taking such a file as finished costs an error that the next reload corrects.
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

// applyIfChanged applies set unless it equals the set applied last and no file was touched since: the event may have
// concerned another file, or a change that had already been read.
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
		f.last.err = now.err // a later valid set is still compared with the files before
	} else {
		f.last = now
	}
	f.refused = apply(set) != nil || unread // apply has counted and logged the error
}

// same reports whether b would change nothing after a.
func (a fingerprint) same(b fingerprint) bool {
	if a.err != "" || b.err != "" {
		return a.err == b.err
	}
	return a == b
}

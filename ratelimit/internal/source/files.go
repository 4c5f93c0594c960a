// Package source reads configuration files from a directory. Whenever the files change, it reads all of them and passes
// them as one Set to a function.
//
// The package knows directories, symlinks and when they change. It does not know what the files mean, whether a Set was
// valid, or which package uses it.
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

// Set is all configuration files of a directory as they were at one time.
type Set struct {
	// Files are sorted by name. A Set without files is valid.
	Files []rulefile.File
	// Err is the reason why the files could not be read; Files must not be used then.
	Err error
}

// Settings are the environment variables that say where the files are and when they are read again.
type Settings struct {
	// Rules are read from RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY/*.yaml and *.yml.
	Root string `env:"RUNTIME_ROOT" envDefault:"/srv/runtime_data/current"`
	// Directory below RUNTIME_ROOT; may be empty.
	Subdirectory string `env:"RUNTIME_SUBDIRECTORY"`
	// Directory below RUNTIME_SUBDIRECTORY that has the files; `.` for RUNTIME_SUBDIRECTORY itself.
	AppDirectory string `env:"RUNTIME_APPDIRECTORY" envDefault:"config"`
	// true: files and directories whose names begin with a dot are not read.
	IgnoreDotFiles bool `env:"RUNTIME_IGNOREDOTFILES" envDefault:"false"`
	// true: RUNTIME_ROOT is a symlink, and replacing the symlink reloads; false: any change in the directory reloads.
	WatchRoot bool `env:"RUNTIME_WATCH_ROOT" envDefault:"true"` // a Kubernetes swap inside the directory reloads too
	// true: a reload that finds no file at all is refused, and the limits stay; false: it removes every limit, with a
	// loud warning.
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
	// settle is the time without changes after which the files are read, so that a sequence of changes is read once.
	// settleMax bounds how long further changes can delay reading.
	settle    = 100 * time.Millisecond
	settleMax = time.Second
	// retryAfter is how long Run waits before it reads again if a file seems incomplete, so that the program that
	// writes the file can finish it.
	retryAfter = 200 * time.Millisecond
	// pollEvery is how often the directory is read without a notification. It finds changes in file systems without
	// notifications, changes behind symlinks, and directories that did not exist before.
	pollEvery = 2 * time.Second
)

// Files reads a directory of YAML files and watches it for changes.
type Files struct {
	o        FilesOptions
	dir      string // the directory to read
	reload   chan struct{}
	attempts *stats.Counter // runtime.load_attempts: number of times the directory was read
	failures *stats.Counter // runtime.load_failures: number of entries or directories that could not be read
	values   atomic.Int64   // runtime.num_values: number of files read

	// The following fields are used by Run only.
	last    fingerprint // of the Set that was passed on last
	applied bool        // set once a Set has been passed on
	refused bool        // set if the Set that was passed on last was refused
	logged  string      // the names that logIgnored logged last

	leftovers []string // leftover files of the last reading, which have been logged
	told      bool     // set once warnUnfollowed has run
}

// fingerprint identifies the content of a Set, so that the texts, which may be large, need not be kept.
type fingerprint struct {
	files int
	sum   [sha256.Size]byte // hash of the files' names and texts
	err   string            // why the files could not be read; files is then that of the last valid Set
}

func fingerprintOf(s Set) fingerprint {
	if s.Err != nil {
		return fingerprint{err: s.Err.Error()}
	}
	h := sha256.New()
	for _, file := range s.Files {
		fmt.Fprintf(h, "%q %d ", file.Name, len(file.Text))
		for piece := range slices.Chunk(file.Text, 64<<10) { // in pieces: hashing 64 MB at once would block requests
			h.Write(piece)
		}
	}
	return fingerprint{files: len(s.Files), sum: [sha256.Size]byte(h.Sum(nil))}
}

// NewFiles returns a Files that has not read anything yet.
func NewFiles(o FilesOptions) *Files {
	o.poll = cmp.Or(o.poll, pollEvery)
	if abs, err := filepath.Abs(o.Root); err == nil {
		o.Root = abs // filepath.Abs also removes a trailing slash, which would hide that the root is a symlink
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

// Reload makes Run read the files and pass them on even if nothing seems to have changed, as on SIGHUP. Reload does not
// wait until Run has done so.
func (f *Files) Reload() {
	select {
	case f.reload <- struct{}{}:
	default: // a reload is pending already
	}
}

// Run passes the present Set to apply, and then each new one, until ctx ends; then it returns nil. apply runs in this
// goroutine, one call after the other. If apply returns an error, the Set counts as refused: it is passed on again only
// after Reload, or when a file has changed, even if only in its time or mode.
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
		w.refresh() // before reading, so that changes during reading are noticed
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

// read reads the whole directory, and counts files and failures for statistics.
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

// warnUnfollowed warns once if RUNTIME_WATCH_ROOT is true but the root is a plain directory. A reload would need a swap
// of a symlink, so files saved in the directory would never be loaded.
func (f *Files) warnUnfollowed() {
	if f.told || !f.o.WatchRoot {
		return
	}
	f.told = true
	root, err := os.Lstat(f.o.Root)
	if err != nil || root.Mode()&fs.ModeSymlink != 0 {
		return
	}
	for _, volume := range []string{f.o.Root, filepath.Join(f.o.Root, f.o.Subdirectory), f.dir} {
		if _, err := os.Lstat(filepath.Join(volume, kubernetesData)); err == nil {
			return
		}
	}
	f.o.Log.Warn("source: files saved in the directory do not count until SIGHUP: RUNTIME_WATCH_ROOT is true, and "+
		"RUNTIME_ROOT is no symlink that could be swapped; RUNTIME_WATCH_ROOT=false makes saved files count",
		"directory", f.dir)
}

// logIgnored logs the entries of the directory that are not read, once for the same names. It warns about
// sub-directories, which envoyproxy/ratelimit reads, and, if no file is read, about files with the wrong ending.
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

// shown returns the name that messages give a file. With RUNTIME_WATCH_ROOT it is the file's path below
// RUNTIME_SUBDIRECTORY, with `.` instead of `/`.
func (f *Files) shown(base string) string {
	app := strings.Trim(filepath.ToSlash(filepath.Clean(f.o.AppDirectory)), "/")
	if !f.o.WatchRoot || app == "." || app == "" {
		return base
	}
	return strings.ReplaceAll(app, "/", ".") + "." + base
}

// anyChange reports whether any change to the files in the directory causes a reload. If not, only replacing the
// symlink RUNTIME_ROOT does, or the swap inside a Kubernetes volume. Any change counts if RUNTIME_WATCH_ROOT is false,
// and also while the files that were read last are refused, since operators then correct them in place.
func (f *Files) anyChange() bool { return !f.o.WatchRoot || f.refused }

// unfinished reports whether a program may still be writing a file: it is missing, is blank, or does not end with a
// newline. Waiting only costs time; reading a file too early logs an error, which the next reload corrects.
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

// applyIfChanged passes set to apply, unless it equals the Set passed on last and no file was touched since. An equal
// Set is read if an event concerned another file, or a change that had been read already.
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
		f.last.err = now.err // so that a later valid Set is still compared with the files before the error
	} else {
		f.last = now
	}
	f.refused = apply(set) != nil || unread // apply has counted and logged the error
}

// same reports whether a Set with fingerprint b changes nothing if the Set before it had fingerprint a.
func (a fingerprint) same(b fingerprint) bool {
	if a.err != "" || b.err != "" {
		return a.err == b.err
	}
	return a == b
}

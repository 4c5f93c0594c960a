package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gatehouse/ratelimit/internal/stats"
	"gatehouse/shared/await"
	"gatehouse/shared/logtest"
	"gatehouse/shared/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a directory that a Files watches, and what it handed over.
type world struct {
	t    *testing.T
	root string // RUNTIME_ROOT
	f    *Files
	log  logtest.Buffer

	mu   sync.Mutex
	sets []string
}

// start runs a Files on root/config. It polls only once an hour unless o says otherwise, so that what a test sees came
// by a notification.
func start(t *testing.T, root string, o FilesOptions) *world {
	t.Helper()
	w := &world{t: t, root: root}
	o.Root, o.AppDirectory, o.Log = root, "config", slog.New(slog.NewTextHandler(&w.log, nil))
	o.Stats = stats.NewRegistry(stats.Options{})
	if o.poll == 0 {
		o.poll = time.Hour
	}
	w.f = NewFiles(o)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.f.Run(ctx, w.apply); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

func (w *world) apply(s Set) error {
	text := ""
	if s.Err != nil {
		text = "error: " + s.Err.Error()
	}
	for _, f := range s.Files {
		text += f.Name + "=" + strings.TrimSpace(string(f.Text)) + " "
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sets = append(w.sets, strings.TrimSpace(text))
	if strings.Contains(text, "mistake") {
		return errors.New("refused")
	}
	return s.Err
}

// TestFiles_notFollowed: who saves a file in a folder that is not followed is told so, once, and which setting changes
// that; a missing root is named by its setting.
func TestFiles_notFollowed(t *testing.T) {
	const warning = "files saved in the directory do not count"
	f := func(prepare func(root string), o FilesOptions, want int) {
		t.Helper()
		root := t.TempDir() + "/root"
		prepare(root)
		w := start(t, root, o)
		await.True(t, "the first set", func() bool { return w.count() == 1 })
		w.f.Reload()
		await.True(t, "the second set", func() bool { return w.count() == 2 })
		log := w.log.String()
		if got := strings.Count(log, warning); got != want {
			t.Errorf("%d warnings, want %d:\n%s", got, want, log)
		}
		if want == 1 && !(strings.Contains(log, "RUNTIME_WATCH_ROOT=false") && strings.Contains(log, "level=WARN")) {
			t.Errorf("the warning names no setting:\n%s", log)
		}
	}
	folder := func(path string) {
		must.Succeed(t, os.MkdirAll(path, 0o755))
		must.Succeed(t, os.WriteFile(path+"/a.yaml", []byte("1\n"), 0o644))
	}
	watched := FilesOptions{Settings: Settings{WatchRoot: true}}
	plain := func(root string) { folder(root + "/config") }
	f(plain, watched, 1)
	f(plain, FilesOptions{}, 0)
	f(func(root string) { // a symlink, which is swapped
		folder(root + ".1/config")
		must.Succeed(t, os.Symlink(root+".1", root))
	}, watched, 0)
	for _, volume := range []string{"", "/sub", "/sub/config"} { // where Kubernetes swaps ..data
		f(func(root string) {
			folder(root + "/sub/config")
			folder(root + volume + "/..1")
			must.Succeed(t, os.Symlink("..1", root+volume+"/..data"))
		}, FilesOptions{Settings: Settings{WatchRoot: true, Subdirectory: "sub"}}, 0)
	}

	f(func(string) {}, watched, 0)
	root := t.TempDir()
	write(t, root+"/config/a.yml.txt", "1\n")
	ending := start(t, root, watched)
	await.True(t, "the file of another ending is named", func() bool {
		return strings.Contains(ending.log.String(), "level=WARN msg=\"source: not read: only files named *.yaml or *.yml") &&
			strings.Contains(ending.log.String(), "names=a.yml.txt")
	})
	root += "/missing"
	w := start(t, root, watched)
	await.True(t, "the first set", func() bool { return w.count() == 1 })
	if got, want := w.last(), `error: source: RUNTIME_ROOT="`+root+`" does not exist`; !strings.HasPrefix(got, want) {
		t.Errorf("a missing root: %s, want %s", got, want)
	}
}

func (w *world) last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.sets) == 0 {
		return "nothing yet"
	}
	return w.sets[len(w.sets)-1]
}

func (w *world) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sets)
}

// until waits for the set that want describes.
func (w *world) until(want string) {
	w.t.Helper()
	await.True(w.t, "the set "+want, func() bool { return w.last() == want },
		func() string { return "the last is " + w.last() })
}

func mkdir(t *testing.T, dir string) string {
	t.Helper()
	must.Succeed(t, os.MkdirAll(dir, 0o755))
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	mkdir(t, filepath.Dir(path))
	must.Succeed(t, os.WriteFile(path, []byte(text), 0o644))
}

// TestDirectory goes through every kind of change in the directory itself.
func TestDirectory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "config")
	write(t, dir+"/b.yaml", "1\n")
	w := start(t, root, FilesOptions{})
	w.until("b.yaml=1")
	write(t, dir+"/b.yaml", "2\n")
	w.until("b.yaml=2")
	write(t, dir+"/a.yml", "1\n")
	w.until("a.yml=1 b.yaml=2")
	write(t, dir+"/new", "3\n")
	must.Succeed(t, os.Rename(dir+"/new", dir+"/a.yml"))
	w.until("a.yml=3 b.yaml=2")
	must.Succeed(t, os.Rename(dir+"/b.yaml", root+"/b.yaml")) // renamed away
	w.until("a.yml=3")
	must.Succeed(t, os.Rename(root+"/b.yaml", dir+"/b.yaml"))
	w.until("a.yml=3 b.yaml=2")
	must.Succeed(t, os.Remove(dir+"/b.yaml"))
	w.until("a.yml=3")
	must.Succeed(t, os.Remove(dir+"/a.yml"))
	w.until("")
	if !strings.Contains(w.log.String(), "NO CONFIGURATION FILES ANY MORE") {
		t.Errorf("no warning: %s", &w.log)
	}
}

// TestDirectory_replacedInRootMode: so is a directory below the root that only SIGHUP would read.
func TestDirectory_replacedInRootMode(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/config/a.yaml", "1\n")
	write(t, root+"/next/a.yaml", "2\n")
	w := start(t, root, FilesOptions{Settings: Settings{WatchRoot: true}, poll: 20 * time.Millisecond})
	w.until("config.a.yaml=1")
	must.Succeed(t, os.Rename(root+"/config", root+"/old"))
	must.Succeed(t, os.Rename(root+"/next", root+"/config"))
	w.until("config.a.yaml=2")
}

func TestDirectory_replaced(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/config/a.yaml", "1\n")
	w := start(t, root, FilesOptions{poll: 20 * time.Millisecond})
	w.until("a.yaml=1")
	must.Succeed(t, os.Rename(root+"/config", root+"/old"))
	w.until("error: source: read the configuration directory: open " + root + "/config: no such file or directory; " +
		"want RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY")
	write(t, root+"/config", "a file\n")
	w.until("error: source: read the configuration directory: open " + root + "/config: not a directory")
	must.Succeed(t, os.Remove(root+"/config"))
	write(t, root+"/next/a.yaml", "2\n")
	must.Succeed(t, os.Rename(root+"/next", root+"/config"))
	w.until("a.yaml=2")
	write(t, root+"/config/a.yaml", "3\n") // the new directory is the one watched
	w.until("a.yaml=3")
}

func TestDirectory_appearsLater(t *testing.T) {
	t.Parallel()
	for _, watchRoot := range []bool{false, true} {
		parent := t.TempDir()
		w := start(t, parent+"/some/root",
			FilesOptions{Settings: Settings{WatchRoot: watchRoot}, poll: 20 * time.Millisecond})
		w.until(`error: source: RUNTIME_ROOT="` + parent + `/some/root" does not exist; rules are read from ` + parent +
			"/some/root/config")
		write(t, parent+"/some/root/config/a.yaml", "1\n")
		w.until(w.f.shown("a.yaml") + "=1")
	}
}

// TestKubernetes: a ConfigMap volume, mounted at the directory or at the root, changes by one rename of ..data.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		root, o := t.TempDir(), FilesOptions{Settings: Settings{WatchRoot: i%2 == 1}}
		volume, entry, file := root, "config", "config/a.yaml"
		if i < 2 {
			volume, entry, file = mkdir(t, root+"/config"), "a.yaml", "a.yaml"
		} else {
			o.poll = 10 * time.Millisecond
		}
		swap := func(version, text string) {
			write(t, volume+"/.."+version+"/"+file, text)
			must.Succeed(t, os.Symlink(".."+version, volume+"/..tmp"))
			must.Succeed(t, os.Rename(volume+"/..tmp", volume+"/..data"))
		}
		swap("1", "1\n")
		must.Succeed(t, os.Symlink("..data/"+entry, volume+"/"+entry))
		w := start(t, root, o)
		w.until(w.f.shown("a.yaml") + "=1")
		swap("2", "2\n")
		w.until(w.f.shown("a.yaml") + "=2")
		swap("3", "3\n")
		w.until(w.f.shown("a.yaml") + "=3")
	}
}

// TestRootSwap: RUNTIME_ROOT is a symlink that is renamed into place, or made again.
func TestRootSwap(t *testing.T) {
	t.Parallel()
	for _, slash := range []string{"", "/"} {
		parent := t.TempDir()
		for _, v := range []string{"1", "2", "3"} {
			write(t, parent+"/v"+v+"/config/a.yaml", v+"\n")
		}
		must.Succeed(t, os.Symlink("v1", parent+"/current"))
		w := start(t, parent+"/current"+slash, FilesOptions{Settings: Settings{WatchRoot: true}})
		w.until("config.a.yaml=1")
		must.Succeed(t, os.Symlink("v2", parent+"/next"))
		must.Succeed(t, os.Rename(parent+"/next", parent+"/current"))
		w.until("config.a.yaml=2")
		must.Succeed(t, os.Remove(parent+"/current"))
		must.Succeed(t, os.Symlink("v3", parent+"/current"))
		w.until("config.a.yaml=3")
	}
}

// TestRootSwap_changesInsideWait: with RUNTIME_WATCH_ROOT only a swap, or SIGHUP, counts.
func TestRootSwap_changesInsideWait(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	write(t, parent+"/current/config/a.yaml", "1\n")
	w := start(t, parent+"/current", FilesOptions{Settings: Settings{WatchRoot: true}})
	w.until("config.a.yaml=1")
	write(t, parent+"/current/config/a.yaml", "2\n")
	w.f.Reload()
	w.until("config.a.yaml=2")
	if n := w.count(); n != 2 {
		t.Errorf("%d sets, want 2", n)
	}
}

// TestReload_appliesTheSameAgain: SIGHUP does, and so does touching a file, as in the replaced service. Other entries
// of the directory do not.
func TestReload_appliesTheSameAgain(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	path := root + "/config/a.yaml"
	write(t, path, "1\n")
	w := start(t, root, FilesOptions{})
	w.until("a.yaml=1")
	sets := 1
	f := func(what string, touch func()) {
		t.Helper()
		touch()
		sets++
		await.True(t, fmt.Sprintf("%s: %d sets", what, sets), func() bool { return w.count() == sets }, func() string {
			return fmt.Sprint("there are ", w.count())
		})
	}
	f("SIGHUP", w.f.Reload)
	f("chmod", func() { must.Succeed(t, os.Chmod(path, 0o600)) })
	f("touch", func() { must.Succeed(t, os.Chtimes(path, time.Time{}, time.Unix(1e9, 0))) })
	f("a copy renamed over it", func() {
		write(t, root+"/copy", "1\n")
		must.Succeed(t, os.Rename(root+"/copy", path))
	})
	reads := w.f.attempts.Value()
	write(t, root+"/config/notes.txt", "1\n")
	await.True(t, "read again", func() bool { return w.f.attempts.Value() > reads })
	f("new bytes", func() { write(t, path, "2\n") })
}

// TestUnfinished: a file that is caught empty or half written is given time.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	path := root + "/config/a.yaml"
	write(t, path, "1\n")
	w := start(t, root, FilesOptions{})
	w.until("a.yaml=1")
	for i, half := range []string{"", "  \n", "dom"} {
		reads := w.f.attempts.Value()
		write(t, path, half)
		await.True(t, "read", func() bool { return w.f.attempts.Value() > reads })
		whole := fmt.Sprint("domain", i)
		write(t, path, whole+"\n")
		w.until("a.yaml=" + whole)
	}
	w.mu.Lock()
	sets := slices.Clone(w.sets)
	w.mu.Unlock()
	for _, set := range sets {
		if set == "a.yaml=" || set == "a.yaml=dom" {
			t.Errorf("handed over unfinished: %q", set)
		}
	}
	// What stays empty is handed over in the end.
	write(t, path, "")
	w.until("a.yaml=")
}

// TestRootSwap_toTheSame: a swap of the root applies what lies there, be it the same.
func TestRootSwap_toTheSame(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	write(t, top+"/v1/config/a.yaml", "1\n")
	must.Succeed(t, os.Symlink("v1", top+"/current"))
	w := start(t, top+"/current", FilesOptions{Settings: Settings{WatchRoot: true}})
	w.until("config.a.yaml=1")
	must.Succeed(t, os.Symlink("v1", top+"/next"))
	must.Succeed(t, os.Rename(top+"/next", top+"/current"))
	await.True(t, "applied", func() bool { return w.count() == 2 })
}

func TestRefuseEmpty(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/config/a.yaml", "1\n")
	w := start(t, root, FilesOptions{Settings: Settings{RefuseEmpty: true}})
	w.until("a.yaml=1")
	must.Succeed(t, os.Remove(root+"/config/a.yaml"))
	w.until("error: source: " + root +
		"/config holds no configuration files any more; the rules already loaded stay (RUNTIME_REFUSE_EMPTY)")
	write(t, root+"/config/a.yaml", "1\n")
	w.until("a.yaml=1")
}

// TestPolling: without notifications, and behind a symlink that leads elsewhere, looking finds it.
func TestPolling(t *testing.T) {
	t.Parallel()
	root, elsewhere := t.TempDir(), t.TempDir()
	write(t, elsewhere+"/real", "1\n")
	mkdir(t, root+"/config")
	must.Succeed(t, os.Symlink(elsewhere+"/real", root+"/config/a.yaml"))
	w := start(t, root, FilesOptions{poll: 20 * time.Millisecond})
	w.until("a.yaml=1")
	write(t, elsewhere+"/real", "22\n")
	w.until("a.yaml=22")
}

func TestStatistics(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root+"/config/a.yaml", "1\n")
	write(t, root+"/config/b.yml", "1\n")
	w := start(t, root, FilesOptions{})
	w.until("a.yaml=1 b.yml=1")
	must.Succeed(t, os.Symlink("nowhere", root+"/config/c.yaml"))
	must.Succeed(t, os.Symlink("nowhere", root+"/config/d.yaml"))
	w.until("error: source: read " + root + "/config/c.yaml: lstat " + root +
		"/config/nowhere: no such file or directory\n" +
		"source: read " + root + "/config/d.yaml: lstat " + root + "/config/nowhere: no such file or directory")
	got := map[string]int64{}
	w.f.o.Stats.Each(func(name string, _ stats.Kind, v int64) { got[name] = v })
	if got["runtime.num_values"] != 2 || got["runtime.load_attempts"] < 2 || got["runtime.load_failures"] < 2 {
		t.Errorf("%v", got)
	}
}

func TestReadDir(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.yaml", "a.yml", ".hidden.yaml", "notes.txt", "c.yaml.bak", "sub/d.yaml",
		"dir.yaml/e.yaml"} {
		write(t, filepath.Join(dir, name), name)
	}
	must.Succeed(t, os.Symlink("b.yaml", dir+"/z.yaml"))
	must.Succeed(t, syscall.Mkfifo(dir+"/pipe.yaml", 0o600))
	must.Succeed(t, os.Symlink("ann@host.1234:5", dir+"/.#a.yml"))
	must.Succeed(t, os.WriteFile(dir+"/._b.yaml", []byte{0, 5, 22, 7}, 0o600))
	must.Succeed(t, os.WriteFile(dir+"/._notes.txt", nil, 0o600))
	f := func(ignoreDot bool, wantFiles, wantSkipped string) {
		t.Helper()
		files, skipped, leftovers, errs := ReadDir(dir, ignoreDot)
		names := ""
		for _, f := range files {
			names += f.Name + " "
		}
		if names != wantFiles || strings.Join(skipped, " ") != wantSkipped ||
			strings.Join(leftovers, " ") != ".#a.yml ._b.yaml" || len(errs) > 0 {
			t.Errorf("read %q, skipped %q, leftovers %q, errors %v", names, skipped, leftovers, errs)
		}
	}
	f(false, ".hidden.yaml a.yml b.yaml ", "c.yaml.bak dir.yaml/ notes.txt pipe.yaml sub/ z.yaml")
	f(true, "a.yml b.yaml ", "c.yaml.bak dir.yaml/ notes.txt pipe.yaml sub/ z.yaml")
	if _, _, _, errs := ReadDir(dir+"/none", false); len(errs) != 1 || !strings.Contains(errs[0].Error(), dir+"/none") {
		t.Errorf("got %v", errs)
	}
}

func TestShown(t *testing.T) {
	f := func(o FilesOptions, want, wantDir string) {
		t.Helper()
		o.Stats = stats.NewRegistry(stats.Options{})
		x := NewFiles(o)
		if got := x.shown("basic.yaml"); got != want || x.dir != wantDir {
			t.Errorf("%q in %q, want %q in %q", got, x.dir, want, wantDir)
		}
	}
	f(FilesOptions{Settings: Settings{Root: "/srv", AppDirectory: "config", WatchRoot: true}}, "config.basic.yaml",
		"/srv/config")
	f(FilesOptions{Settings: Settings{Root: "/srv/", Subdirectory: "rl", AppDirectory: "a/b/", WatchRoot: true}},
		"a.b.basic.yaml", "/srv/rl/a/b")
	f(FilesOptions{Settings: Settings{Root: "/srv", Subdirectory: "rl", AppDirectory: "config"}}, "basic.yaml",
		"/srv/rl/config")
	f(FilesOptions{Settings: Settings{Root: "/srv", WatchRoot: true}}, "basic.yaml", "/srv")
}

// TestRootMode_correctedInPlace: a refused set may be corrected in place, without swapping the root.
// Once a set is in force, edits in place count for nothing again.
func TestRootMode_correctedInPlace(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	write(t, parent+"/v1/config/a.yaml", "mistake\n")
	must.Succeed(t, os.Symlink("v1", parent+"/current"))
	w := start(t, parent+"/current", FilesOptions{Settings: Settings{WatchRoot: true}})
	w.until("config.a.yaml=mistake")
	write(t, parent+"/v1/config/a.yaml", "good\n")
	w.until("config.a.yaml=good")
	write(t, parent+"/v1/config/a.yaml", "edited in place\n")
	write(t, parent+"/v2/config/a.yaml", "swapped\n")
	must.Succeed(t, os.Symlink("v2", parent+"/next"))
	must.Succeed(t, os.Rename(parent+"/next", parent+"/current"))
	w.until("config.a.yaml=swapped")
	if w.count() != 3 {
		t.Errorf("sets handed over: %q", w.sets)
	}
}

// Each file that an editor left behind gets one warning, once, and no error.
func TestFiles_leftovers(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.yaml", "domain: a\n")
	must.Succeed(t, os.Symlink("ann@host.1234:5", dir+"/.#a.yaml"))
	write(t, dir+"/._a.yaml", "\x00\x05\x16\x07")
	var log strings.Builder
	f := NewFiles(FilesOptions{Settings: Settings{Root: dir}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Stats: stats.NewRegistry(stats.Options{})})
	for range 2 {
		if set := f.read(); set.Err != nil || len(set.Files) != 1 {
			t.Fatalf("%+v", set)
		}
	}
	if got := log.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "level=WARN") ||
		!strings.Contains(got, "name=.#a.yaml") || !strings.Contains(got, "name=._a.yaml") {
		t.Error(got)
	}
}

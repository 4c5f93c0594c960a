package imagetest

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Swap writes files into a folder as a kubelet writes a ConfigMap or a secret: each name is a symlink through ..data to
// the present version of all files, and one rename of ..data swaps the version.
func Swap(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	version, err := os.MkdirTemp(dir, "..2026_")
	must(err)
	must(os.Chmod(version, 0o755))
	for name, text := range files {
		must(os.WriteFile(filepath.Join(version, name), []byte(text), 0o644))
	}
	must(os.Symlink(filepath.Base(version), filepath.Join(dir, "..data_tmp")))
	must(os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	for name := range files {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			must(os.Symlink("..data/"+name, filepath.Join(dir, name)))
		}
	}
	old, err := filepath.Glob(filepath.Join(dir, "..2026_*"))
	must(err)
	for _, o := range old {
		if o != version {
			must(os.RemoveAll(o))
		}
	}
}

// List returns the modes of all files below root, by path, and for symlinks the targets.
func List(t testing.TB, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		switch {
		case err != nil:
		case d.IsDir():
			if info.Mode().Perm() != 0o755 {
				all[name] = info.Mode().String()
			}
		case info.Mode()&fs.ModeSymlink != 0:
			all[name], err = os.Readlink(path)
		default:
			all[name] = info.Mode().String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// WantRoot fails the test unless a daemon's root consists of the given programs and the files that all images have.
func WantRoot(t testing.TB, root string, want map[string]string, daemon string) {
	t.Helper()
	notices := "usr/share/doc/gatehouse-" + daemon + "/NOTICES"
	want["etc/ssl/certs/ca-certificates.crt"], want[notices] = "-rw-r--r--", "-rw-r--r--"
	for path, mode := range List(t, root) {
		if mode != want[path] {
			t.Errorf("%s is %s, want %q", path, mode, want[path])
		}
		delete(want, path)
	}
	for path := range want {
		t.Errorf("there is no %s", path)
	}
	text, err := os.ReadFile(filepath.Join(root, notices))
	if err != nil {
		t.Fatal(err)
	}
	modules, err := os.ReadFile(filepath.Join(Top(), daemon, "deps.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for module := range strings.FieldsSeq(string(modules) + " Go") {
		if !strings.Contains(string(text), "\n==== "+module+"\n") {
			t.Errorf("NOTICES lacks %s", module)
		}
	}
}

// Snapshot returns a text with the names, modes and times of all files below the given folders.
func Snapshot(t testing.TB, roots ...string) string {
	t.Helper()
	var all strings.Builder
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			if err == nil {
				fmt.Fprintln(&all, path, info.Mode(), info.Size(), info.ModTime())
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all.String()
}

// counter is a Writer that counts bytes.
type counter int

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// Compressed returns the size in bytes that the root has as a compressed image layer.
func Compressed(t testing.TB, root string) int {
	t.Helper()
	var size counter
	z := gzip.NewWriter(&size)
	w := tar.NewWriter(z)
	if err := w.AddFS(os.DirFS(root)); err != nil {
		t.Fatal(fmt.Errorf("tar: %w", err))
	}
	w.Close()
	z.Close()
	return int(size)
}

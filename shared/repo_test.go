// Package shared_test checks what holds for the repository as a whole: who may import whom, that
// every package says what it is, and that the READMEs lead somewhere.
package shared_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "gatehouse"

// floors is the order of the daemons' rooms: a package imports only what lies on a lower floor.
var floors = map[string]int{
	"ratelimit/internal/printable": 0,
	"ratelimit/internal/rls":       1, "ratelimit/internal/stats": 1,
	"ratelimit/internal/limits": 2, "ratelimit/internal/counter": 2, "ratelimit/internal/pull": 2,
	"ratelimit/internal/grpctls": 1,
	"ratelimit/internal/decide":  3,
	"ratelimit/internal/source":  4, "ratelimit/internal/source/xds": 4,
	"ratelimit/internal/service": 5,
	"ratelimit/internal/server":  6,
	"ratelimit":                  7,

	"auth/internal/token": 0, "auth/internal/secret": 0, "auth/internal/password": 0, "auth/internal/redirect": 0, "auth/internal/address": 0,
	"auth/internal/mail": 0, "auth/internal/store": 1,
	"auth/internal/provider": 1,
	"auth/internal/keys":     2, "auth/internal/mailbox": 2,
	"auth/internal/outbox":  3,
	"auth/internal/account": 3,
	"auth/internal/httpapi": 4,
	"auth":                  5,
}

// goFiles are all Go files of the repository by their path from its root.
func goFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	walk(t, ".go", func(path string) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", path), nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			t.Error(err)
			return
		}
		files[path] = f
	})
	return files
}

// walk calls f for each file of the working tree whose name ends so.
func walk(t *testing.T, ending string, f func(path string)) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (strings.HasPrefix(name, ".") && name != ".." || name == "bin" || name == "testdata") {
			return filepath.SkipDir
		}
		if !d.IsDir() && strings.HasSuffix(name, ending) {
			f(filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator))))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mayImport is the wall between the daemons and, inside one, the order of its rooms.
func mayImport(from, to string, test bool) bool {
	top := func(path string) string { return strings.SplitN(path, "/", 2)[0] }
	if to == "migrations" {
		return from == "auth/internal/store"
	}
	if top(to) == "shared" {
		return true
	}
	if top(from) != top(to) || top(from) == "bench" {
		return false
	}
	above, known := floors[from]
	below, known2 := floors[to]
	return test || !known || !known2 || below < above
}

func TestImports(t *testing.T) {
	for path, file := range goFiles(t) {
		from := filepath.ToSlash(filepath.Dir(path))
		for _, i := range file.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			to, ours := strings.CutPrefix(imported, module+"/")
			if ours && !mayImport(from, to, strings.HasSuffix(path, "_test.go")) {
				t.Errorf("%s imports %s", path, to)
			}
		}
	}
	f := func(from, to string, want bool) {
		t.Helper()
		if got := mayImport(from, to, false); got != want {
			t.Errorf("mayImport(%s, %s) = %v, want %v", from, to, got, want)
		}
	}
	f("auth", "ratelimit/internal/rls", false)
	f("bench", "ratelimit/internal/rls", false)
	f("shared/httpx", "auth/internal/token", false)
	f("auth/internal/account", "migrations", false)
	f("auth/internal/store", "migrations", true)
	f("bench", "shared/child", true)
	f("ratelimit/internal/decide", "ratelimit/internal/limits", true)
	f("ratelimit/internal/limits", "ratelimit/internal/decide", false)
	f("ratelimit/internal/limits", "ratelimit/internal/counter", false)
}

// TestPackageComments wants one package comment in each folder that has Go files.
func TestPackageComments(t *testing.T) {
	comments := map[string]int{}
	for path, file := range goFiles(t) {
		dir := filepath.Dir(path)
		comments[dir] += 0
		if file.Doc != nil {
			comments[dir]++
		}
	}
	for dir, n := range comments {
		if n == 0 {
			t.Errorf("%s: no package comment", dir)
		}
	}
}

func TestTopLevel(t *testing.T) {
	allowed := []string{
		"auth", "ratelimit", "shared", "bench", "loadtest", "migrations", "go.mod", "go.sum", "Makefile", "README.md",
		".ci", ".dockerignore", ".git", ".gitignore", // and what .gitignore names:
		"bin", ".run",
	}
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(allowed, e.Name()) && !strings.HasSuffix(e.Name(), ".prof") && !strings.HasSuffix(e.Name(), ".test") {
			t.Errorf("%s does not belong at the top level", e.Name())
		}
	}
}

func TestREADME(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 150 {
		t.Errorf("README.md has %d lines, want at most 150", n)
	}
	for _, want := range []string{"make run", "make test", "bin/ratelimit client"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("README.md does not name %q", want)
		}
	}
}

// TestLinks follows every link of a Markdown file that leads into the repository.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	walk(t, ".md", func(path string) {
		text, err := os.ReadFile(filepath.Join("..", path))
		if err != nil {
			t.Error(err)
			return
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			if _, err := os.Stat(filepath.Join("..", filepath.Dir(path), target)); err != nil {
				t.Errorf("%s links to %s, which is not there", path, target)
			}
		}
	})
}

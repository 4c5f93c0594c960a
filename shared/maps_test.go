package shared_test

import (
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// packages are the folders below a folder that have Go files, but for those that only tests import.
func packages(t *testing.T, below string) (all []string) {
	t.Helper()
	for file := range goFiles(t) {
		dir, ok := strings.CutPrefix(path.Dir(file), below)
		if ok && dir != "" && !strings.HasSuffix(dir, "test") && !strings.HasSuffix(file, "_test.go") {
			all = append(all, dir)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func compareNames(t *testing.T, page string, got, want []string) {
	t.Helper()
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("%s lacks %s", page, name)
		}
	}
	for _, name := range got {
		if !slices.Contains(want, name) {
			t.Errorf("%s has %s, which is not there", page, name)
		}
	}
}

func readPage(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(path.Join("..", page))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRooms compares the tables of rooms with the packages of each daemon.
func TestRooms(t *testing.T) {
	codeSpan := regexp.MustCompile("`([^`]+)`")
	for _, daemon := range []string{"auth", "ratelimit"} {
		page := daemon + "/docs/code.md"
		_, table, _ := strings.Cut(readPage(t, page), "\n| Room")
		table, _, _ = strings.Cut(table, "\n\n")
		var got []string
		for _, row := range strings.Split(table, "\n")[2:] {
			for _, m := range codeSpan.FindAllStringSubmatch(strings.Split(row, "|")[1], -1) {
				got = append(got, m[1])
			}
		}
		compareNames(t, page, got, packages(t, daemon+"/internal/"))
	}
}

// TestMap compares the map of the root's README with the packages of shared and, without the rooms in rooms, of both
// daemons.
func TestMap(t *testing.T) {
	_, block, _ := strings.Cut(readPage(t, "README.md"), "## The map\n\n```\n")
	block, _, _ = strings.Cut(block, "```")
	var got []string
	top := ""
	for line := range strings.Lines(block) {
		names, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		list := strings.Split(names, ", ")
		if !strings.HasPrefix(line, " ") {
			top = list[0]
			continue
		}
		folder := path.Join(top, path.Dir(strings.TrimSuffix(list[0], "/"))) // the others lie next to the first
		for _, name := range list {
			got = append(got, path.Join(folder, path.Base(name)))
		}
	}
	got = slices.DeleteFunc(got, func(name string) bool {
		return !strings.Contains(name, "/internal/") && !strings.HasPrefix(name, "shared/") || strings.HasSuffix(name, "test")
	})
	var want []string
	for _, below := range []string{"auth/internal/", "ratelimit/internal/", "shared/"} {
		for _, name := range packages(t, below) {
			if !strings.Contains(name, "/") {
				want = append(want, below+name)
			}
		}
	}
	compareNames(t, "README.md", got, want)
}

// TestPages_replacedService: a reader learns on each page which service is meant.
func TestPages_replacedService(t *testing.T) {
	for daemon, name := range map[string]string{"auth": "supabase/auth", "ratelimit": "envoyproxy/ratelimit"} {
		pages, err := fs.Glob(os.DirFS(".."), daemon+"/docs/*.md")
		if err != nil || len(pages) == 0 {
			t.Fatal(pages, err)
		}
		for _, page := range append(pages, daemon+"/README.md") {
			before, after, used := strings.Cut(strings.ReplaceAll(readPage(t, page), "\n", " "), "replaced service")
			if used && !strings.Contains(before+after[:min(len(after), len(name)+4)], name) {
				t.Errorf("%s: the first \"replaced service\" is not followed by its name, %s", page, name)
			}
		}
	}
}

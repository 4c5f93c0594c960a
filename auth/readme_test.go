package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// matches are the first groups of a pattern in a file.
func matches(t *testing.T, file, pattern string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	return all
}

// TestREADME_routes compares the table with the routes that are served, in their order.
func TestREADME_routes(t *testing.T) {
	served := matches(t, "internal/httpapi/routes.go", `mux\.Handle\("([A-Z]+ /[^"]*)"`)
	listed := matches(t, "README.md", "(?m)^\\| `([A-Z]+ /[^`]*)` \\|")
	if d := cmp.Diff(served, listed); d != "" || len(served) == 0 {
		t.Error(d)
	}
}

// TestREADME_dependencies compares the table with deps.txt.
func TestREADME_dependencies(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Dependencies\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var listed []string
	for _, m := range regexp.MustCompile("`([a-z.]+\\.[a-z]+/[^`]*)`").FindAllStringSubmatch(section, -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(listed)
	if d := cmp.Diff(matches(t, "deps.txt", `(?m)^(.+)$`), listed); d != "" {
		t.Error(d)
	}
}

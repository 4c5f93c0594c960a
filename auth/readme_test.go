package main

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/auth/internal/mail"
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

// TestREADME_variables compares the table of templates' variables with what there is: each kind once, and every
// variable.
func TestREADME_variables(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n| Kind | Variables |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var kinds, want []string
	for _, m := range regexp.MustCompile(`[A-Z]+(_[A-Z]+)+|\b[A-Z]{6,}\b`).FindAllString(table, -1) {
		kinds = append(kinds, m)
	}
	for _, k := range mail.Kinds {
		want = append(want, k.Setting())
	}
	if d := cmp.Diff(want, kinds); d != "" {
		t.Error(d)
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(table, -1) {
		listed[m[1]] = true
	}
	there := map[string]bool{}
	for f := range reflect.TypeFor[mail.Vars]().Fields() {
		there[f.Name] = true
	}
	if d := cmp.Diff(there, listed); d != "" {
		t.Error(d)
	}
}

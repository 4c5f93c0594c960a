package test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gatehouse/auth/internal/mail"
	"gatehouse/shared/must"
)

// daemonDir is the daemon's folder. Tests of its pages name files as seen from there.
const daemonDir = ".."

// document is the text of README.md or of a page in docs/.
func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(daemonDir, path))
	must.Succeed(t, err)
	return string(text)
}

// glob is filepath.Glob for the daemon's folder.
func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(daemonDir, pattern))
	must.Succeed(t, err)
	for i, path := range paths {
		if paths[i], err = filepath.Rel(daemonDir, path); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// documents are README.md and the pages in docs/ by their path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, path := range append(glob(t, "docs/*.md"), "README.md") {
		texts[path] = document(t, path)
	}
	return texts
}

// TestDocs_length keeps each page short enough to be read at one sitting. The tables of routes and settings are
// as long as they have to be.
func TestDocs_length(t *testing.T) {
	for path, text := range documents(t) {
		most := 300
		switch path {
		case "README.md":
			most = 120
		case "docs/api.md", "docs/settings.md":
			continue
		}
		if n := strings.Count(text, "\n"); n > most {
			t.Errorf("%s has %d lines, want at most %d", path, n, most)
		}
	}
}

// matches are the first groups of a pattern in a file.
func matches(t *testing.T, file, pattern string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(daemonDir, file))
	must.Succeed(t, err)
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	return all
}

// TestDocs_routes compares the table with the routes that are served, in their order.
func TestDocs_routes(t *testing.T) {
	served := matches(t, "internal/httpapi/routes.go", `\tat\("([A-Z]+ /[^"]*)"`)
	listed := matches(t, "docs/api.md", "(?m)^\\| `([A-Z]+ /[^`]*)` \\|")
	if d := cmp.Diff(served, listed); d != "" || len(served) == 0 {
		t.Error(d)
	}
}

// TestDocs_dependencies compares the table with deps.txt.
func TestDocs_dependencies(t *testing.T) {
	_, section, _ := strings.Cut(document(t, "docs/design.md"), "\n## Dependencies\n")
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

// TestDocs_variables compares the table of templates' variables with what there is: each kind once, and every
// variable.
func TestDocs_variables(t *testing.T) {
	_, table, _ := strings.Cut(document(t, "docs/mail.md"), "\n| Kind | Variables |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var want []string
	kinds := regexp.MustCompile(`[A-Z]+(_[A-Z]+)+|\b[A-Z]{6,}\b`).FindAllString(table, -1)
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
	for _, name := range mail.VariableNames() {
		there[name] = true
	}
	if d := cmp.Diff(there, listed); d != "" {
		t.Error(d)
	}
}

// TestDocs_whatDiffers: who comes with the client library finds the table of differences first, and in it linking and
// malformed refresh tokens.
func TestDocs_whatDiffers(t *testing.T) {
	_, library, _ := strings.Cut(document(t, "docs/api.md"), "\n## Client library\n\n")
	if !strings.HasPrefix(library, "[What differs](differences.md)") {
		t.Errorf("docs/api.md, \"Client library\", begins otherwise: %.80q", library)
	}
	table, _, _ := strings.Cut(document(t, "docs/differences.md"), "\n## ")
	for _, row := range []string{
		`\n\| Malformed refresh token \|.*validation_failed`,
		`\n\| Linking and unlinking by hand \|.*AUTH_SECURITY_MANUAL_LINKING_ENABLED=true`,
		`\n\| Sign-in by a provider, .*AUTH_MAILER_NOTIFICATIONS_IDENTITY_LINKED_ENABLED=true`,
	} {
		if !regexp.MustCompile(row).MatchString(table) {
			t.Errorf("docs/differences.md lacks %s", row)
		}
	}
}

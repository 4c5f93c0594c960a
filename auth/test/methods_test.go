package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gatehouse/shared/must"
)

// TestClientLibrary_methods: each method that the installed library publishes is called by a case of e2e/, or
// docs/api.md says that it is answered as disabled or calls no server.
func TestClientLibrary_methods(t *testing.T) {
	t.Parallel()
	node, modules := clientLibrary(t)
	cmd := exec.CommandContext(t.Context(), node, "methods.mjs")
	cmd.Dir = clientFolder(t, modules)
	out, err := cmd.Output()
	must.Succeed(t, err)
	cases := ""
	paths, err := filepath.Glob("e2e/*.mjs")
	must.Succeed(t, err)
	for _, path := range append(paths, "e2e/browser/passkeys.mjs") {
		text, err := os.ReadFile(path)
		must.Succeed(t, err)
		cases += strings.NewReplacer("admin().", "admin.", "admins.", "admin.").Replace(string(text))
	}
	_, section, _ := strings.Cut(document(t, "docs/api.md"), "\n## Client library\n")
	section, _, _ = strings.Cut(section, "\n## ")
	named := map[string]bool{}
	for _, heading := range []string{"- Answered as disabled: ", "- Call no server, or are the library's own: "} {
		_, line, ok := strings.Cut(section, "\n"+heading)
		if !ok {
			t.Fatalf("docs/api.md has no item %q", heading)
		}
		line, _, _ = strings.Cut(line, "\n- ")
		for _, m := range regexp.MustCompile("`([\\w.*]+)`").FindAllStringSubmatch(line, -1) {
			named[m[1]] = true
		}
	}
	used, methods := map[string]bool{}, strings.Fields(string(out))
	for _, method := range methods {
		name := method
		if i := strings.LastIndexByte(method, '.'); !named[name] && i > 0 {
			name = method[:i] + ".*"
		}
		// A method of something is called on it by its name: admin.createUser, mfa.enroll. Browsers get the name.
		called := regexp.MustCompile(`(?:[\w)]\.` + regexp.QuoteMeta(method) + `\(|'` + regexp.QuoteMeta(method) + `')`)
		if strings.Contains(method, ".") {
			called = regexp.MustCompile(`\b` + regexp.QuoteMeta(method) + `['(]`)
		}
		switch is := called.MatchString(cases); {
		case named[name]:
			used[name] = true
		case !is:
			t.Errorf("no case calls %s, and docs/api.md does not name it", method)
		}
	}
	for name := range named {
		if !used[name] {
			t.Errorf("docs/api.md names %s, which the library does not have", name)
		}
	}
	if len(methods) < 60 {
		t.Errorf("%d methods", len(methods))
	}
}

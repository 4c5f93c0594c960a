package shared_test

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestMakeHelp has each target of the Makefile in make help, with what it takes.
func TestMakeHelp(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "-s", "help")
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	makefile := readPage(t, "Makefile")
	_, phony, _ := strings.Cut(makefile, "\n.PHONY: ")
	phony, _, _ = strings.Cut(phony, "\n")
	takes := regexp.MustCompile(`\b(seconds?|minutes?|FUZZTIME)\b`)
	said := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		name, does, _ := strings.Cut(line, " ")
		said[name] = takes.MatchString(does)
	}
	for _, target := range strings.Fields(phony) {
		if !said[target] {
			t.Errorf("make help lacks %s, or how long it takes:\n%s", target, out)
		}
	}
}

// TestMakeImage_noBuilder says what is missing before it compiles anything.
func TestMakeImage_noBuilder(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "-s", "image", "DOCKER=nobody builds")
	cmd.Dir = ".."
	if out, err := cmd.CombinedOutput(); err == nil || !strings.HasPrefix(string(out), "there is no nobody: DOCKER=") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestCommunityPages: who reports a hole learns which releases get fixes, and that the address is not set yet.
func TestCommunityPages(t *testing.T) {
	for page, parts := range map[string][]string{
		".github/CONTRIBUTING.md": {"make test", "make help", "auth/README.md", "ratelimit/README.md"},
		".github/SECURITY.md":     {"## Which releases get fixes", "## How to report", "no address yet", "owners"},
	} {
		text := readPage(t, page)
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s does not have %q", page, part)
			}
		}
	}
}

// TestSharedPorts: where both daemons share a machine, the ports of their defaults meet, and both read PORT. The pages
// say what to set.
func TestSharedPorts(t *testing.T) {
	for _, page := range []string{"README.md", "auth/docs/settings.md", "ratelimit/docs/settings.md"} {
		text := strings.Join(strings.Fields(readPage(t, page)), " ")
		if !strings.Contains(text, "share a machine") || !strings.Contains(text, "AUTH_API_PORT") {
			t.Errorf("%s does not say what to set where both daemons share a machine", page)
		}
	}
}

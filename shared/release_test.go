package shared_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gatehouse/shared/must"
)

// What make release refuses: changed files, another Go, a tag without its heading, below the newest one, or final while
// there is no licence.
func TestRelease_refusals(t *testing.T) {
	t.Parallel()
	needProgram(t, "git", "git")
	for name, test := range map[string]struct{ before, want string }{
		"a commit":         {"", ""},
		"changed files":    {"echo more >>README.md", "changed files"},
		"a new file":       {"echo more >new", "changed files"},
		"another Go":       {"sed -i 's/^go=.*/go=go1.20/' .ci/release && git commit -qam x", "releases are built with go1.20"},
		"a candidate":      {"git tag v0.1.0-rc1 && " + heading("v0.1.0-rc1") + " && git tag -f v0.1.0-rc1", ""},
		"without heading":  {"git tag v0.2.0-rc1", "has no heading ## v0.2.0-rc1"},
		"below the newest": {"git tag v0.0.9 && git tag v0.1.0 HEAD~1", "v0.0.9 is below v0.1.0"},
		"below, the rc":    {"git tag v0.1.0-rc1 && git tag v0.1.0 HEAD~1", "v0.1.0-rc1 is below v0.1.0"},
		"no licence":       {heading("v9.0.0") + " && git tag v9.0.0", "no LICENSE"},
		"with a licence":   {"echo free >LICENSE && git add LICENSE && " + heading("v9.0.0") + " && git tag v9.0.0", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := releasable(t)
			if out, err := inRepo(dir, "sh", "-c", test.before+"\ntrue"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			out, err := inRepo(dir, ".ci/release", "check")
			if (err == nil) != (test.want == "") || !strings.Contains(out, test.want) {
				t.Errorf("%v: %s; want %q", err, out, test.want)
			}
		})
	}
}

// heading is the line that adds a version to both changelogs.
func heading(version string) string {
	return "echo '## " + version + "' | tee -a auth/CHANGELOG.md >>ratelimit/CHANGELOG.md && git commit -qam x"
}

// releasable is a repository that has what the script looks at, and two commits.
func releasable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{".ci/release", "auth/CHANGELOG.md", "ratelimit/CHANGELOG.md", "README.md", ".gitignore"} {
		text, err := os.ReadFile(filepath.Join("..", name))
		must.Succeed(t, err)
		must.Succeed(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must.Succeed(t, os.WriteFile(filepath.Join(dir, name), text, 0o755))
	}
	version, err := exec.Command("go", "env", "GOVERSION").Output() // whichever Go tests run with
	must.Succeed(t, err)
	if out, err := inRepo(dir, "sh", "-c", "sed -i 's/^go=.*/go="+strings.TrimSpace(string(version))+"/' .ci/release && "+
		"git init -q && git add . && git commit -qm one && git commit -q --allow-empty -m two"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

func inRepo(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.org", "GIT_COMMITTER_NAME=t",
		"GIT_COMMITTER_EMAIL=t@example.org", "GIT_CONFIG_GLOBAL=/dev/null")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

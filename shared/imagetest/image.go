// Package imagetest runs the daemons' images in tests without a container runtime. The script .ci/root lays out the
// root of an image, and bubblewrap runs it in a sandbox with a network of its own, as the daemon's Dockerfile says.
//
// It stands in for a container runtime and a kubelet. On machines that forbid namespaces, tests are skipped with the
// reason.
package imagetest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// Image is the image of a daemon: the folder that is its root, and the settings in its Dockerfile.
type Image struct {
	Root            string
	Entrypoint, Cmd []string
	Env             []string // each NAME=value
	User            string
}

// Top returns the folder of this repository.
var Top = sync.OnceValue(func() string {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		panic(err)
	}
	return filepath.Dir(strings.TrimSpace(string(out)))
})

// built has, for each daemon whose root this test binary has tried to lay out, the error or nil.
var (
	buildMu sync.Mutex
	built   = map[string]error{}
)

// New builds the image of a daemon. Its root is a copy for t alone, which every user may read.
func New(t testing.TB, daemon string) Image {
	t.Helper()
	if testing.Short() {
		t.Skip("builds an image")
	}
	laid := filepath.Join(Top(), ".run", "root", daemon)
	buildMu.Lock()
	err, done := built[daemon]
	if !done {
		var out []byte
		cmd := exec.Command(filepath.Join(Top(), ".ci", "root"), daemon, runtime.GOARCH, laid)
		if out, err = cmd.CombinedOutput(); err != nil {
			t.Logf("%s", out)
		}
		built[daemon] = err
	}
	buildMu.Unlock()
	if err != nil {
		t.Fatalf(".ci/root %s: %v", daemon, err)
	}
	image := Parse(t, filepath.Join(Top(), daemon, "Dockerfile"))
	image.Root = filepath.Join(Folder(t), "root")
	// Use cp, which keeps file modes as the image does; os.CopyFS would apply the umask.
	if out, err := exec.Command("cp", "-a", laid, image.Root).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	return image
}

// Folder returns a temporary folder that, unlike t.TempDir's, every user may read.
func Folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "image")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Parse reads a Dockerfile that consists of the few instructions that the daemons' have. Any other instruction fails
// the test.
func Parse(t testing.TB, file string) (i Image) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	list := func(words string) (all []string) {
		if err := json.Unmarshal([]byte(words), &all); err != nil {
			t.Errorf("%s: %s is not the form of a JSON array, and there is no shell: %v", file, words, err)
		}
		return all
	}
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		instruction, words, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch instruction {
		case "", "#", "EXPOSE", "ARG", "LABEL":
		case "FROM":
			if words != "scratch" {
				t.Errorf("%s: FROM %s, want scratch", file, words)
			}
		case "COPY":
			if words != ". /" {
				t.Errorf("%s: COPY %s, want the whole root", file, words)
			}
		case "ENV":
			i.Env = append(i.Env, words)
		case "USER":
			i.User = words
		case "ENTRYPOINT":
			i.Entrypoint = list(words)
		case "CMD":
			i.Cmd = list(words)
		default:
			t.Errorf("%s: there is no %s in images of ours", file, instruction)
		}
	}
	return i
}

// Argv returns the command line of a container's program. first is the manifest's entrypoint (Docker) or command
// (Kubernetes), and rest is its command or args; nil if the manifest has none. A manifest with an entrypoint of its own
// does not get the image's CMD.
func (i Image) Argv(first, rest []string) []string {
	switch {
	case first != nil:
		return append(append([]string{}, first...), rest...)
	case rest != nil:
		return append(append([]string{}, i.Entrypoint...), rest...)
	}
	return append(append([]string{}, i.Entrypoint...), i.Cmd...)
}

package shared_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"gatehouse/shared/imagetest"
	"gatehouse/shared/must"
	"gatehouse/shared/systemdtest"
)

var shippedDaemons = []string{"auth", "ratelimit"}

// needProgram skips t without a program that make test does not install.
func needProgram(t *testing.T, name, from string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skipf("%s is missing: apt-get install %s", name, from)
	}
}

// exposure has systemd's own judge verify a unit; its words, and how exposed the service is.
func exposure(t *testing.T, text string) (complaints string, exposed float64) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gatehouse.service")
	text = regexp.MustCompile(`(?m)^ExecStart=.*$`).ReplaceAllString(text, "ExecStart=/bin/true")
	must.Succeed(t, os.WriteFile(file, []byte(text), 0o644))
	verify, _ := exec.Command("systemd-analyze", "verify", "--man=no", file).CombinedOutput()
	out, _ := exec.Command("systemd-analyze", "security", "--offline=true", "--no-pager", file).CombinedOutput()
	level := regexp.MustCompile(`Overall exposure level for \S+: ([\d.]+)`).FindSubmatch(out)
	if level == nil {
		t.Skipf("systemd-analyze judges no unit here: %s", out)
	}
	exposed, err := strconv.ParseFloat(string(level[1]), 64)
	must.Succeed(t, err)
	return string(verify), exposed
}

// The units are without a complaint and hardly exposed; mutations of them are not.
func TestUnits(t *testing.T) {
	t.Parallel()
	_, err := exec.LookPath("systemd-analyze")
	must.Have(t, err)
	unit := func(daemon string) string {
		return filepath.Join("..", daemon, "deploy", "systemd", "gatehouse-"+daemon+".service")
	}
	for _, daemon := range shippedDaemons {
		_, text := systemdtest.Read(t, unit(daemon))
		if complaints, exposed := exposure(t, text); complaints != "" || exposed > 1.5 {
			t.Errorf("%s: exposure %v, %s", daemon, exposed, complaints)
		}
	}
	for _, oldnew := range [][]string{{"CapabilityBoundingSet=\n", ""}, {"DynamicUser=yes", "User=root", "User=gatehouse-auth", ""},
		{"RestrictNamespaces=yes", "RestrictNamespaces=no"}, {"ProtectHome=yes", "ProtectHomes=yes"}, {"Type=notify", "Type=notfy"}} {
		_, text := systemdtest.Read(t, unit("auth"), oldnew...)
		if complaints, exposed := exposure(t, text); complaints == "" && exposed <= 1.5 {
			t.Errorf("%q instead of %q: no complaint, exposure %v", oldnew[1], oldnew[0], exposed)
		}
	}
}

// Two packages of one root are equal, and one installs, upgrades with a changed settings file, which stays, and leaves
// nothing when it is purged.
func TestPackages(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the daemons")
	}
	needProgram(t, "dpkg-deb", "dpkg")
	for _, daemon := range shippedDaemons {
		t.Run(daemon, func(t *testing.T) {
			t.Parallel()
			root, dir := imagetest.New(t, daemon).Root, t.TempDir()
			build := func(version, file string) string {
				t.Helper()
				file = filepath.Join(dir, file)
				cmd := exec.Command("../.ci/package", daemon, "amd64", root, version, file)
				cmd.Env = append(os.Environ(), "SOURCE_DATE_EPOCH=1700000000")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				return file
			}
			first := build("v0.1.0-rc1", "first.deb")
			if !bytes.Equal(contents(t, first), contents(t, build("v0.1.0-rc1", "again.deb"))) {
				t.Error("two packages of one root differ")
			}
			host := newHost(t)
			host.dpkg(t, "--install", first)
			settings, program := "/etc/gatehouse/"+daemon+".env", "/usr/bin/gatehouse-"+daemon
			for file, mode := range map[string]os.FileMode{settings: 0o640, program: 0o755,
				"/usr/lib/systemd/system/gatehouse-" + daemon + ".service": 0o644,
				"/usr/share/doc/gatehouse-" + daemon + "/copyright":        0o644,
				"/usr/share/doc/gatehouse-" + daemon + "/changelog.gz":     0o644} {
				if info, err := os.Stat(host.root + file); err != nil || info.Mode() != mode {
					t.Errorf("%s: %v %v", file, info, err)
				}
			}
			for line := range strings.Lines(string(contents(t, host.root+settings))) {
				if !strings.HasPrefix(line, "#") {
					t.Errorf("%s sets something: %s", settings, line)
				}
			}
			must.Succeed(t, os.WriteFile(host.root+settings, []byte("LOG_LEVEL=debug\n"), 0o640))
			host.dpkg(t, "--install", build("v0.1.0", "next.deb"))
			if got := string(contents(t, host.root+settings)); got != "LOG_LEVEL=debug\n" {
				t.Errorf("after the upgrade %s is %q", settings, got)
			}
			host.dpkg(t, "--remove", "gatehouse-"+daemon)
			if _, err := os.Stat(host.root + settings); err != nil {
				t.Error(err)
			}
			host.dpkg(t, "--purge", "gatehouse-"+daemon)
			if left := host.files(t); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

func contents(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	must.Succeed(t, err)
	return b
}

// host is an empty folder that packages are installed into.
type host struct{ root string }

func newHost(t *testing.T) host {
	t.Helper()
	h := host{t.TempDir()}
	for _, dir := range []string{"updates", "info", "triggers"} {
		must.Succeed(t, os.MkdirAll(filepath.Join(h.root, "var/lib/dpkg", dir), 0o755))
	}
	for _, file := range []string{"status", "available"} {
		must.Succeed(t, os.WriteFile(filepath.Join(h.root, "var/lib/dpkg", file), nil, 0o644))
	}
	return h
}

func (h host) dpkg(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command("dpkg", append([]string{"--root=" + h.root, "--log=" + h.root + "/var/lib/dpkg/log",
		"--force-script-chrootless", "--force-not-root", "--force-architecture"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("dpkg %v: %v\n%s", args, err, out)
	}
}

// files are those outside of dpkg's own folder.
func (h host) files(t *testing.T) (all []string) {
	t.Helper()
	err := filepath.WalkDir(h.root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(path, filepath.Join(h.root, "var/lib/dpkg")) {
			all = append(all, path)
		}
		return err
	})
	must.Succeed(t, err)
	return all
}

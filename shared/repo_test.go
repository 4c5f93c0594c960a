// Package shared_test checks what holds for the repository as a whole: which package may import which, that every
// package has a comment, and that the READMEs lead somewhere.
package shared_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gatehouse/shared/must"
)

const module = "gatehouse"

// floors is the order of the daemons' packages: a package imports only what lies on a lower floor. It has every package
// of the daemons; what only tests import is marked by its name.
var floors = map[string]int{
	"ratelimit/internal/printable": 0, "ratelimit/internal/siphash": 0, "ratelimit/internal/dnstest": 0,
	"ratelimit/internal/doctest": 0, "ratelimit/internal/sfvtest": 0,
	"ratelimit/internal/rls": 1, "ratelimit/internal/stats": 1, "ratelimit/internal/grpctls": 1,
	"ratelimit/internal/limits/network": 0, "ratelimit/internal/limits/calendar": 0,
	"ratelimit/internal/overlimit": 1, "ratelimit/internal/counter": 1,
	"ratelimit/internal/limits": 2, "ratelimit/internal/promexport": 2,
	"ratelimit/internal/limits/rulefile": 3, "ratelimit/internal/decide": 3,
	"ratelimit/internal/observe": 3, "ratelimit/internal/counter/link": 3, "ratelimit/internal/counter/memory": 3,
	"ratelimit/internal/counter/countertest": 3, "ratelimit/internal/modeltest": 3,
	"ratelimit/internal/counter/redis": 4, "ratelimit/internal/counter/memcached": 4,
	"ratelimit/internal/source": 4, "ratelimit/internal/source/xds": 4, "ratelimit/internal/source/xds/xdstest": 4,
	"ratelimit/internal/service": 5,
	"ratelimit/internal/h2grpc":  6,
	"ratelimit/internal/server":  7,
	"ratelimit/internal/config":  8,
	"ratelimit/internal/daemon":  9,
	"ratelimit/internal/cli":     10,
	"ratelimit":                  11,

	"auth/internal/secret": 0, "auth/internal/password": 0, "auth/internal/redirect": 0, "auth/internal/address": 0,
	"auth/internal/totp": 0, "auth/internal/locale": 0, "auth/internal/webauthn": 0,
	"auth/internal/clock": 0, "auth/internal/jsontext": -1,
	"auth/internal/outbound": 0, "auth/internal/mail/smtptest": 0,
	"auth/internal/sms/smstest": 0, "auth/internal/captcha/captchatest": 0,
	"auth/internal/token": 1, "auth/internal/mail": 1, "auth/internal/store": 1, "auth/internal/captcha": 1,
	"auth/internal/takeover": 2, "auth/internal/mirror": 2, "auth/internal/former": 1, "auth/internal/former/formertest": 2,
	"auth/internal/keys": 2, "auth/internal/pages": 2, "auth/internal/mailbox": 2, "auth/internal/hook": 2, "auth/internal/provider": 2,
	"auth/internal/sms": 2, "auth/internal/store/storetest": 2, "auth/internal/webauthn/webauthntest": 1,
	"auth/internal/outbox": 3, "auth/internal/account/refusal": 3,
	"auth/internal/account/flow": 4,
	"auth/internal/account":      5, "auth/internal/account/oauth": 5, "auth/internal/account/factor": 5,
	"auth/internal/account/admin": 5, "auth/internal/account/passkey": 5,
	"auth/internal/httpapi": 6,
	"auth/internal/config":  7, "auth/internal/console": 7,
	"auth/internal/daemon": 8,
	"auth/internal/cli":    9,
	"auth":                 10,
}

// TestFloors: the table has every package of the daemons that has more than tests, and no other.
func TestFloors(t *testing.T) {
	there := map[string]bool{}
	for file := range goFiles(t) {
		dir := path.Dir(file)
		if daemon, _, _ := strings.Cut(dir, "/"); (daemon == "auth" || daemon == "ratelimit") &&
			!strings.HasSuffix(file, "_test.go") {
			there[dir] = true
		}
	}
	for dir := range there {
		if _, known := floors[dir]; !known {
			t.Errorf("%s is not in floors: on which floor does it lie?", dir)
		}
	}
	for dir := range floors {
		if !there[dir] {
			t.Errorf("floors has %s, which is not there", dir)
		}
	}
}

// goFiles are all Go files of the repository by their path from its root.
func goFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	walk(t, ".go", func(path string) {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", path), nil,
			parser.ImportsOnly|parser.ParseComments)
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
		if _, err := os.Stat(filepath.Join(path, "go.mod")); d.IsDir() && path != ".." && err == nil {
			return filepath.SkipDir // a module of its own
		}
		if !d.IsDir() && strings.HasSuffix(name, ending) {
			f(filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator))))
		}
		return nil
	})
	must.Succeed(t, err)
}

// mayImport is the wall between the daemons and, inside one, the order of its packages.
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
			must.Succeed(t, err)
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
	f("auth/internal/account/oauth", "auth/internal/account/flow", true)
	f("auth/internal/account/flow", "auth/internal/account/oauth", false)
	f("auth/internal/account/oauth", "auth/internal/account", false) // rooms on one floor: never each other
	f("auth/internal/account", "auth/internal/account/oauth", false)
	f("bench", "shared/subprocess", true)
	f("ratelimit/internal/decide", "ratelimit/internal/limits", true)
	f("ratelimit/internal/limits", "ratelimit/internal/decide", false)
	f("ratelimit/internal/limits", "ratelimit/internal/counter", true) // what an algorithm is called
	f("ratelimit/internal/limits", "ratelimit/internal/counter/memory", false)
}

// linked is what of shared/ a daemon links. The rest is for tests, measurements and make run: what is added here is in
// every installation.
var linked = map[string][]string{
	"auth": {"buildinfo", "httpx", "logging", "memlimit", "nonblock", "sdnotify", "settings", "telemetry",
		"telemetry/metrics"},
	"ratelimit": {"buildinfo", "certs", "filewatch", "httpx", "logging", "memlimit", "nonblock", "sdnotify", "settings",
		"telemetry"},
}

// TestLinked compares it with the daemons' dependencies, as built.
func TestLinked(t *testing.T) {
	for daemon, want := range linked {
		out, err := exec.Command("go", "list", "-tags", "grpcnotrace", "-deps", "../"+daemon).Output()
		if err != nil {
			t.Fatalf("%s: %v", daemon, err)
		}
		var got []string
		for name := range strings.FieldsSeq(string(out)) {
			if part, ours := strings.CutPrefix(name, module+"/shared/"); ours {
				got = append(got, part)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s links %q of shared/, want %q", daemon, got, want)
		}
	}
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
		"auth", "ratelimit", "shared", "bench", "loadtest", "migrations", "go.mod", "go.sum", "Makefile", "README.md", "LICENSE",
		".ci", ".git", ".github", ".gitignore", // and what .gitignore names:
		"bin", ".run",
	}
	entries, err := os.ReadDir("..")
	must.Succeed(t, err)
	for _, e := range entries {
		if !slices.Contains(allowed, e.Name()) && !strings.HasSuffix(e.Name(), ".prof") &&
			!strings.HasSuffix(e.Name(), ".test") {
			t.Errorf("%s does not belong at the top level", e.Name())
		}
	}
}

func TestREADME(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	must.Succeed(t, err)
	if n := strings.Count(string(text), "\n"); n > 150 {
		t.Errorf("README.md has %d lines, want at most 150", n)
	}
	for _, want := range []string{"make run", "make test", "bin/ratelimit client"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("README.md does not name %q", want)
		}
	}
}

// TestLinks follows every link of a Markdown file that leads into the repository, and every reference of a Go
// comment to a page, such as docs/windows.md#jitter: from the root of the daemon it stands in. The file has to be
// there, and what follows # has to be one of its headings.
func TestLinks(t *testing.T) {
	pages := map[string]map[string]bool{}
	follow := func(from, link, base string) {
		target, anchor, anchored := strings.Cut(link, "#")
		file := from
		if target != "" {
			file = path.Join(base, target)
		}
		if _, err := os.Stat(filepath.Join("..", file)); err != nil {
			t.Errorf("%s refers to %s, which is not there", from, link)
			return
		}
		if !anchored || !strings.HasSuffix(file, ".md") {
			return
		}
		if pages[file] == nil {
			text, err := os.ReadFile(filepath.Join("..", file))
			if err != nil {
				t.Error(err)
				return
			}
			pages[file] = anchors(string(text))
		}
		if !pages[file][anchor] {
			t.Errorf("%s refers to %s: %s has no heading for #%s", from, link, file, anchor)
		}
	}
	followed := 0
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	walk(t, ".md", func(name string) {
		text, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Error(err)
			return
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], "://") && !strings.HasPrefix(m[1], "mailto:") {
				follow(name, m[1], path.Dir(name))
				followed++
			}
		}
	})
	walk(t, ".go", func(name string) {
		daemon, _, _ := strings.Cut(name, "/")
		if daemon != "auth" && daemon != "ratelimit" {
			return
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", name), nil,
			parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		for _, group := range file.Comments {
			for _, m := range reference.FindAllStringSubmatch(group.Text(), -1) {
				follow(name, m[1], daemon)
				followed++
			}
		}
	})
	if followed < 50 {
		t.Errorf("followed %d links", followed)
	}
}

// reference is a page that a comment names.
var reference = regexp.MustCompile(`(?:^|[\s(])(docs/[\w-]+\.md(?:#[\w-]+)?)`)

// anchors are the names under which a Markdown page's headings can be linked to, as GitHub makes them.
func anchors(text string) map[string]bool {
	names := map[string]bool{}
	text = regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "") // a shell's comments are no headings
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.+?)\s*$`).FindAllStringSubmatch(text, -1) {
		name := strings.ReplaceAll(regexp.MustCompile(`[^\p{L}\p{N}_ -]`).ReplaceAllString(strings.ToLower(m[1]),
			""), " ",
			"-")
		for n, base := 1, name; names[name]; n++ {
			name = base + "-" + strconv.Itoa(n)
		}
		names[name] = true
	}
	return names
}

// TestAnchors: what a heading is called in a link.
func TestAnchors(t *testing.T) {
	got := anchors("# One-time tokens\n## Users\n### Users\n```sh\n# not this\n```\n## `a_b`: CPU, and memory\n")
	for _, want := range []string{"one-time-tokens", "users", "users-1", "a_b-cpu-and-memory"} {
		if !got[want] {
			t.Errorf("no %s in %v", want, got)
		}
	}
	if len(got) != 4 {
		t.Errorf("%v", got)
	}
	for text, want := range map[string]string{"as docs/windows.md#jitter says": "docs/windows.md#jitter",
		"(docs/tokens.md)": "docs/tokens.md", "../docs/x.md": ""} {
		got := ""
		if m := reference.FindStringSubmatch(text); m != nil {
			got = m[1]
		}
		if got != want {
			t.Errorf("%q refers to %q, want %q", text, got, want)
		}
	}
}

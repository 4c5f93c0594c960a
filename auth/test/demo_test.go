package test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/must"
	"gatehouse/shared/subprocess"
)

// hostile is a mail that tries to run, to submit and to lead the page around it elsewhere.
const hostile = `<p>hostile</p><script>top.document.title = "gone"; top.location = "http://127.0.0.1:1/"</script>
<meta http-equiv="refresh" content="0;url=http://127.0.0.1:1/"><img src="x" onerror="top.location = 'http://127.0.0.1:1/'">
<form action="http://127.0.0.1:1/" target="_top"><button>press</button></form><a href="{{ .ConfirmationURL }}">link</a>`

// TestBrowser_demo makes the whole round in the demo of make run and its mailbox, while other programs have the ports
// that they would take.
func TestBrowser_demo(t *testing.T) {
	t.Parallel()
	needBrowser(t)
	for _, port := range []string{"3000", "8082"} {
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			defer l.Close()
		}
	}
	dir := t.TempDir()
	bin, home, mail := filepath.Join(dir, "bin"), filepath.Join(dir, "run"), filepath.Join(dir, "hostile.html")
	must.Succeed(t, os.MkdirAll(filepath.Join(home, "auth"), 0o700))
	for path, text := range map[string]string{mail: hostile, filepath.Join(home, "auth", ".env"): "# of the person's own\n" +
		"AUTH_SITE_NAME='Hat Shop'\nAUTH_MAILER_TEMPLATES_RECOVERY=file://" + mail + "\n"} {
		must.Succeed(t, os.WriteFile(path, []byte(text), 0o600))
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "grpcnotrace", "-o", bin+"/", "../../ratelimit",
		"../../auth", "../../shared/devstack")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	shown := startStack(t, bin, home)
	find := func(pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(shown)
		if m == nil {
			t.Fatalf("no %s in\n%s", pattern, shown)
		}
		return m[1]
	}
	demo, auth := find(`demo +(http://localhost:\d+)`), find(`auth +(http://\S+)`)
	if strings.HasSuffix(demo, ":3000") || strings.HasSuffix(auth, ":8082") {
		t.Errorf("%s and %s were taken", demo, auth)
	}
	settings := filepath.Join(home, "auth", "settings")
	if info, err := os.Stat(settings); err != nil || info.Mode() != 0o600 || !strings.Contains(shown, "-config "+settings) {
		t.Errorf("%s: %v %v", settings, info, err)
	}
	if text, err := os.ReadFile(settings); err != nil || strings.Contains(string(text), "Demo Shop") {
		t.Errorf("AUTH_SITE_NAME of .env does not win (%v):\n%s", err, text)
	}
	runBrowser(t, "demo.mjs", "DEMO="+demo, "AUTH="+auth, "MAILBOX="+find(`mailbox (http://\S+)`),
		"SERVICE_KEY="+find(`SERVICE_ROLE_KEY=(\S+)`))
}

// startStack returns what make run's program prints. Another test's stack may take a port that this one found free, so
// that it starts again.
func startStack(t *testing.T, bin, home string) string {
	t.Helper()
	for range 3 {
		said := newLines()
		cmd := exec.Command(filepath.Join(bin, "devstack"), "-bin", bin, "-dir", home)
		cmd.Stdout, cmd.Stderr = said, said
		p, err := subprocess.Start(cmd)
		must.Succeed(t, err)
		if said.Await("Ctrl-C stops everything.", nil, p.Ended(), 2*time.Minute) == nil {
			t.Cleanup(func() { p.Stop(time.Minute) })
			return said.text()
		}
		p.Stop(time.Minute)
		t.Logf("the stack does not start:\n%s", said.text())
	}
	t.Fatal("the stack does not start")
	return ""
}

// TestDemo_lines: each line of the client library that the demo names is run by e2e/demo.mjs.
func TestDemo_lines(t *testing.T) {
	app, err := os.ReadFile("../../shared/devstack/demo/app.js")
	must.Succeed(t, err)
	script, err := os.ReadFile("e2e/demo.mjs")
	must.Succeed(t, err)
	lines := regexp.MustCompile(`// (supabase\.auth\..*)`).FindAllSubmatch(app, -1)
	for _, line := range lines {
		if !strings.Contains(string(script), string(line[1])) {
			t.Errorf("e2e/demo.mjs does not run %s", line[1])
		}
	}
	if len(lines) < 12 || strings.Count(string(app), "\n") > 300 {
		t.Errorf("%d lines name a call, of %d", len(lines), strings.Count(string(app), "\n"))
	}
}

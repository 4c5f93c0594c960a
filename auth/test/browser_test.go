package test

import (
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/shared/localserver"
	"gatehouse/shared/subprocess"
)

// chromium is the browser of all browser tests of this run, started by the first one.
var chromium struct {
	start   sync.Once
	process *subprocess.Process
	profile string
	url     string // where it is controlled
	err     error
}

// runBrowser runs a script of e2e/browser, which drives the browser, and reports each of its cases as a subtest. Without
// Chromium or npm the test is skipped; with REQUIRE_SERVERS=1 it fails.
func runBrowser(t *testing.T, script string, env ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs a browser")
	}
	node, modules := clientLibrary(t)
	if _, err := localserver.Find("chromium"); err != nil {
		missing(t, "browser tests run Debian's chromium: %v", err)
	}
	chromium.start.Do(startChromium)
	if chromium.err != nil {
		t.Fatal(chromium.err)
	}
	shots, err := filepath.Abs("../../.run/shots")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(shots, 0o755); err != nil {
		t.Fatal(err)
	}
	runScript(t, node, modules, "browser/"+script, append(env, "BROWSER="+chromium.url, "SHOTS="+shots)...)
}

// startChromium starts the browser, which ends with this process at the latest.
func startChromium() {
	program, err := localserver.Find("chromium")
	if err != nil {
		chromium.err = err
		return
	}
	if chromium.profile, chromium.err = os.MkdirTemp("", "chromium-"); chromium.err != nil {
		return
	}
	// Chromium's own sandbox needs more than root in a container has; it opens nothing but pages of the tests.
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--remote-debugging-port=0", "--user-data-dir="+chromium.profile, "about:blank")
	said := newLines()
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Env = append(os.Environ(), "HOME="+chromium.profile)
	if chromium.process, chromium.err = subprocess.Start(cmd); chromium.err != nil {
		return
	}
	const listening = "DevTools listening on "
	if chromium.err = said.Await(listening, nil, chromium.process.Ended(), time.Minute); chromium.err != nil {
		return
	}
	_, url, _ := strings.Cut(said.text(), listening)
	chromium.url, _, _ = strings.Cut(url, "\n")
}

// stopChromium ends what the tests started.
func stopChromium() {
	if chromium.process != nil {
		chromium.process.Stop(5 * time.Second)
	}
	if chromium.profile != "" {
		os.RemoveAll(chromium.profile)
	}
}

// TestBrowser_mails: nothing in a built-in mail is cut, and axe finds nothing of level A or AA, light and dark.
func TestBrowser_mails(t *testing.T) {
	t.Parallel()
	logo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "image/png")
		picture := image.NewNRGBA(image.Rect(0, 0, 120, 40)) // dark blue on nothing
		draw.Draw(picture, image.Rect(10, 10, 110, 30), image.NewUniform(color.NRGBA{B: 96, A: 255}), image.Point{}, draw.Src)
		png.Encode(w, picture)
	}))
	t.Cleanup(logo.Close)
	out := t.TempDir()
	status, _, stderr := command(t, environment("postgres://nowhere.test/x", "AUTH_SITE_LOCALES=en,de,fr,es",
		"AUTH_SITE_NAME=Müller & Söhne Onlineversand", "AUTH_SITE_LOGO_URL="+logo.URL+"/logo.png", "AUTH_MAILER_SHOW=both",
		"AUTH_SITE_SUPPORT=help@shop.example"), "", "mail", "preview", "-o", out)
	if status != 0 {
		t.Fatal(stderr)
	}
	runBrowser(t, "mails.mjs", "MAILS="+out)
}

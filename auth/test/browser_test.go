package test

import (
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/subprocess"
	"gatehouse/shared/testdb"
)

// chromium is the browser of all browser tests of this run, started by the first one.
var chromium struct {
	start   sync.Once
	process *subprocess.Process
	profile string
	url     string // where it is controlled
	err     error
}

// needBrowser skips a test without Chromium or npm; with REQUIRE_SERVERS=1 it fails.
func needBrowser(t *testing.T) (node, modules string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: needs a browser")
	}
	if _, err := localserver.Find("chromium"); err != nil {
		must.Have(t, fmt.Errorf("browser tests run Debian's chromium: %w", err))
	}
	return clientLibrary(t)
}

// runBrowser runs a script of e2e/browser, which drives the browser, and reports each of its cases as a subtest.
func runBrowser(t *testing.T, script string, env ...string) {
	t.Helper()
	node, modules := needBrowser(t)
	chromium.start.Do(startChromium)
	if chromium.err != nil {
		t.Fatal(chromium.err)
	}
	runScript(t, node, modules, "browser/"+script, append(env, "BROWSER="+chromium.url, "SHOTS="+os.Getenv("SHOTS"))...)
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
	cmd := exec.Command(program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--hide-scrollbars", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0",
		"--user-data-dir="+chromium.profile, "about:blank")
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

// shop are settings of a site with a long name, a logo and an address for help.
func shop(t *testing.T) []string {
	t.Helper()
	logo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "image/png")
		picture := image.NewNRGBA(image.Rect(0, 0, 120, 40)) // dark blue on nothing
		blue := image.NewUniform(color.NRGBA{B: 96, A: 255})
		draw.Draw(picture, image.Rect(10, 10, 110, 30), blue, image.Point{}, draw.Src)
		png.Encode(w, picture)
	}))
	t.Cleanup(logo.Close)
	return []string{"AUTH_SITE_NAME=Müller & Söhne Onlineversand", "AUTH_SITE_LOGO_URL=" + logo.URL + "/logo.png",
		"AUTH_SITE_SUPPORT=help@shop.example", "AUTH_SITE_LOCALES=en,de,fr,es"}
}

// TestBrowser_mails: nothing in a built-in mail is cut, and axe finds nothing of level A or AA, light and dark.
func TestBrowser_mails(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	env := environment("postgres://nowhere.test/x", append(shop(t), "AUTH_MAILER_SHOW=both")...)
	if status, _, stderr := command(t, env, "", "mail", "preview", "-o", out); status != 0 {
		t.Fatal(stderr)
	}
	runBrowser(t, "mails.mjs", "MAILS="+out)
}

// TestBrowser_pages: the button of a confirmation page leads to the application, without scripts, under every spelling
// of the path, and errors are pages.
func TestBrowser_pages(t *testing.T) {
	t.Parallel()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		io.WriteString(w, "<!DOCTYPE html><title>App</title><link rel=icon href=data:,><p>the application</p>")
	}))
	t.Cleanup(app.Close)
	ports, err := localserver.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	url := "http://127.0.0.1:" + ports[0]
	d := start(t, environment(testdb.Postgres(t), append(shop(t), "PORT="+ports[0], "AUTH_API_EXTERNAL_URL="+url,
		"AUTH_SITE_URL="+app.URL, "AUTH_URI_ALLOW_LIST=myapp://callback", "AUTH_MAILER_CONFIRM_PAGE=true",
		"AUTH_API_PREFIX=/auth/v1", "AUTH_RATE_LIMIT_BY_PEER=true")...))
	runBrowser(t, "pages.mjs", "AUTH="+url, "APP="+app.URL, "MAILBOX="+d.mailbox)
}

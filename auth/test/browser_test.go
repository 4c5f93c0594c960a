package test

import (
	"encoding/hex"
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
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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
	must.Succeed(t, err)
	url := "http://127.0.0.1:" + ports[0]
	d := start(t, environment(testdb.Postgres(t), append(shop(t), "PORT="+ports[0], "AUTH_API_EXTERNAL_URL="+url,
		"AUTH_SITE_URL="+app.URL, "AUTH_URI_ALLOW_LIST=myapp://callback", "AUTH_MAILER_CONFIRM_PAGE=true",
		"AUTH_API_PREFIX=/auth/v1", "AUTH_RATE_LIMIT_BY_PEER=true")...))
	runBrowser(t, "pages.mjs", "AUTH="+url, "APP="+app.URL, "MAILBOX="+d.mailbox)
}

// TestBrowser_console: every page and action of the admin console, in Chromium.
func TestBrowser_console(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	env := environment(url, "AUTH_CONSOLE_ADDR=127.0.0.1:0", "AUTH_MAILER_AUTOCONFIRM=true")
	d := start(t, env)
	var ready struct{ Console string }
	d.log.await(t, `"msg":"ready"`, &ready)
	if status, _, stderr := command(t, env, "correct horse\n", "admin", "create", "-confirm", "-admin",
		"boss@example.org", "-"); status != 0 {
		t.Fatal(stderr)
	}
	const markup = `<img src=x onerror=alert(1)>`
	_, service, _ := command(t, env, "", "keys", "service")
	service = strings.TrimSpace(service)
	create := func(body string) answer {
		t.Helper()
		got, err := call("POST", d.http+"/admin/users", service, body)
		if err != nil || got.status != 200 {
			t.Fatalf("%+v, %v", got, err)
		}
		return got
	}
	for i := range 60 {
		create(fmt.Sprintf(`{"email":"%02d.%s@example.org"}`, i, strings.Repeat("long-address", 4)))
	}
	create(`{"email":"mia@example.org","password":"correct horse","email_confirm":true}`)
	for range 2 {
		call("POST", d.http+"/token?grant_type=password", "", `{"email":"mia@example.org","password":"correct horse"}`)
	}
	eve := create(`{"email":"eve@example.org","user_metadata":{"full_name":"` + markup + `\u202egnp.exe"},"app_metadata":{"x":"` +
		markup + `"}}`)
	create(`{"email":"cook@example.org","password":"correct horse","email_confirm":true,"role":"service_role"}`)
	cook, key := enrolTOTP(t, d, "cook@example.org")
	exec := func(sql string) {
		t.Helper()
		db, err := pgx.Connect(t.Context(), url)
		must.Succeed(t, err)
		defer db.Close(t.Context())
		must.Succeed(t, must.ErrOf(db.Exec(t.Context(), sql)))
	}
	exec(`insert into outbox (id, channel, kind, user_id, payload, state, error, due_at, expires_at, created_at, done_at)
		select gen_random_uuid(), 'email', 'password_changed_notification', id, 'x', 'failed',
			'550 no such mailbox: <img src=x onerror=alert(1)>', now(), now() + interval '1 h', now(), now()
		from users where email = 'eve@example.org'`)
	exec(`insert into sessions (id, user_id, created_at, secret_hash, refreshed_at, user_agent, ip, amr)
		select gen_random_uuid(), id, now(), '', now(), '` + markup + `', '192.0.2.1', '[]' from users
		where email = 'eve@example.org'`)
	runBrowser(t, "console.mjs", "CONSOLE="+ready.Console, "HOSTILE="+eve.body["id"].(string),
		"COOK="+cook, "TOTP="+hex.EncodeToString(key))
}

// applicationPage makes the client library's client, which the scripts use as auth.
const applicationPage = `<!DOCTYPE html><title>App</title><link rel=icon href=data:,>
<script type="importmap">{"imports":{"tslib":"/modules/tslib/tslib.es6.mjs"}}</script>
<script type="module">
import { GoTrueClient } from '/modules/@supabase/auth-js/dist/module/index.js'
window.auth = new GoTrueClient({ url: %q, autoRefreshToken: false, experimental: { passkey: true } })
</script>`

// application serves a page of an application below localhost, which is a relying party without TLS.
func application(t *testing.T, modules, auth string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, module := strings.CutPrefix(r.URL.Path, "/modules/")
		if !module {
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, applicationPage, auth)
			return
		}
		// The library's own imports have no ending.
		if ext := filepath.Ext(name); ext != ".js" && ext != ".mjs" {
			name += ".js"
		}
		text, err := os.ReadFile(filepath.Join(modules, filepath.FromSlash(name)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/javascript")
		w.Write(text)
	}))
	t.Cleanup(s.Close)
	return strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
}

// TestBrowser_passkeys: passkeys and security keys with the client library in Chromium.
func TestBrowser_passkeys(t *testing.T) {
	t.Parallel()
	_, modules := needBrowser(t)
	ports, err := localserver.FreePorts(1)
	must.Succeed(t, err)
	auth := "http://127.0.0.1:" + ports[0]
	app := application(t, modules, auth)
	start(t, environment(testdb.Postgres(t), "PORT="+ports[0], "AUTH_API_EXTERNAL_URL="+auth, "AUTH_SITE_URL="+app,
		"AUTH_MAILER_AUTOCONFIRM=true", "AUTH_PASSKEY_ENABLED=true", "AUTH_PASSKEY_AAL=aal2",
		"AUTH_PASSKEY_USER_VERIFICATION=required", "AUTH_MFA_WEB_AUTHN_ENROLL_ENABLED=true",
		"AUTH_MFA_WEB_AUTHN_VERIFY_ENABLED=true", "AUTH_WEBAUTHN_RP_ID=localhost", "AUTH_WEBAUTHN_RP_DISPLAY_NAME=Shop",
		"AUTH_WEBAUTHN_RP_ORIGINS="+app))
	runBrowser(t, "passkeys.mjs", "AUTH="+auth, "APP="+app, "UNLISTED="+application(t, modules, auth))
}

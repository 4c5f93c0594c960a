// Package test runs the daemon and its commands as processes, and holds its pages to what it does.
package test

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse/auth/internal/cli"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/subprocess"
	"gatehouse/shared/testdb"
)

// asProgram makes this test binary the program itself, so that tests run real processes of it, with the
// race detector where the tests have it.
const asProgram = "GATEHOUSE_TEST_AS_AUTH"

// quickExit: the race detector has a process sleep for a second before it exits.
const quickExit = "GORACE=atexit_sleep_ms=10"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(cli.Main())
	}
	if len(os.Args) > 1 && os.Args[1] == "hashing" {
		syscall.Exit(cli.Main()) // has no environment, and so no quickExit
	}
	// Most tests wait for another process. -parallel says otherwise.
	if err := flag.Set("test.parallel", strconv.Itoa(max(4, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err)
	}
	status := m.Run()
	stopChromium()
	os.Exit(status)
}

// instance is one daemon of a test: a real process on free ports.
type instance struct {
	*subprocess.Process
	http, mailbox string // addresses
	log           *lines
	dir           string // its working directory, where .env is
	env           []string
}

// environment is what a daemon of a test needs: the dev mailbox, cheap hashes, no pauses between mails.
func environment(url string, more ...string) []string {
	return append([]string{
		asProgram + "=1", "PATH=" + os.Getenv("PATH"), quickExit,
		"DATABASE_URL=" + url, "AUTH_DB_DRIVER=postgres", "AUTH_SITE_URL=http://localhost:3000",
		"AUTH_API_EXTERNAL_URL=http://localhost:9999",
		"AUTH_JWT_SECRET=0123456789abcdef0123456789abcdef", "AUTH_JWT_ALGORITHM=ES256", "AUTH_API_HOST=127.0.0.1",
		"PORT=0",
		"AUTH_DEV_MAILBOX=true", "AUTH_DEV_MAILBOX_PORT=0", "AUTH_PASSWORD_HASH=bcrypt:4", "AUTH_SMTP_MAX_FREQUENCY=0",
		"AUTH_RATE_LIMIT_EMAIL_SENT=1000",
	}, more...)
}

// launch starts a daemon and does not wait for it. Of settings of one name the last wins.
func launch(t testing.TB, dir string, env []string, args ...string) *instance {
	t.Helper()
	return launchProgram(t, os.Args[0], dir, env, args...)
}

// launchProgram is launch with another program than this test's.
func launchProgram(t testing.TB, program, dir string, env []string, args ...string) *instance {
	t.Helper()
	d := &instance{log: newLines(), dir: dir, env: env}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Stdout, cmd.Stderr = d.log, d.log
	left, err := os.Open(os.DevNull)
	must.Succeed(t, err)
	defer left.Close()
	cmd.ExtraFiles = []*os.File{left} // as a careless parent leaves one open
	if d.Process, err = subprocess.Start(cmd); err != nil {
		t.Fatal(err)
	}
	d.log.ended = d.Ended()
	t.Cleanup(func() {
		d.Stop(20 * time.Second)
		if t.Failed() {
			text := regexp.MustCompile(`(?m)^.*"msg":"request".*"status":2.*\n`).ReplaceAllString(d.log.text(), "")
			if crash := strings.Index(text, "\ngoroutine "); crash >= 0 { // why stands before the goroutines
				text = text[:min(len(text), crash+2000)]
			}
			t.Logf("log of the daemon:\n%s", text[max(0, len(text)-8000):])
		}
	})
	return d
}

// start is launch, and waits until the daemon serves.
func start(t testing.TB, env []string, args ...string) *instance {
	t.Helper()
	d := launch(t, t.TempDir(), env, args...)
	d.awaitReady(t)
	return d
}

func (d *instance) awaitReady(t testing.TB) {
	t.Helper()
	var ready struct{ HTTP, Mailbox string }
	d.log.await(t, `"msg":"ready"`, &ready)
	d.http, d.mailbox = "http://"+ready.HTTP, "http://"+ready.Mailbox
}

// answer is what came back.
type answer struct {
	status int
	body   map[string]any
	text   string
	// location is where a redirect leads.
	location string
}

// call sends a request with an optional bearer and body.
func call(method, url, bearer, body string) (answer, error) {
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	r.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	resp, err := client.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	a := answer{status: resp.StatusCode, text: string(b), location: resp.Header.Get("Location")}
	json.Unmarshal(b, &a.body) // not all bodies are objects
	return a, err
}

// want is call, and fails the test when the status is another.
func (d *instance) want(t testing.TB, status int, method, path, bearer, body string) answer {
	t.Helper()
	a, err := call(method, d.http+path, bearer, body)
	if err != nil || a.status != status {
		t.Fatalf("%s %s: %v, %d %s; want %d", method, path, err, a.status, a.text, status)
	}
	return a
}

func (a answer) str(name string) string { s, _ := a.body[name].(string); return s }

// mail waits for the newest mail to an address.
func (d *instance) mail(t testing.TB, to string) (link, code string) {
	t.Helper()
	a, err := call("GET", d.mailbox+"/messages?wait=20&to="+to, "", "")
	var list []struct{ Link, Code string }
	if err != nil || json.Unmarshal([]byte(a.text), &list) != nil || len(list) == 0 {
		t.Fatalf("no mail to %s: %v %s", to, err, a.text)
	}
	return list[0].Link, list[0].Code
}

// signUp makes a confirmed user and returns its session.
func (d *instance) signUp(t testing.TB, email string) answer {
	t.Helper()
	d.want(t, 200, "POST", "/signup", "", `{"email":"`+email+`","password":"correct horse"}`)
	_, code := d.mail(t, email)
	return d.want(t, 200, "POST", "/verify", "", `{"type":"signup","email":"`+email+`","token":"`+code+`"}`)
}

// lines are what a process writes.
type lines struct {
	subprocess.Lines
	// ended is closed when nothing more comes.
	ended <-chan struct{}
}

func newLines() *lines { return new(lines) }

func (l *lines) text() string { return l.String() }

// await waits for a line that contains part and decodes its JSON into v, if v is not nil.
func (l *lines) await(t testing.TB, part string, v any) {
	t.Helper()
	must.Succeed(t, l.Await(part, v, l.ended, 60*time.Second))
}

// The whole way of a new user: sign up, mail, verify, user, refresh, restart, log out.
func TestDaemon(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t) // empty: the daemon migrates
	d := start(t, environment(url))
	d.want(t, 200, "GET", "/health", "", "")
	d.want(t, 200, "GET", "/readyz", "", "")
	d.want(t, 200, "POST", "/signup", "", `{"email":"ann@example.org","password":"correct horse"}`)
	if a := d.want(t, 400, "POST", "/token?grant_type=password", "",
		`{"email":"ann@example.org","password":"correct horse"}`); a.str("error_code") != "email_not_confirmed" {
		t.Error(a.text)
	}
	link, code := d.mail(t, "ann@example.org")
	if !strings.HasPrefix(link, "http://localhost:9999/verify?token=") ||
		!regexp.MustCompile(`^\d{6}$`).MatchString(code) {
		t.Errorf("link %s, code %s", link, code)
	}
	a := d.want(t, 303, "GET", strings.TrimPrefix(link, "http://localhost:9999"), "", "")
	_ = a
	session := d.want(t, 200, "POST", "/token?grant_type=password", "",
		`{"email":"ann@example.org","password":"correct horse"}`)
	if u := d.want(t, 200, "GET", "/user", session.str("access_token"), ""); u.str("email") != "ann@example.org" {
		t.Error(u.text)
	}

	// A restart keeps keys, sessions and everything; another replica shares them.
	must.Succeed(t, d.Stop(20*time.Second))
	d = start(t, environment(url), "serve", "--skip-migrations")
	replica := start(t, environment(url))
	replica.want(t, 200, "GET", "/user", session.str("access_token"), "")
	session = d.want(t, 200, "POST", "/token?grant_type=refresh_token", "",
		`{"refresh_token":"`+session.str("refresh_token")+`"}`)
	session = replica.want(t, 200, "POST", "/token?grant_type=refresh_token", "",
		`{"refresh_token":"`+session.str("refresh_token")+`"}`)
	d.want(t, 204, "POST", "/logout?scope=global", session.str("access_token"), "")
	if a := replica.want(t, 403, "GET", "/user", session.str("access_token"),
		""); a.str("error_code") != "session_not_found" {
		t.Error(a.text)
	}
	for _, secret := range []string{"correct horse", session.str("access_token"), session.str("refresh_token"), code,
		"0123456789abcdef"} {
		if strings.Contains(d.log.text()+replica.log.text(), secret) {
			t.Errorf("a log holds %q", secret)
		}
	}
}

// The reader of the log may go; the daemon serves on and shuts down cleanly.
func TestLogReaderEnds(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	must.Succeed(t, err)
	defer read.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Dir, cmd.Env = t.TempDir(), environment(testdb.Postgres(t))
	cmd.Stdout, cmd.Stderr = write, write
	d := new(instance)
	if d.Process, err = subprocess.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Stop(time.Minute) })
	write.Close()
	for lines := bufio.NewScanner(read); d.http == "" && lines.Scan(); {
		var ready struct{ HTTP, Mailbox string }
		if strings.Contains(lines.Text(), `"msg":"ready"`) && json.Unmarshal(lines.Bytes(), &ready) == nil {
			d.http, d.mailbox = "http://"+ready.HTTP, "http://"+ready.Mailbox
		}
	}
	read.Close()
	must.Succeed(t, d.Signal(syscall.SIGHUP))
	session := d.signUp(t, "ann@example.org")
	d.want(t, 200, "GET", "/user", session.str("access_token"), "")
	must.Succeed(t, d.Stop(time.Minute))
}

// SIGTERM under load: readiness flips first, every request is answered, the process shuts down cleanly.
func TestStopUnderLoad(t *testing.T) {
	t.Parallel()
	d := start(t, environment(testdb.Postgres(t), "AUTH_DRAIN_DELAY=5s"))
	token := d.signUp(t, "ann@example.org").str("access_token")
	var wg sync.WaitGroup
	var served, cut atomic.Int64
	stop := make(chan struct{})
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				a, err := call("GET", d.http+"/user", token, "")
				switch {
				case err == nil && a.status == 200:
					served.Add(1)
				case err != nil && !neverTaken(err):
					cut.Add(1)
					t.Errorf("cut: %v", err)
					return
				case err != nil:
					return
				default:
					t.Errorf("%d %s", a.status, a.text)
					return
				}
			}
		})
	}
	must.Succeed(t, d.Signal(syscall.SIGTERM))
	d.log.await(t, `"msg":"stopping"`, nil)
	// While new connections are still accepted, one that is kept for the next request is closed with the answer.
	kept := newCaller(t, time.Minute)
	if resp, err := kept.Get(d.http + "/livez"); err != nil || resp.StatusCode != 200 || !resp.Close {
		t.Errorf("%v %+v: want an answer that ends its connection", err, resp)
	}
	await.True(t, "it isn't ready", func() bool { // readiness is remembered for half a second
		a, err := call("GET", d.http+"/readyz", "", "")
		must.Succeed(t, err)
		return a.status == 503
	})
	select {
	case <-d.Ended(): // a second signal would end it at once
	case <-time.After(time.Minute):
		t.Error("still there after a minute")
	}
	must.Succeed(t, d.Stop(0))
	close(stop)
	wg.Wait()
	if served.Load() == 0 || cut.Load() > 0 {
		t.Errorf("served %d, cut %d", served.Load(), cut.Load())
	}
	if strings.Contains(d.log.text(), "were cut") {
		t.Error("requests were cut")
	}
}

// A second signal does not wait for the drain that the first began.
func TestStop_secondSignal(t *testing.T) {
	t.Parallel()
	d := start(t, environment(testdb.Postgres(t), "AUTH_DRAIN_DELAY=1m"))
	for _, stopping := range []bool{true, false} {
		must.Succeed(t, d.Signal(syscall.SIGTERM))
		if stopping {
			d.log.await(t, `"msg":"stopping"`, nil)
		}
	}
	select {
	case <-d.Ended():
	case <-time.After(20 * time.Second):
		t.Fatal("still there after a second signal")
	}
	if exit, ok := errors.AsType[*exec.ExitError](d.Stop(0)); !ok || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit status 1", exit)
	}
}

// neverTaken says that the daemon did not read the request: nothing listens any more, or the listener closed on a
// connection that the kernel had accepted, or that was idle. Each request that it has taken it answers:
// TestStopWithAllInFlight counts that exactly.
func neverTaken(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
}

// A start waits for a database that comes up late, and a stop while it waits is a clean shutdown.
func TestDatabaseUnavailable(t *testing.T) {
	t.Parallel()
	pg := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	must.Succeed(t, pg.Stop())
	d := launch(t, t.TempDir(), environment(pg.PostgresURL("postgres")))
	waiting := launch(t, t.TempDir(), environment(pg.PostgresURL("postgres")))
	d.log.await(t, "waiting for the database", nil)
	waiting.log.await(t, "waiting for the database", nil)
	must.Succeed(t, waiting.Stop(20*time.Second))
	must.Succeed(t, pg.Cont())
	d.awaitReady(t)
	d.want(t, 200, "GET", "/readyz", "", "")
}

// A stop at any moment of the start is a clean shutdown; the next start completes what it left.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	for delay := time.Duration(0); delay < 300*time.Millisecond; delay = 2*delay + 5*time.Millisecond {
		d := launch(t, t.TempDir(), environment(url))
		d.log.await(t, "no limits by client address", nil) // settings are read, signals are caught
		time.Sleep(delay)
		if err := d.Stop(20 * time.Second); err != nil {
			t.Errorf("stopped after %v: %v", delay, err)
		}
	}
	d := start(t, environment(url))
	d.want(t, 200, "GET", "/readyz", "", "")
}

// A start with another root key stops and names both settings.
func TestOtherRootKey(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	d := start(t, environment(url))
	d.Stop(20 * time.Second)
	status, _, errs := command(t, append(environment(url), "AUTH_SECRET_KEY=another"), "", "serve")
	if status != 1 || !strings.Contains(errs, "AUTH_SECRET_KEY ") ||
		!strings.Contains(errs, "AUTH_SECRET_KEYS_PREVIOUS") {
		t.Errorf("%d %s", status, errs)
	}
	d = start(t, append(environment(url), "AUTH_SECRET_KEY=another",
		"AUTH_SECRET_KEYS_PREVIOUS=0123456789abcdef0123456789abcdef"))
	d.want(t, 200, "GET", "/.well-known/jwks.json", "", "")
}

// A service token of the command is an administrator's.
func TestServiceToken(t *testing.T) {
	t.Parallel()
	for _, hs256 := range []string{"true", "false"} {
		env := append(environment(testdb.Postgres(t)), "AUTH_JWT_ACCEPT_HS256="+hs256)
		d := start(t, env)
		f := func(status int, args ...string) {
			t.Helper()
			_, out, errs := command(t, env, "", append([]string{"keys", "service"}, args...)...)
			a, err := call("GET", d.http+"/admin/users", strings.TrimSpace(out), "")
			if err != nil || a.status != status {
				t.Errorf("%q: %v %d %s %s", args, err, a.status, a.text, errs)
			}
		}
		f(200)
		f(200, "-exp", "1h")
		f(403, "-role", "anon")
	}
}

func TestLogFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	env := append(environment(testdb.Postgres(t)), "AUTH_LOG_FILE="+path)
	d := launch(t, dir, env)
	read := func(part string) {
		t.Helper()
		var b []byte
		await.True(t, part+" in the file", func() bool {
			b, _ = os.ReadFile(path)
			return strings.Contains(string(b), part)
		}, func() string { return string(b) })
	}
	read(`"msg":"ready"`)
	must.Succeed(t, os.Rename(path, path+".1"))
	must.Succeed(t, d.Signal(syscall.SIGHUP))
	read("SIGHUP: read the settings again")
	d.Stop(20 * time.Second)
	bad := start(t, append(env, "AUTH_LOG_FILE="+dir)) // a folder
	bad.log.await(t, "AUTH_LOG_FILE cannot be opened", nil)
}

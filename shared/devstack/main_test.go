package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// screen is what the stack prints, read while it is written.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// TestStack types the lines that make run prints.
func TestStack(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and starts the daemons")
	}
	for _, program := range []string{"initdb", "curl"} {
		testdb.Program(t, program)
	}
	dir := t.TempDir()
	bin, home := filepath.Join(dir, "bin"), filepath.Join(dir, "run")
	if out, err := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", bin+"/", "../../ratelimit",
		"../../auth").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	var shown screen
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, bin, home, &shown) }()
	await.True(t, "it says how to stop it", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("ended: %v\n%s", err, shown.String())
		default:
		}
		return strings.Contains(shown.String(), "Ctrl-C stops everything.")
	})
	typed := func(start string) string {
		t.Helper()
		line := regexp.MustCompile(`(?m)^  (` + start + `.*)$`).FindStringSubmatch(shown.String())
		if line == nil {
			t.Fatalf("no line %q in\n%s", start, shown.String())
		}
		out, _ := exec.Command("sh", "-c", line[1]).CombinedOutput() // its text says what went wrong
		return string(out)
	}

	client := regexp.QuoteMeta(filepath.Join(bin, "ratelimit")) + " client"
	if got := typed(client); !strings.Contains(got, "overall_code:OK") && !strings.Contains(got, "overall_code: OK") {
		t.Errorf("the client line's first answer: %s", got)
	}
	// At most 3 pass in one minute and 3 in the next.
	await.True(t, "the client line is over its limit",
		func() bool { return strings.Contains(typed(client), "OVER_LIMIT") })

	request := regexp.MustCompile(`curl -i (\S+) -d '(.*)'`).FindStringSubmatch(shown.String())
	if request == nil {
		t.Fatalf("no curl line in\n%s", shown.String())
	}
	post := func() int {
		answer, err := http.Post(request[1], "application/json", strings.NewReader(request[2]))
		must.Succeed(t, err)
		defer answer.Body.Close()
		return answer.StatusCode
	}
	if got := post(); got != http.StatusOK {
		t.Errorf("the curl line's first answer is %d, want 200", got)
	}
	await.True(t, "the curl line answers 429", func() bool { return post() == http.StatusTooManyRequests })

	explain := regexp.QuoteMeta(filepath.Join(bin, "ratelimit")) + " explain"
	if got := typed(explain); !strings.Contains(got, "rules.yaml") || !strings.Contains(got, "2") {
		t.Errorf("the explain line names neither file nor limit: %s", got)
	}
	url := regexp.MustCompile(`curl '(\S+/explain\S+)'`).FindStringSubmatch(shown.String())
	answer, err := http.Get(url[1])
	must.Succeed(t, err)
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("%s answers %s", url[1], answer.Status)
	}

	rules := filepath.Join(home, "ratelimit", "config", "rules.yaml")
	edited := bytes.ReplaceAll(exampleRules, []byte("requests_per_unit: 3"), []byte("requests_per_unit: 1000"))
	must.Succeed(t, os.WriteFile(rules, edited, 0o644))
	await.True(t, "the next answer obeys the edited rules", func() bool {
		got := typed(client)
		return strings.Contains(got, "1000") && !strings.Contains(got, "OVER_LIMIT")
	})

	typeAuth(t, typed)
	followMailedLink(t, shown.String())
	signInAtConsole(t, shown.String())
	signIn(t, shown.String())
	if _, err := os.Stat(filepath.Join(home, "auth", ".env")); err != nil ||
		!strings.Contains(shown.String(), filepath.Join(home, "auth", ".env")) {
		t.Errorf("the settings file that it names is not there: %v", err)
	}

	interrupt()
	if err := <-ended; err != nil {
		t.Errorf("stopped by Ctrl-C it says %v\n%s", err, shown.String())
	}
	if c, err := net.Dial("tcp", strings.TrimPrefix(strings.Split(request[1], "/json")[0], "http://")); err == nil {
		c.Close()
		t.Error("somebody still listens")
	}
	if kept, err := writeRules(rules); err != nil || !kept {
		t.Errorf("the edited rules would be written over (%v)", err)
	}
}

// typeAuth types auth's lines in their order.
func typeAuth(t *testing.T, typed func(string) string) {
	t.Helper()
	f := func(start string, want ...string) {
		t.Helper()
		got := typed(start)
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s…: no %s in %s", start, w, got)
			}
		}
	}
	f(`curl -s http://\S+/signup `, `"email":"ann@example.org"`, `"confirmation_sent_at"`)
	f(`curl -s 'http://\S+/messages`, `"kind": "confirmation"`, `/verify?token=`)
	f(`curl -s http://\S+/verify `, `"access_token":"`, `"type":"signup"`)
	f(`curl -s http://\S+/user `, `"email":"ann@example.org"`)
	f(`curl -s 'http://\S+/token`, `"refresh_token":"`)
	f(`curl -s http://\S+/user `, `"email":"ann@example.org"`)
	f(`curl -i -X POST 'http://\S+/logout`, "204 No Content")
	f(`curl -s http://\S+/user `, `session_not_found`)
	f(`curl -s http://\S+/admin/users `, `"ann@example.org"`)
}

// signInAtConsole signs the printed administrator in.
func signInAtConsole(t *testing.T, text string) {
	t.Helper()
	at := regexp.MustCompile(`console +(http://\S+) +administrator (\S+), password (\S+)`).FindStringSubmatch(text)
	answer, err := http.Post(at[1]+"/session", "application/json",
		strings.NewReader(`{"email":"`+at[2]+`","password":"`+at[3]+`"}`))
	must.Succeed(t, err)
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("%s signs in at the console: %s", at[2], answer.Status)
	}
}

// followMailedLink opens the link of a mail without redirect_to: it ends at a page that is served.
func followMailedLink(t *testing.T, text string) {
	t.Helper()
	at := regexp.MustCompile(`auth +(http://\S+) +mailbox (http://\S+)`).FindStringSubmatch(text)
	answer, err := http.Post(at[1]+"/magiclink", "application/json", strings.NewReader(`{"email":"dora@example.org"}`))
	must.Succeed(t, err)
	answer.Body.Close()
	mailed, err := http.Get(at[2] + "/latest/link?to=dora@example.org&wait=10")
	must.Succeed(t, err)
	link, err := io.ReadAll(mailed.Body)
	mailed.Body.Close()
	if err != nil || mailed.StatusCode != http.StatusOK {
		t.Fatalf("%s %s %v", mailed.Status, link, err)
	}
	end, err := http.Get(strings.TrimSpace(string(link)))
	must.Succeed(t, err)
	end.Body.Close()
	if end.StatusCode != http.StatusOK || !strings.Contains(end.Request.URL.Fragment, "access_token=") {
		t.Errorf("%s ends at %s: %s", link, end.Request.URL, end.Status)
	}
}

// signIn follows the links that begin a sign-in through the fake provider, as a browser does.
func signIn(t *testing.T, text string) {
	t.Helper()
	links := regexp.MustCompile(`(?m)^  (http://\S+/authorize\?\S+)$`).FindAllStringSubmatch(text, -1)
	if len(links) != 2 {
		t.Fatalf("%d links to sign in in\n%s", len(links), text)
	}
	for _, link := range links {
		jar, err := cookiejar.New(nil)
		must.Succeed(t, err)
		browser := &http.Client{Jar: jar, Timeout: time.Minute}
		page, err := browser.Get(link[1])
		must.Succeed(t, err)
		page.Body.Close()
		at := page.Request.URL
		query := at.Query()
		query.Set("-email", "carol@example.org")
		at.RawQuery = query.Encode()
		end, err := browser.Get(at.String())
		must.Succeed(t, err)
		end.Body.Close()
		got, err := url.ParseQuery(end.Request.URL.EscapedFragment())
		if err != nil || got.Get("access_token") == "" || got.Get("provider_token") == "" ||
			end.Request.URL.Path != "/" {
			t.Fatalf("%s ends at %s (%v)", link[1], end.Request.URL, err)
		}
		r, err := http.NewRequest(http.MethodGet, strings.Split(link[1], "/authorize")[0]+"/user", nil)
		must.Succeed(t, err)
		r.Header.Set("Authorization", "Bearer "+got.Get("access_token"))
		who, err := browser.Do(r)
		must.Succeed(t, err)
		body, err := io.ReadAll(who.Body)
		who.Body.Close()
		if err != nil || !bytes.Contains(body, []byte(`"email":"carol@example.org"`)) {
			t.Errorf("%s signs in %s", link[1], body)
		}
	}
}

func TestBusyPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	got, err := freeAddr(port)
	if err != nil && port < 1<<16-10_000 {
		t.Fatal(err)
	}
	if got == l.Addr().String() {
		t.Errorf("the busy %s is taken for free", got)
	}
}

func TestNoDaemon(t *testing.T) {
	var shown screen
	if err := run(t.Context(), t.TempDir(), t.TempDir(), &shown); err == nil ||
		!strings.Contains(err.Error(), "make build") {
		t.Errorf("without a built daemon: %v", err)
	}
}

package test

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/must"
)

// debugGet reads a page of the debug port, with a token if there is one.
func (p *process) debugGet(t testing.TB, method, path, token string) (int, string) {
	t.Helper()
	resp := p.debugOpen(t, method, path, token)
	defer resp.Body.Close()
	var b strings.Builder
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		fmt.Fprintln(&b, lines.Text())
	}
	return resp.StatusCode, b.String()
}

func (p *process) debugOpen(t testing.TB, method, path, token string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.debug+path, nil)
	must.Succeed(t, err)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(r)
	must.Succeed(t, err)
	return resp
}

var _ = effect("DEBUG_TOKEN", func(t *testing.T) {
	const token = "a token of 16 bytes"
	p := start(t, anyLimit, map[string]string{"DEBUG_TOKEN": strings.ReplaceAll(token, " ", "-"),
		"DEBUG_RECENT_SIZE": "1"})
	for given, want := range map[string]int{"": 401, "another-token-of-16-bytes": 401,
		strings.ReplaceAll(token, " ", "-"): 200} {
		if status, body := p.debugGet(t, "GET", "/recent", given); status != want {
			t.Errorf("with %q: %d %s, want %d", given, status, body, want)
		}
	}
	if status, _ := p.debugGet(t, "GET", "/stats", ""); status != 200 {
		t.Errorf("an open page: %d", status)
	}
	if strings.Contains(p.log.text(), "16-bytes") {
		t.Errorf("the log has the token:\n%s", p.log.text())
	}
	p = start(t, anyLimit, map[string]string{"DEBUG_RECENT_SIZE": "1"})
	if status, body := p.debugGet(t, "GET", "/recent", ""); status != 200 {
		t.Errorf("without a token: %d %s", status, body)
	}
})

var _ = effect("DEBUG_RECENT_SIZE", func(t *testing.T) {
	p := start(t, `[{key: k, @0/y}]`, map[string]string{"DEBUG_RECENT_SIZE": "2"})
	c := p.dial(t)
	for _, value := range []string{"one", "two", "three"} {
		decide1(t, c, "k", value)
	}
	if _, got := p.debugGet(t, "GET", "/recent", ""); !strings.Contains(got, "k=three") ||
		!strings.Contains(got, "k=two") ||
		strings.Contains(got, "k=one") {
		t.Errorf("the last two are\n%s", got)
	}
})

// TestTap_daemon: the stop of the daemon ends a tap, with all that it saw.
func TestTap_daemon(t *testing.T) {
	t.Parallel()
	p := start(t, anyLimit, map[string]string{"HTTP_READ_TIMEOUT": "100ms"})
	resp := p.debugOpen(t, "GET", "/tap?seconds=3600", "")
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	time.Sleep(300 * time.Millisecond) // longer than HTTP_READ_TIMEOUT
	decide1(t, p.dial(t), "k", "ann")
	if !lines.Scan() || !strings.Contains(lines.Text(), `"value":"ann"`) {
		t.Fatalf("%q %v", lines.Text(), lines.Err())
	}
	must.Succeed(t, p.Stop(time.Minute))
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after the stop: %q %v", lines.Text(), lines.Err())
	}
}

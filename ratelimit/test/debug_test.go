package test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

const debugToken = "a-token-of-many-bytes"

// foreignAddress is an address of this host that is not loopback; empty where it has none.
func foreignAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	must.Succeed(t, err)
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	return ""
}

// TestCounters_authorization resets a counter from this host, through a proxy next to the daemon and from a foreign
// address, each with and without the token, on daemons with and without one.
func TestCounters_authorization(t *testing.T) {
	t.Parallel()
	for _, configured := range []string{"", debugToken} {
		p := start(t, `[{key: user, @10/y}]`, map[string]string{"DEBUG_HOST": "0.0.0.0", "DEBUG_TOKEN": configured})
		_, port, err := net.SplitHostPort(p.debug)
		must.Succeed(t, err)
		here := "http://127.0.0.1:" + port
		target, err := url.Parse(here)
		must.Succeed(t, err)
		proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(target))
		defer proxy.Close()
		from := map[string]string{"this host": here, "a proxy": proxy.URL}
		if address := foreignAddress(t); address != "" {
			from["a foreign address"] = "http://" + net.JoinHostPort(address, port)
		} else {
			t.Log("this host has no address but loopback: no request comes from a foreign one")
		}
		c, resets := p.dial(t), 0
		logged := func() int { return strings.Count(p.log.text(), "counters reset") }
		f := func(method, who, sent, header string, status int, message string) {
			t.Helper()
			decide1(t, c, "user", "ann")
			r, err := http.NewRequest(method, from[who]+"/counters?domain=d&descriptor=user%3Dann", nil)
			must.Succeed(t, err)
			if sent != "" {
				r.Header.Set("Authorization", "Bearer "+sent)
			}
			if name, value, ok := strings.Cut(header, ": "); ok {
				r.Header.Set(name, value)
			}
			resp, err := http.DefaultClient.Do(r)
			must.Succeed(t, err)
			defer resp.Body.Close()
			var b strings.Builder
			for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
				b.WriteString(lines.Text())
			}
			if resp.StatusCode != status || !strings.Contains(b.String(), message) {
				t.Errorf("%s from %s with %q and %q, DEBUG_TOKEN=%q: %d %s, want %d %s", method, who, sent, header,
					configured, resp.StatusCode, b.String(), status, message)
			}
			if method == "DELETE" && status == 200 {
				resets++
				await.True(t, "the reset is logged", func() bool { return logged() >= resets })
			}
			if got := logged(); got != resets {
				t.Errorf("%s from %s: %d resets are logged, want %d", method, who, got, resets)
			}
		}
		for who := range from {
			for _, sent := range []string{"", debugToken, "another-token-of-many-bytes"} {
				switch {
				case configured != "" && sent == configured:
					f("GET", who, sent, "", 200, `"rule":"d.user"`)
					f("DELETE", who, sent, "", 200, `"deleted":1`)
					f("DELETE", who, sent, "Origin: http://127.0.0.1", 403, "web pages")
				case configured != "":
					f("GET", who, sent, "", 401, "DEBUG_TOKEN")
					f("DELETE", who, sent, "", 401, "DEBUG_TOKEN")
				case who == "this host":
					f("GET", who, sent, "", 200, `"rule":"d.user"`)
					f("DELETE", who, sent, "", 403, "needs DEBUG_TOKEN")
					f("GET", who, sent, "Sec-Fetch-Site: cross-site", 403, "web pages") // simple ones carry no Origin
				default:
					f("GET", who, sent, "", 403, "only from this host, or with DEBUG_TOKEN")
					f("DELETE", who, sent, "", 403, "only from this host, or with DEBUG_TOKEN")
				}
			}
		}
		if configured == "" {
			continue
		}
		var line struct{ Level, Message, By, Domain, Descriptor, Rule, Used string }
		p.log.await(t, "counters reset", &line)
		if line.Level != "warning" || line.By == "" || line.Domain != "d" || line.Descriptor != "user=ann" ||
			line.Rule != "d.user" ||
			line.Used == "" || line.Used == "0" {
			t.Errorf("the audit is %+v", line)
		}
		if strings.Contains(p.log.text(), debugToken) {
			t.Error("the log has the token")
		}
	}
}

// TestDebugCommands are counters and tap on a running daemon.
func TestDebugCommands(t *testing.T) {
	t.Parallel()
	p := start(t, `[{key: user, @10/y}]`, map[string]string{"DEBUG_TOKEN": debugToken})
	file := filepath.Join(t.TempDir(), "token")
	must.Succeed(t, os.WriteFile(file, []byte(debugToken+"\n"), 0o600))
	withToken, withFile := map[string]string{"DEBUG_TOKEN": debugToken}, map[string]string{"DEBUG_TOKEN_FILE": file}
	f := func(env map[string]string, exit int, args string, parts ...string) {
		t.Helper()
		out, err := command(env,
			strings.Fields(strings.ReplaceAll(args, "URL", "-debug_url http://"+p.debug))...).CombinedOutput()
		if code := exitOf(err); code != exit {
			t.Errorf("%q: exit status %d, want %d:\n%s", args, code, exit, out)
		}
		for _, part := range parts {
			if !strings.Contains(string(out), part) {
				t.Errorf("%q: no %q in:\n%s", args, part, out)
			}
		}
	}
	c := p.dial(t)
	for range 8 {
		decide1(t, c, "user", "ann")
	}
	f(withToken, 0, "counters get URL -domain d -descriptors user=ann",
		"d.user (rules.yaml:2:16): limit 10 a year, fixed_window: 8 used, 2 left, reset in ", " s, key d_user_ann_")
	f(withFile, 0, "counters get URL -domain d -descriptors user=ann -format json",
		`{"domain":"d","limits":[{"rule":"d.user",`)
	f(withFile, 0,
		"counters get URL -domain d -limit 5/hour -descriptor_json "+
			"{\"entries\":[{\"key\":\"user\",\"value\":\"a,b\"}]}",
		"limit of its own: limit 5 an hour, fixed_window: 0 used, 5 left, reset in ", `key "d_user_a,b_`)
	f(withFile, 0, "counters reset URL -domain d -descriptors user=ann", "8 used, 2 left",
		"1 deleted; above is how they stood\n")
	f(withToken, 0, "counters get URL -domain d -descriptors user=ann", ": 0 used, 10 left")
	f(withToken, 1, "counters get URL -domain d -descriptors other=ann",
		`ratelimit counters get: 404 no counter decides this descriptor: entry 1, ("other", "ann")`)
	f(nil, 1, "counters get URL -domain d -descriptors user=ann",
		"401 needs the header Authorization: Bearer with DEBUG_TOKEN")
	f(nil, 2, "counters reset URL -domain d -descriptors user=ann",
		"ratelimit counters reset: DEBUG_TOKEN, or DEBUG_TOKEN_FILE, is not set: a reset needs the daemon's\n")
	f(map[string]string{"DEBUG_TOKEN_FILE": file + "x"}, 2, "counters get URL -domain d -descriptors user=ann",
		"DEBUG_TOKEN_FILE")
	f(withToken, 2, "counters get URL -domain d -descriptors user", `-descriptors: "user" is no key=value pair`)
	f(withToken, 2, "counters get URL -domain d -limit 5 -descriptors user=ann",
		`400 limit: "5" is no limit, such as 10/minute`)
	f(withToken, 2, "counters get URL -domain d", "usage: ratelimit counters get")
	f(withToken, 2, "counters get URL -descriptors user=ann", "usage: ratelimit counters get")
	f(withToken, 2, "counters put", "usage: ratelimit counters get")
	f(withToken, 2, "counters", "usage: ratelimit counters get")
	f(nil, 0, "counters -h", "usage: ratelimit counters get")
	f(nil, 0, "counters get -h", "-debug_url")
	f(withToken, 2, "counters get -debug_url 127.0.0.1:6070 -domain d -descriptors user=ann", "want http://host:port")
	f(withToken, 1, "counters get -debug_url http://127.0.0.1:1 -domain d -descriptors user=ann",
		"http://127.0.0.1:1: ", "refused")

	f(nil, 1, "tap URL -seconds 1", "401 needs the header")
	f(withToken, 2, "tap URL -seconds 0", `400 seconds is "0"; want a whole number from 1 to 3600`)
	f(withToken, 2, "tap URL -code MAYBE", `400 code is "MAYBE"`)
	f(withToken, 2, "tap URL now", `ratelimit tap: "now" is no flag`)
	f(nil, 0, "tap -h", "-unmatched")
	f(withToken, 1, "tap -debug_url http://127.0.0.1:1", "refused")
	f(withFile, 0, "tap URL -seconds 1")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tap := command(withToken, "tap", "-debug_url", "http://"+p.debug, "-domain", "d", "-key", "user", "-seconds",
		"3600")
	out := newLines()
	tap.Stdout, tap.Stderr = out, out
	must.Succeed(t, tap.Start())
	go func() { <-ctx.Done(); tap.Process.Kill() }()
	await.True(t, "the tap prints a decision", func() bool {
		decide1(t, c, "user", "bob")
		// Over the limit by then, if the tap is slow to come.
		return strings.Contains(out.text(), `"entries":[{"key":"user","value":"bob"}],"code":"O`)
	})
	must.Succeed(t, p.Stop(time.Minute))
	if err := tap.Wait(); err != nil {
		t.Errorf("the tap after the daemon has stopped: %v\n%s", err, out.text())
	}

	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, `{"dropped":1}`)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	defer broken.Close()
	f(nil, 1, "tap -debug_url "+broken.URL, `{"dropped":1}`, "ratelimit tap: the stream broke off: ")
}

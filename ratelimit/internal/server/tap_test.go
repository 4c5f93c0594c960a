package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/ratelimit/internal/limits"
	"gatehouse/ratelimit/internal/limits/rulefile"
	"gatehouse/ratelimit/internal/observe"
	"gatehouse/ratelimit/internal/service"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

const tapRules = `[{key: k, @2/m}, {key: path, @1000/m}, {key: free, value: lunch},
  {key: pair, rate_limits: [{unit: day, requests_per_unit: 10}, {unit: hour, requests_per_unit: 10}]},
  {key: meters, rate_limits: [{unit: day, requests_per_unit: 10}, {unit: hour, requests_per_unit: 10},
    {unit: hour, requests_per_unit: 10, algorithm: sliding_window}, {unit: hour, requests_per_unit: 10, algorithm: token_bucket}]}]`

// newDebugRig is a rig whose HTTP listener is the debug port.
func newDebugRig(t testing.TB, d DebugOptions, o ...service.Options) *rig {
	t.Helper()
	r := newRig(t, append(o, service.Options{})[0], limits.Options{})
	loader := service.NewLoader(r.service, limits.Options{Settings: limits.Settings{NearRatio: 0.8}}, discard,
		func(int) {})
	must.Succeed(t, loader.Load(context.Background(), []rulefile.File{{Name: "shop.yaml",
		Text: []byte("domain: d\ndescriptors: " + short(tapRules))}}))
	r.http.Close()
	d.Service, d.Loader, d.Stats = r.service, loader, r.stats
	if d.Log == nil {
		d.Log = discard
	}
	r.http = httptest.NewUnstartedServer(NewDebug(d))
	r.http.Config.ReadTimeout = 200 * time.Millisecond
	r.http.Config.RegisterOnShutdown(r.service.Observer().Close)
	r.http.Start()
	t.Cleanup(r.http.Close)
	return r
}

// tap opens a tap and waits until it is there.
func (r *rig) tap(t testing.TB, query string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	resp, err := http.Get(r.http.URL + "/tap?" + query)
	must.Succeed(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("%d %v", resp.StatusCode, resp.Header)
	}
	return resp, bufio.NewScanner(resp.Body)
}

// listeners is how many taps are open.
func (r *rig) listeners() int {
	for room := range observe.MaxListeners {
		l, err := r.service.Observer().Listen(observe.Filter{Domain: "another"})
		if err != nil {
			return observe.MaxListeners - room
		}
		defer l.Close()
	}
	return 0
}

func next(t testing.TB, lines *bufio.Scanner) string {
	t.Helper()
	if !lines.Scan() {
		t.Fatalf("the stream has ended: %v", lines.Err())
	}
	return lines.Text()
}

func TestTap(t *testing.T) {
	t.Parallel()
	r := newDebugRig(t, DebugOptions{})
	_, all := r.tap(t, "")
	_, over := r.tap(t, "code=OVER_LIMIT&domain=d&key=k")
	_, unmatched := r.tap(t, "unmatched=1&seconds=3600&sample=1&rate=10000")
	time.Sleep(2 * r.http.Config.ReadTimeout) // which must not end a stream
	for range 3 {
		r.ask(t, req("d", "(k,v)"))
	}
	r.ask(t, req("d", "(j,v)"))
	want := func(line string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(line, part) {
				t.Errorf("no %s in %s", part, line)
			}
		}
	}
	for _, code := range []string{"OK", "OK", "OVER_LIMIT"} {
		want(next(t, all), `{"at":"2023-11-14T22:13:20Z","domain":"d","code":"`+code+`"`,
			`"rule":"d.k","file":"shop.yaml:2:`)
	}
	want(next(t, all), `"unmatched":"no_match"`)
	want(next(t, over), `"code":"OVER_LIMIT"`, `"limit":2,"remaining":0,"reset":40`)
	want(next(t, unmatched), `"entries":[{"key":"j","value":"v"}]`, `"unmatched":"no_match"`)
}

func TestTap_ends(t *testing.T) {
	t.Parallel()
	r := newDebugRig(t, DebugOptions{})
	idle := func() bool { return r.service.Observer().Watching() == nil }
	// After its time.
	_, lines := r.tap(t, "seconds=1")
	r.ask(t, req("d", "(free,lunch)"))
	next(t, lines)
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after its time: %q %v", lines.Text(), lines.Err())
	}
	await.True(t, "the listener is gone", idle)
	// When the reader goes.
	resp, _ := r.tap(t, "")
	if idle() {
		t.Error("there is no listener")
	}
	resp.Body.Close()
	await.True(t, "the listener is gone", idle)
	// When the daemon stops, with what is there.
	_, lines = r.tap(t, "seconds=3600")
	r.ask(t, req("d", "(free,lunch)"))
	stopped := make(chan error, 1)
	go func() { stopped <- r.http.Config.Shutdown(context.Background()) }()
	next(t, lines)
	if lines.Scan() || lines.Err() != nil {
		t.Errorf("after the stop: %q %v", lines.Text(), lines.Err())
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestTap_refusals(t *testing.T) {
	t.Parallel()
	r := newDebugRig(t, DebugOptions{})
	f := func(query, want string) {
		t.Helper()
		resp, body := r.post(t, "GET", "/tap?"+query, "")
		if resp.StatusCode != 400 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s, want 400 and %s", query, resp.StatusCode, body, want)
		}
	}
	f("code=MAYBE", `code is \"MAYBE\"; want OK or OVER_LIMIT`)
	f("unmatched=perhaps", `unmatched is \"perhaps\"; want true or false`)
	for _, sample := range []string{"0", "1.1", "-1", "NaN", "Inf", "x"} {
		f("sample="+sample, `sample is \"`+sample+`\"; want a number above 0, at most 1`)
	}
	for _, rate := range []string{"0", "10001", "-1", "1.5", "x", "99999999999999999999"} {
		f("rate="+rate, `rate is \"`+rate+`\"; want a whole number from 1 to 10000`)
	}
	f("seconds=3601", `seconds is \"3601\"; want a whole number from 1 to 3600`)
	f("doman=d", `there is no parameter \"doman\"; there are domain, key, code`)
	f("domain=a&domain=b", `domain stands twice`)

	for range observe.MaxListeners {
		r.tap(t, "")
	}
	resp, body := r.post(t, "GET", "/tap", "")
	if resp.StatusCode != 503 || !strings.Contains(body, "4 taps are open") ||
		!strings.Contains(body, "RESOURCE_EXHAUSTED") {
		t.Errorf("a fifth tap: %d %s", resp.StatusCode, body)
	}
	if resp, body := r.post(t, "HEAD", "/tap", ""); resp.StatusCode != 200 || body != "" {
		t.Errorf("HEAD: %d %q", resp.StatusCode, body)
	}
	r.service.Observer().Close()
	if resp, body := r.post(t, "DELETE", "/tap", ""); resp.StatusCode != 405 ||
		!strings.Contains(body, "this page takes GET, HEAD\"") {
		t.Errorf("DELETE: %d %s", resp.StatusCode, body)
	}
}

// TestTap_stalled: a reader that takes nothing is cut off, and until then no request waits for it.
func TestTap_stalled(t *testing.T) {
	t.Parallel()
	r := newDebugRig(t, DebugOptions{})
	_, other := r.tap(t, "rate=10000")
	var otherSaw, otherMissed int
	done := make(chan struct{})
	go func() {
		defer close(done)
		for other.Scan() {
			var line struct {
				Code    string
				Dropped int
			}
			if err := json.Unmarshal(other.Bytes(), &line); err != nil {
				t.Error(err)
			}
			otherMissed += line.Dropped
			if line.Code != "" {
				otherSaw++
			}
		}
	}()

	conn, err := net.Dial("tcp", r.http.Listener.Addr().String())
	must.Succeed(t, err)
	defer conn.Close()
	conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	io.WriteString(conn, "GET /tap?rate=10000&seconds=3600 HTTP/1.1\r\nHost: localhost\r\n\r\n")
	reader := bufio.NewReader(conn)
	if line, err := reader.ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Fatal(line, err)
	}

	// Full load, until the stalled one is cut off.
	stop := make(chan struct{})
	var callers sync.WaitGroup
	var slowest [4]time.Duration
	asked := [4]int{}
	for i := range 4 {
		callers.Go(func() {
			wide := req("d", "(path,"+strings.Repeat(fmt.Sprint(i), 200)+")")
			for {
				select {
				case <-stop:
					return
				default:
				}
				start := time.Now()
				if _, err := r.client.ShouldRateLimit(context.Background(), wide); err != nil {
					t.Error(err)
					return
				}
				asked[i]++
				slowest[i] = max(slowest[i], time.Since(start))
			}
		})
	}
	if n := r.listeners(); n != 2 {
		t.Errorf("%d listen, want 2", n)
	}
	await.True(t, "the stalled reader is cut off", func() bool { return r.listeners() == 1 })
	close(stop)
	callers.Wait()
	t.Logf("%v requests, the slowest %v", asked, slowest)
	if err := r.http.Config.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	<-done
	total := 0
	for _, n := range asked {
		total += n
	}
	if otherSaw == 0 || otherSaw+otherMissed != total {
		t.Errorf("the other reader saw %d events and was told of %d dropped, of %d requests", otherSaw, otherMissed,
			total)
	}
}

func TestRecentAndTop(t *testing.T) {
	t.Parallel()
	off := newDebugRig(t, DebugOptions{})
	for path, want := range map[string]string{"/recent": "off: DEBUG_RECENT_SIZE is 0",
		"/top": "off: DEBUG_TOP_KEYS is 0"} {
		if resp, body := off.post(t, "GET", path, ""); resp.StatusCode != 404 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}

	var now atomic.Int64 // the server reads it on other goroutines
	now.Store(exampleNow)
	r := newDebugRig(t, DebugOptions{}, service.Options{Observe: observe.Settings{RecentSize: 5, TopKeys: 5},
		Clock: func() time.Time { return time.Unix(now.Load(), 0) }})
	r.ask(t, req("d", "(k,a b)"))
	r.ask(t, req("d", "(k,a b)"))
	r.ask(t, req("d", "(k,a b)"))
	r.ask(t, req("d", "(pahts,/x)"))
	r.ask(t, req("e", "(k,v)"))
	now.Add(60)
	f := func(path, want string) {
		t.Helper()
		resp, body := r.post(t, "GET", path, "")
		if resp.StatusCode != 200 || body != want {
			t.Errorf("%s: %d\n%s\nwant\n%s", path, resp.StatusCode, body, want)
		}
	}
	f("/recent", `# refused, newest first; 0 skipped
2023-11-14T22:13:20Z d k="a b" by d.k (shop.yaml:2:16) limit 2 a minute, fixed_window, reset in 40 s, hits 1
# unmatched, newest first; 0 skipped
2023-11-14T22:13:20Z e k=v unknown_domain, hits 1
2023-11-14T22:13:20Z d pahts=/x no_match, nearest key path, hits 1
`)
	f("/recent?domain=e&format=json", `{
  "refused": {
    "skipped": 0,
    "descriptors": []
  },
  "unmatched": {
    "skipped": 0,
    "descriptors": [
      {
        "at": "2023-11-14T22:13:20Z",
        "domain": "e",
        "entries": [
          {
            "key": "k",
            "value": "v"
          }
        ],
        "hits": 1,
        "outcome": "unknown_domain"
      }
    ]
  }
}
`)
	f("/top", `# hits from 2023-11-14T22:13:00Z, for a minute; at most so much too high; key; rule
3 0 d k="a b" d.k
`)
	f("/top?domain=e&format=json", `{
  "from": "2023-11-14T22:13:00Z",
  "keys": []
}
`)
	for _, path := range []string{"/recent?domian=d", "/top?domian=d"} {
		if resp, body := r.post(t, "GET", path, ""); resp.StatusCode != 400 ||
			!strings.Contains(body, "there is no parameter") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
}

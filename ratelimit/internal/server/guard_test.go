package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"gatehouse/ratelimit/internal/stats"
)

const testToken = "0123456789abcdef"

var withToken = DebugOptions{DebugSettings: DebugSettings{Token: testToken}}

// TestGuard covers every row of the guard: which requests pass, and how others are answered.
func TestGuard(t *testing.T) {
	serve := func(token, method, peer, host string, header http.Header) *http.Response {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, "/page", nil)
		r.RemoteAddr, r.Host = peer, host
		for name, values := range header {
			r.Header[name] = values
		}
		g := guard{token}
		g.keepForeignOut(g.page(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("secret")) },
			append(readMethods, http.MethodDelete)...)).ServeHTTP(w, r)
		return w.Result()
	}
	f := func(token, method, peer, host, header string, status int, message string) {
		t.Helper()
		h := http.Header{}
		for line := range strings.SplitSeq(header, "\n") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				h.Add(name, value)
			}
		}
		resp := serve(token, method, peer, host, h)
		var body struct{ Code, Message string }
		json.NewDecoder(resp.Body).Decode(&body)
		if resp.StatusCode != status || body.Message != message {
			t.Errorf("%s from %s to %s with %q, token %q: %d %q, want %d %q", method, peer, host, header, token,
				resp.StatusCode, body.Message, status, message)
		}
		want := map[int][2]string{200: {}, 401: {"UNAUTHENTICATED", "Bearer"}, 403: {"PERMISSION_DENIED"},
			405: {"UNIMPLEMENTED"}}[status]
		if got := [2]string{body.Code, resp.Header.Get("WWW-Authenticate")}; got != want {
			t.Errorf("%d: code and WWW-Authenticate are %q, want %q", status, got, want)
		}
		if strings.HasPrefix(message, "not for web pages") { // the port answers, not the page
			return
		}
		if resp.Header.Get("X-Content-Type-Options") != "nosniff" || resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%d without its headers: %v", status, resp.Header)
		}
	}
	const (
		local, here, foreign = "127.0.0.1:50000", "127.0.0.1:6070", "10.0.0.7:50000"
		only                 = "only from this host, or with DEBUG_TOKEN"
		bearer               = "Authorization: Bearer " + testToken
		needs                = "needs the header Authorization: Bearer with DEBUG_TOKEN"
		origin               = "not for web pages: the request has the header Origin"
		name                 = "Host must be an IP address or localhost"
	)
	// Without a token: this host reads.
	for _, method := range []string{"GET", "HEAD"} {
		for _, peer := range []string{local, "127.9.8.7:1", "[::1]:50000", "[::ffff:127.0.0.1]:50000"} {
			f("", method, peer, here, "", 200, "")
			f("", method, peer, here, bearer, 200, "")
		}
	}
	f("", "DELETE", local, here, "", 403, "needs DEBUG_TOKEN")
	f("", "DELETE", local, here, bearer, 403, "needs DEBUG_TOKEN")
	for _, peer := range []string{foreign, "[2001:db8::1]:50000", "[::ffff:10.0.0.7]:50000", "128.0.0.1:1", "@", ""} {
		f("", "GET", peer, here, "", 403, only)
		f("", "GET", peer, here, bearer, 403, only)
		f("", "DELETE", peer, here, "", 403, only)
	}
	for _, header := range []string{"X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "Via: 1.1 proxy",
		"X-Forwarded-For: ", "x-forwarded-for: 10.0.0.7"} {
		f("", "GET", local, here, header, 403, only)
		f("", "DELETE", local, here, header, 403, only)
	}
	for _, host := range []string{"127.0.0.1", "localhost", "LocalHost:6070", "[::1]:6070", "[::1]", "10.1.2.3:6070",
		"::1"} {
		f("", "GET", local, host, "", 200, "")
	}
	for _, host := range []string{"evil.example", "evil.example:6070", "localhost.evil.example",
		"127.0.0.1.evil.example", "", "localhost.", "[::1", "[localhost]:1:2"} {
		if host == "[::1" { // read as its address
			continue
		}
		f("", "GET", local, host, "", 403, name)
	}
	// With one: every holder, from anywhere.
	for _, peer := range []string{local, foreign, "[2001:db8::1]:50000"} {
		for _, method := range []string{"GET", "HEAD", "DELETE"} {
			for _, host := range []string{here, "ratelimit.internal:6070"} {
				f(testToken, method, peer, host, bearer, 200, "")
				f(testToken, method, peer, host, "", 401, needs)
				f(testToken, method, peer, host, bearer+"\nX-Forwarded-For: 10.0.0.7\nVia: 1.1 proxy", 200, "")
				f(testToken, method, peer, host, bearer+"\nOrigin: http://evil.example", 403, origin)
			}
		}
	}
	for _, header := range []string{"Authorization: Bearer ", "Authorization: Bearer",
		"Authorization: Bearer " + testToken + "x",
		"Authorization: Bearer " + testToken[:15], "Authorization: Basic " + testToken, "Authorization: " + testToken,
		"Authorization: Bearer  " + testToken, bearer + "\n" + bearer, "Cookie: " + testToken, "Token: " + testToken} {
		f(testToken, "GET", local, here, header, 401, needs)
		f(testToken, "DELETE", foreign, here, header, 401, needs)
	}
	f(testToken, "GET", local, here, "Authorization: bearer "+testToken, 200, "") // RFC 9110, 11.1
	// Web pages.
	for _, token := range []string{"", testToken} {
		for _, method := range []string{"GET", "DELETE"} {
			f(token, method, local, here, bearer+"\nOrigin: null", 403, origin)
			f(token, method, local, here, bearer+"\nOrigin: ", 403, origin)
			f(token, method, local, here, bearer+"\nOrigin: http://"+here, 403, origin) // the guard's own
			for _, site := range []string{"cross-site", "same-site", "weird"} {
				f(token, method, local, here, bearer+"\nSec-Fetch-Site: "+site, 403,
					"not for web pages: the request has the header Sec-Fetch-Site: "+site)
			}
		}
		f(token, "GET", local, here, bearer+"\nSec-Fetch-Site: none", 200, "")
		f(token, "GET", local, here, bearer+"\nSec-Fetch-Site: same-origin", 200, "")
		f(token, "GET", local, here, bearer+"\nSec-Fetch-Site: none\nSec-Fetch-Site: cross-site", 403,
			"not for web pages: the request has the header Sec-Fetch-Site: cross-site")
	}
	// Other methods, of those who may come in.
	for _, method := range []string{"POST", "PUT", "OPTIONS"} {
		f(testToken, method, local, here, bearer, 405, "this page takes GET, HEAD, DELETE")
		f(testToken, method, local, here, "", 401, needs)
	}
}

// TestGuard_webPages: no debug page answers a request that a stranger's web page has made a browser send, by any name;
// tools pass by any name, and so do browsers at a name that is the operator's own.
func TestGuard_webPages(t *testing.T) {
	t.Parallel()
	port := NewDebug(DebugOptions{DebugSettings: DebugSettings{Token: testToken}, Log: discard,
		Stats: stats.NewRegistry(stats.Options{})})
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	f := func(want int, host string, header ...string) {
		t.Helper()
		for _, path := range []string{"/", "/stats", "/debug/pprof/cmdline", "/nowhere"} {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = host
			for i := 0; i < len(header); i += 2 {
				r.Header.Add(header[i], header[i+1])
			}
			w := httptest.NewRecorder()
			port.ServeHTTP(w, r)
			if forbidden := w.Code == 403; forbidden != (want == 403) {
				t.Errorf("%s at %s with %q: %d %s, want %d", path, host, header, w.Code, w.Body, want)
			}
			if want == 403 && !strings.Contains(w.Body.String(), "not for web pages") {
				t.Errorf("the message is %s", w.Body)
			}
		}
	}
	const here = "127.0.0.1:6070"
	browser := []string{"User-Agent", "Mozilla/5.0 (X11; Linux x86_64)", "Accept-Language", "de"}
	for _, origin := range []string{"http://evil.example", "null", "", "http://127.0.0.1:6071", "http://127.0.0.1"} {
		f(403, here, "Origin", origin)
	}
	f(200, here, "Origin", "http://127.0.0.1:6070")
	f(403, here, "Sec-Fetch-Site", "cross-site")
	f(403, here, "Sec-Fetch-Site", "same-site")
	f(200, here, "Sec-Fetch-Site", "none")
	for _, host := range []string{here, "[::1]:6070", "10.1.2.3", "localhost:6070", "localhost.:6070", own, own + ":6070",
		"ratelimit:6070", "a.localhost", "node.local", "ratelimit.prod.svc:6070", "r.p.svc.cluster.local",
		"ip-10-0-0-1.ec2.internal", "RATELIMIT.SVC."} {
		f(200, host, browser...)
	}
	for _, host := range []string{"evil.example", "evil.example:6070", "127.0.0.1.evil.example", "svc.evil.example",
		"local.example:6070", "notlocal.xlocal"} {
		f(403, host, browser...)
		f(403, host, browser[:2]...)
		f(403, host, browser[2:]...)
		f(403, host, "Accept-Language", "")
		f(200, host, "User-Agent", "curl/8.5")
		f(200, host, "User-Agent", "Prometheus/2.50")
		f(200, host, append(browser, "Authorization", "Bearer "+testToken)...)
		f(403, host, append(browser, "Authorization", "Bearer "+testToken[1:])...)
	}
}

// TestGuard_pages: these pages are guarded, and no other.
func TestGuard_pages(t *testing.T) {
	t.Parallel()
	r := newDebugRig(t, withToken)
	for _, path := range []string{"/tap", "/recent", "/top", "/counters"} {
		if resp, _ := r.post(t, "GET", path, ""); resp.StatusCode != 401 {
			t.Errorf("%s: %d, want 401", path, resp.StatusCode)
		}
	}
	for _, p := range debugPages {
		if strings.HasPrefix(p.Path, "/debug/pprof/") {
			continue // each takes its time
		}
		if guarded := slices.Contains([]string{"/tap", "/recent", "/top", "/counters"},
			p.Path); guarded != strings.HasPrefix(p.Help, "guarded; ") {
			t.Errorf("the index says of %s: %s", p.Path, p.Help)
		} else if resp, _ := r.post(t, "HEAD", p.Path, ""); !guarded && resp.StatusCode == 401 {
			t.Errorf("%s is guarded", p.Path)
		}
	}
}

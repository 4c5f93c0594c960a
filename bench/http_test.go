//go:build linux

package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/shared/must"
)

func TestParseAnswer(t *testing.T) {
	f := func(in string, status int, body string, size int) {
		t.Helper()
		gotStatus, gotBody, gotSize, err := parse([]byte(in), bufio.NewReader(nil))
		must.Succeed(t, err)
		if size > 0 && (gotStatus != status || string(gotBody) != body) || gotSize != size {
			t.Errorf("%q is %d %q of %d bytes, want %d %q of %d", in, gotStatus, gotBody, gotSize, status, body, size)
		}
	}
	whole := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
	f(whole, 200, "{}", len(whole))
	f(whole+"more", 200, "{}", len(whole))
	for i := range len(whole) {
		f(whole[:i], 0, "", 0)
	}
	f("HTTP/1.1 204 No Content\r\nDate: now\r\n\r\n", 204, "", 38)
	chunked := "HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1A\r\n" +
		"0123456789abcdef0123456789\r\n0\r\n\r\n"
	f(chunked, 503, "abc0123456789abcdef0123456789", len(chunked))
	for i := range len(chunked) {
		f(chunked[:i], 0, "", 0)
	}
	for _, bad := range []string{
		"SSH-2.0-x\r\nhello there\r\n\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
		"HTTP/1.1 200 OK\r\nDate: now\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
	} {
		if _, _, _, err := parse([]byte(bad), bufio.NewReader(nil)); err == nil {
			t.Errorf("%q is an answer", bad)
		}
	}
}

// TestHTTPLoop answers some of the requests otherwise than they want, and big ones in chunks.
func TestHTTPLoop(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) != `{"a":1}` || r.Header.Get("Authorization") != "Bearer abc" || r.URL.RawQuery != "b=2" {
			t.Errorf("%s %s %q", r.Method, r.URL, body)
		}
		switch n := asked.Add(1); {
		case n%4 == 0:
			w.WriteHeader(http.StatusNoContent)
		case n%4 == 1:
			io.WriteString(w, strings.Repeat("chunked", 10_000))
		default:
			io.WriteString(w, "ok")
		}
	}))
	defer server.Close()
	request := appendRequest(nil, "POST", "/a?b=2", "abc", []byte(`{"a":1}`))
	f := func(l load, answers int) {
		t.Helper()
		l.addr, l.conns = server.Listener.Addr().String(), 4
		l.traffic = httpTraffic{
			next: func(b []byte, _ int) ([]byte, bool) { return append(b, request...), true },
			judge: func(_, status int, body []byte) bool {
				return status == 200 && (len(body) == 2 || len(body) == 70_000)
			},
		}
		marks := 0
		l.mark = func() error { marks++; return nil }
		r, err := l.drive()
		must.Succeed(t, err)
		if r.ok == 0 || len(r.latency) < answers || r.failed == 0 || marks != 2 || r.elapsed <= 0 {
			t.Errorf("%d as wanted, %d not, %d measured, %d marks in %v; want some of both, at least %d, 2", r.ok,
				r.failed, len(r.latency), marks, r.elapsed, answers)
		}
	}
	f(load{run: time.Minute, calls: 300}, 300)
	f(load{run: time.Minute, calls: 300, warmCalls: 50}, 300)
	f(load{run: 300 * time.Millisecond, rate: 500}, 0)
}

// TestHTTPLoop_ends ends when there is nothing left to ask.
func TestHTTPLoop_ends(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	left := 20
	l := load{addr: server.Listener.Addr().String(), conns: 4, run: time.Minute, traffic: httpTraffic{
		next: func(b []byte, _ int) ([]byte, bool) {
			left--
			return appendRequest(b, "GET", "/", "", nil), left >= 0
		},
		judge: func(_, status int, _ []byte) bool { return status == 200 },
	}}
	r, err := l.drive()
	if err != nil || r.ok != 20 {
		t.Errorf("%+v, %v; want 20 answers", r, err)
	}
	left, l.warm = 20, time.Minute
	if _, err := l.drive(); err == nil {
		t.Error("a load without measured time has a result")
	}
}

func TestByAccounts(t *testing.T) {
	f := func(n, conns int, once bool, conn int, want ...int) {
		t.Helper()
		accounts := make([]account, n)
		for i := range accounts {
			accounts[i].email = strconv.Itoa(i)
		}
		traffic := byAccounts(conns, accounts, once, func(b []byte, _ int, a *account) []byte {
			return append(b, a.email...)
		}, answered(200))
		for _, next := range want {
			got, ok := traffic.next(nil, conn)
			if !ok {
				got = []byte("-1")
			}
			if string(got) != strconv.Itoa(next) {
				t.Errorf("connection %d of %d got %s of %d accounts, want %d", conn, conns, got, n, next)
			}
		}
	}
	f(5, 2, false, 0, 0, 2, 4, 0, 2)
	f(5, 2, false, 1, 1, 3, 1)
	f(5, 2, true, 1, 1, 3, -1, -1)
	f(1, 2, false, 1, -1)
}

// TestHTTPYardsticks measures each of those that need no database.
func TestHTTPYardsticks(t *testing.T) {
	for _, kind := range []string{"handler", "hash:4", "sign:RS256", "sign:ES256"} {
		l := load{addr: startYardstick(t, kind), traffic: getting("/yardstick"), conns: 2, run: time.Minute, calls: 20}
		if r, err := l.drive(); err != nil || r.failed != 0 {
			t.Errorf("%s: %+v, %v", kind, r, err)
		}
	}
}

func TestTake(t *testing.T) {
	f := func(answer string, want string) {
		t.Helper()
		var a account
		ok := a.take([]byte(answer))
		if got := fmt.Sprintf("%v %s %s", ok, a.access, a.refresh); got != want {
			t.Errorf("%s gave %s, want %s", answer, got, want)
		}
	}
	f(`{"access_token":"a.b.c","token_type":"bearer","refresh_token":"r","user":{}}`, "true a.b.c r")
	f(`{"access_token":"a.b.c"}`, "false a.b.c ")
	f(`{"access_token":"`, "false  ")
}

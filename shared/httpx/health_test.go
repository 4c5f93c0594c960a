package httpx_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"gatehouse/shared/httpx"
	"gatehouse/shared/must"
)

// ask is Health with more time than a busy machine needs.
func ask(t *testing.T, address, own string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return httpx.Health(ctx, address, own)
}

func TestHealth(t *testing.T) {
	t.Setenv("http_proxy", "http://127.0.0.1:1") // is not obeyed
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) })
	mux.HandleFunc("/bad", func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no\r\nstore\x1b["+strings.Repeat("x", 500), http.StatusServiceUnavailable)
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/ok", http.StatusFound) })
	server := httptest.NewServer(mux)
	defer server.Close()
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	must.Succeed(t, err)
	for _, good := range []string{"http://127.0.0.1:", "http://localhost:", "http://LOCALHOST:", "http://[::ffff:127.0.0.1]:"} {
		if err := ask(t, good+port+"/ok", ""); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	bad := ask(t, server.URL+"/bad", "")
	if bad == nil || !strings.HasPrefix(bad.Error(), server.URL+"/bad: 503 Service Unavailable: no  store [xxx") ||
		strings.ContainsAny(bad.Error(), "\r\n\x1b") || len(bad.Error()) > 300 {
		t.Errorf("%q", bad)
	}
	if err := ask(t, server.URL+"/moved", ""); err == nil || !strings.Contains(err.Error(), ": 302 Found") {
		t.Errorf("a redirect: %v", err)
	}
}

// A listener on IPv6's loopback alone is found as localhost.
func TestHealth_localhostOfIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})}
	go server.Serve(l)
	defer server.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	must.Succeed(t, err)
	if err := ask(t, "http://localhost:"+port+"/", ""); err != nil {
		t.Error(err)
	}
}

// What leads elsewhere is not asked. The addresses are documentation's: nothing answers there.
func TestHealth_elsewhere(t *testing.T) {
	for _, address := range []string{
		"http://192.0.2.1/", "http://example.org/", "http://169.254.169.254/latest/meta-data/", "http://0.0.0.0:1/",
		"http://[::]:1/", "http://2130706433:1/", "http://127.1:1/", "http://0x7f000001:1/", "http://localhost.:1/",
		"http://localhost.example.org:1/", "http://127.0.0.1@192.0.2.1/", "http://me:secret@127.0.0.1:1/",
		"https://127.0.0.1:1/", "file:///etc/passwd", "gopher://127.0.0.1:1/", "127.0.0.1:1", "", "http://", "http:127.0.0.1",
		"http://[fe80::1%25lo]:1/", "http://127.0.0.1\r\n:1/",
	} {
		if err := ask(t, address, "192.0.2.7"); !errors.Is(err, httpx.ErrNotLocal) {
			t.Errorf("%q: %v, want ErrNotLocal", address, err)
		}
	}
	// An address of another host is not called because the daemon is said to listen on it; an unspecified one is no
	// address.
	if err := ask(t, "http://192.0.2.7:1/", "192.0.2.7"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("another host's address: %v", err)
	}
	if err := ask(t, "http://0.0.0.0:1/", "0.0.0.0"); !errors.Is(err, httpx.ErrNotLocal) {
		t.Errorf("an unspecified address: %v", err)
	}
}

// A server that accepts and never answers is given up.
func TestHealth_silent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.Succeed(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	address := "http://" + l.Addr().String() + "/"
	if err := httpx.Health(ctx, address, ""); err == nil || !strings.HasPrefix(err.Error(), address+": ") {
		t.Error(err)
	}
}

func TestHealthURL(t *testing.T) {
	f := func(host, want string) {
		t.Helper()
		if got := httpx.HealthURL(host, "8081", "/livez"); got != want {
			t.Errorf("HealthURL(%q) = %s, want %s", host, got, want)
		}
	}
	f("", "http://localhost:8081/livez")
	f("0.0.0.0", "http://localhost:8081/livez")
	f("::", "http://localhost:8081/livez")
	f("::1", "http://[::1]:8081/livez")
	f("10.0.0.7", "http://10.0.0.7:8081/livez")
}

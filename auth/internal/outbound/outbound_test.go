package outbound

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestPublic(t *testing.T) {
	f := func(want bool, addresses ...string) {
		t.Helper()
		for _, a := range addresses {
			if got := Public(netip.MustParseAddr(a)); got != want {
				t.Errorf("%s is public: %v", a, got)
			}
		}
	}
	f(true, "93.184.216.34", "1.1.1.1", "172.32.0.1", "100.128.0.1", "223.255.255.255", "168.63.129.17",
		"2606:4700::1", "2a00:1450::5", "2001:200::1")
	f(false, "0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.255.0.1",
		"168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.192", "192.0.2.1",
		"192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
		"224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255")
	f(false, "::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "100::1",
		"2001:db8::1", "2001:2::1", "3fff::1", "5f00::1", "4000::1")
	// IPv4 inside IPv6 is judged as what it is.
	f(true, "::ffff:93.184.216.34", "64:ff9b::93.184.216.34", "2002:5db8:d822::1", "2606:4700::5efe:1.1.1.1")
	f(false, "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::127.0.0.1", "::93.184.216.34", "64:ff9b::127.0.0.1",
		"64:ff9b::a9fe:a9fe",
		"64:ff9b:1::1.1.1.1", "64:ff9b:1:ffff::7f00:1", "2002:7f00:1::1", "2002:a00:1::", "2002:c0a8:101::1",
		"2001:0:4136:e378:8000:63bf:3fff:fdd2", "2606:4700::5efe:10.0.0.1", "2606:4700::200:5efe:127.0.0.1")
	if Public(netip.Addr{}) {
		t.Error("no address is public")
	}
}

// site is a server on loopback with a request count.
type site struct {
	*httptest.Server
	calls atomic.Int64
}

func serve(t *testing.T, answer http.HandlerFunc) *site {
	s := new(site)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.calls.Add(1)
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
}

// publicAt treats the loopback addresses of these sites as public, by turns: an address has no port.
func publicAt(public ...bool) Options {
	var n atomic.Int64
	return Options{Public: func(netip.Addr) bool {
		i := int(n.Add(1)) - 1
		return public[min(i, len(public)-1)]
	}}
}

func get(c *http.Client, url string) (string, *http.Response, error) {
	resp, err := c.Get(url)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), resp, err
}

func direct(o Options) Clients {
	if o.Timeout == 0 {
		o.Timeout = 20 * time.Second
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 20
	}
	if o.Public == nil {
		o.Public = Public
	}
	return newClients(o, func(*http.Request) (*url.URL, error) { return nil, nil })
}

func TestClients(t *testing.T) {
	inner := serve(t, says("inner"))
	named := strings.Replace(inner.URL, "127.0.0.1", "localhost", 1)
	c := direct(Options{})
	t.Cleanup(c.CloseIdle)
	for _, u := range []string{inner.URL, named} {
		text, resp, err := get(c.Configured, u)
		if err != nil || text != "inner" {
			t.Fatalf("the operator's %s: %q, %v", u, text, err)
		}
		if FromPublic(resp) || discoveredIn(c, resp) != c.Configured {
			t.Errorf("an answer from loopback counts as public")
		}
		// The connection that the operator's URL opened is idle now, and no way in.
		if _, _, err := get(c.Discovered, u); !errors.Is(err, ErrNotPublic) {
			t.Errorf("an answer's %s: %v", u, err)
		}
	}
	if n := inner.calls.Load(); n != 2 {
		t.Errorf("%d requests arrived, want 2", n)
	}

	// Public at the first look-up, private at the second: the second belongs to another connection.
	o := direct(publicAt(true, true, true, false))
	t.Cleanup(o.CloseIdle)
	text, resp, err := get(o.Discovered, inner.URL)
	if err != nil || text != "inner" || !FromPublic(resp) || discoveredIn(o, resp) != o.Discovered {
		t.Errorf("an answer's public URL: %q, %v", text, err)
	}
	_, resp, err = get(o.Configured, inner.URL)
	if err != nil || !FromPublic(resp) {
		t.Errorf("the operator's public URL: %v", err)
	}
	o.CloseIdle()
	if _, _, err := get(o.Discovered, inner.URL); !errors.Is(err, ErrNotPublic) {
		t.Errorf("a name that has moved inside: %v", err)
	}
	if !FromPublic(&http.Response{}) || !FromPublic(&http.Response{Request: httptest.NewRequest("GET", "/", nil)}) {
		t.Error("an answer of another client doesn't count as public")
	}
}

func TestRedirects(t *testing.T) {
	inner := serve(t, says("inner"))
	outer := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, inner.URL, http.StatusFound)
		case "/here":
			http.Redirect(w, r, "/there", http.StatusFound)
		case "/chain":
			http.Redirect(w, r, "/away", http.StatusFound)
		case "/ever":
			http.Redirect(w, r, "/ever", http.StatusFound)
		case "/secret":
			http.Redirect(w, r, "https://"+r.Host+"/x", http.StatusFound)
		default:
			io.WriteString(w, "there")
		}
	})
	f := func(o Options, path, want string, fails error) {
		t.Helper()
		c := direct(o)
		defer c.CloseIdle()
		text, _, err := get(c.Configured, outer.URL+path)
		if fails == nil && (err != nil || text != want) || fails != nil && !errors.Is(err, fails) {
			t.Errorf("%s: %q, %v; want %q, %v", path, text, err, want, fails)
		}
	}
	f(Options{}, "/here", "there", nil)
	f(Options{}, "/away", "", ErrRedirect)
	f(Options{}, "/ever", "", ErrRedirect)
	f(Options{OtherHosts: true}, "/away", "inner", nil)
	f(Options{OtherHosts: true}, "/chain", "inner", nil)
	if n := inner.calls.Load(); n != 2 {
		t.Errorf("%d redirects across hosts were followed, want 2", n)
	}
	// The first answer is public, what it leads to is not; nor is what that leads to.
	public := publicAt(true, false)
	public.OtherHosts = true
	f(public, "/away", "", ErrNotPublic)
	public = publicAt(true, true, true, false)
	public.OtherHosts = true
	f(public, "/chain", "", ErrNotPublic)
	f(publicAt(true, false), "/here", "", ErrNotPublic)
	if n := inner.calls.Load(); n != 2 {
		t.Error("a public site reached one inside")
	}

	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+r.Host+"/", http.StatusFound)
	}))
	defer s.Close()
	c := direct(Options{OtherHosts: true})
	defer c.CloseIdle()
	c.Configured.Transport.(configured).open.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig
	if _, _, err := get(c.Configured, s.URL); !errors.Is(err, ErrRedirect) {
		t.Errorf("from https to http: %v", err)
	}
	same := func(a, b string, want bool) {
		t.Helper()
		x, _ := url.Parse(a)
		y, _ := url.Parse(b)
		if got := sameHost(x, y); got != want {
			t.Errorf("%s and %s: %v", a, b, got)
		}
	}
	same("http://a.test/x", "http://A.test:80/y", true)
	same("https://a.test", "https://a.test:443", true)
	same("http://a.test", "https://a.test", true)
	same("http://a.test:8080", "https://a.test", false)
	same("https://a.test", "https://a.test:8443", false)
	same("https://a.test", "https://b.a.test", false)
}

func TestLimits(t *testing.T) {
	const size = 1000
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(make([]byte, 100*size))
	z.Close()
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/fits":
			w.Write(make([]byte, size))
		case "/announced":
			w.Write(make([]byte, size+1))
		case "/chunked":
			w.(http.Flusher).Flush()
			w.Write(make([]byte, size+1))
		case "/packed":
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(packed.Bytes())
		case "/header":
			w.Header().Set("X-Long", strings.Repeat("x", 100<<10))
		case "/slow":
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	})
	c := direct(Options{MaxBytes: size})
	t.Cleanup(c.CloseIdle)
	f := func(path string, fails error) {
		t.Helper()
		text, _, err := get(c.Configured, s.URL+path)
		if !errors.Is(err, fails) || fails == nil && len(text) != size || len(text) > size {
			t.Errorf("%s: %d bytes, %v; want %v", path, len(text), err, fails)
		}
	}
	f("/fits", nil)
	f("/announced", ErrTooLarge)
	f("/chunked", ErrTooLarge)
	f("/packed", ErrTooLarge)
	if _, _, err := get(c.Configured, s.URL+"/header"); err == nil {
		t.Error("100 KiB of headers are taken")
	}
	c = direct(Options{Timeout: 100 * time.Millisecond})
	t.Cleanup(c.CloseIdle)
	if _, _, err := get(c.Configured, s.URL+"/slow"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a body that never ends: %v", err)
	}
}

// TestProxy: the proxy itself may be inside; the requested host is judged by its name.
func TestProxy(t *testing.T) {
	proxy := serve(t, says("through"))
	at, _ := url.Parse(proxy.URL)
	o := Options{Timeout: 20 * time.Second, MaxBytes: 100, Public: Public}
	c := newClients(o, func(*http.Request) (*url.URL, error) { return at, nil })
	t.Cleanup(c.CloseIdle)
	f := func(c *http.Client, u string, fails error, public bool) {
		t.Helper()
		text, resp, err := get(c, u)
		if !errors.Is(err, fails) || fails == nil && (text != "through" || FromPublic(resp) != public) {
			t.Errorf("%s: %q, %v", u, text, err)
		}
	}
	f(c.Configured, "http://10.0.0.1/", nil, false)
	f(c.Configured, "http://keys.acme.test/", nil, true)
	f(c.Discovered, "http://keys.acme.test/", nil, true)
	f(c.Discovered, "http://93.184.216.34/", nil, true)
	for _, host := range []string{"10.0.0.1", "[::1]", "localhost", "LOCALHOST.", "x.localhost", "0x7f.1", "2130706433",
		"127.1"} {
		f(c.Discovered, "http://"+host+"/", ErrNotPublic, false)
	}
	broken := newClients(o, func(*http.Request) (*url.URL, error) { return nil, fmt.Errorf("no proxy") })
	if _, err := broken.Discovered.Post("http://a.test", "", strings.NewReader("x")); err == nil {
		t.Error("a proxy that is no URL is taken")
	}
}

// discoveredIn is the client for a URL that stands in an answer which one of both clients got.
func discoveredIn(c Clients, resp *http.Response) *http.Client {
	if FromPublic(resp) {
		return c.Discovered
	}
	return c.Configured
}

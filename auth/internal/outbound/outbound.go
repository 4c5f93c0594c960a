// Package outbound makes HTTP clients for the requests that the daemon sends to other servers: for mail templates,
// identity providers, their keys, hooks and SMS gateways.
//
// There are two kinds of URLs, and a client for each:
//
//   - Configured: the operator has set the URL in the settings. It may lead anywhere, also to loopback and private
//     addresses.
//   - Discovered: an answer from a public address contained the URL (a redirect, an endpoint in a discovery
//     document, the URL of a key set). It must not lead to a loopback, link-local, private or otherwise reserved
//     address. The address is checked when the connection is made, after name resolution, so that
//     a name whose address changes between two look-ups (DNS rebinding) does not get around the check.
//
// A URL in an answer from an address that is not public counts as configured, since an identity provider inside the
// operator's network may give the URL of its keys. FromPublic tells the caller which of the clients such a URL needs.
//
// Both clients limit the time of the whole call, including the body, and the size of the body after decompression. They
// follow redirects only within a host and never from https to http. They use the proxy of HTTP_PROXY, HTTPS_PROXY and
// NO_PROXY. A proxy resolves names itself. So with a proxy, only addresses in URLs and the name localhost are checked
// here, and an answer through the proxy counts as coming from a public address.
package outbound

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	// ErrNotPublic means that an answer from a public address leads to an address that is not public.
	ErrNotPublic = errors.New("a public address leads to one that is not")
	// ErrRedirect means a redirect to another host, a redirect from https to http, or the sixth redirect of one call.
	ErrRedirect = errors.New("a redirect that is not followed")
	// ErrTooLarge means that the body exceeds Options.MaxBytes. The call returns it if the response announces its
	// length; otherwise reading the body returns it.
	ErrTooLarge = errors.New("the answer is too large")
)

// Options are the limits of the clients. The zero value has sensible limits.
type Options struct {
	Timeout    time.Duration // for a whole call, including the body; 0: 10 s
	MaxBytes   int64         // of a body after decompression; 0: 1 MiB
	MaxIdle    time.Duration // the idle time after which a connection is closed; 0: 30 s
	OtherHosts bool          // redirects may lead to another host, but not from a public host to one that is not
	// Public replaces the function Public in tests, in which every address is a loopback address.
	Public func(netip.Addr) bool
	// Watch is called for each call; nil: off. Target is the receiver's name for Watch, unless WithTarget sets another
	// one.
	Watch  Watch
	Target string
	// Inject adds trace headers to a call; nil: none. Set it only for receivers that may see the daemon's trace ids.
	Inject func(context.Context, http.Header)
}

// Clients has a client for each kind of URL. The clients keep connections open and should be long-lived.
type Clients struct {
	Configured, Discovered *http.Client

	watched bool
}

// New returns a client for each kind of URL.
func New(o Options) Clients {
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 1 << 20
	}
	o.MaxIdle = cmp.Or(o.MaxIdle, 30*time.Second)
	if o.Public == nil {
		o.Public = Public
	}
	return newClients(o, http.ProxyFromEnvironment)
}

func newClients(o Options, proxy func(*http.Request) (*url.URL, error)) Clients {
	g := &gate{options: o, proxy: proxy}
	g.open = o.transport(&net.Dialer{Timeout: o.Timeout})
	g.open.Proxy = proxy
	g.guarded = o.transport(&net.Dialer{Timeout: o.Timeout, Control: g.control})
	client := func(t http.RoundTripper) *http.Client {
		return &http.Client{Transport: t, Timeout: o.Timeout, CheckRedirect: o.checkRedirect}
	}
	return Clients{Configured: client(configured{g}), Discovered: client(discovered{g}), watched: o.Watch != nil}
}

// CloseIdle closes idle connections.
func (c Clients) CloseIdle() { c.Configured.CloseIdleConnections() }

// FromPublic reports whether resp, or a redirect that led to it, came from a public address. A caller that stores a URL
// from an answer must store this result too. A response of an http.Client that is not one of Clients counts as public.
func FromPublic(resp *http.Response) bool {
	for ; resp != nil; resp = resp.Request.Response {
		if resp.Request == nil {
			return true
		}
		if p, ok := resp.Request.Context().Value(peerKey{}).(*peer); !ok || p.public.Load() {
			return true
		}
	}
	return false
}

// gate sends the requests of both clients. The clients' connections are separate: a connection that was opened for a
// configured URL is never used for a discovered URL, whose address must be checked.
type gate struct {
	options       Options
	proxy         func(*http.Request) (*url.URL, error)
	open, guarded *http.Transport
}

type configured struct{ *gate }
type discovered struct{ *gate }

// RoundTrip sends a request for a configured URL, or for a redirect from one. Once a public address has answered, the
// URL of a redirect is treated as a discovered URL, which must not lead to a private address.
func (g configured) RoundTrip(r *http.Request) (*http.Response, error) {
	return g.roundTrip(r, r.Response != nil && FromPublic(r.Response))
}

func (g discovered) RoundTrip(r *http.Request) (*http.Response, error) { return g.roundTrip(r, true) }

func (g *gate) roundTrip(r *http.Request, isDiscovered bool) (*http.Response, error) {
	if g.options.Watch != nil {
		return g.watch(r, isDiscovered)
	}
	return g.send(r, isDiscovered)
}

// peer says whether the request was sent to a public address. It is stored in the request's context.
type peer struct{ public atomic.Bool }

type peerKey struct{}

func (g *gate) send(r *http.Request, isDiscovered bool) (*http.Response, error) {
	via, err := g.proxy(r)
	if err != nil {
		closeBody(r)
		return nil, err
	}
	remote := new(peer)
	rt := g.open
	switch {
	case via != nil:
		remote.public.Store(!g.localName(r.URL.Hostname()))
		if isDiscovered && !remote.public.Load() {
			closeBody(r)
			return nil, ErrNotPublic
		}
	case isDiscovered:
		rt = g.guarded
	}
	ctx := context.WithValue(r.Context(), peerKey{}, remote)
	if via == nil {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
			to, ok := i.Conn.RemoteAddr().(*net.TCPAddr)
			remote.public.Store(!ok || g.options.Public(to.AddrPort().Addr().Unmap()))
		}})
	}
	resp, err := rt.RoundTrip(r.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	if resp.ContentLength > g.options.MaxBytes {
		resp.Body.Close()
		return nil, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, g.options.MaxBytes)
	}
	resp.Body = &cappedBody{resp.Body, g.options.MaxBytes, g.options.MaxBytes}
	return resp, nil
}

func (g *gate) CloseIdleConnections() {
	g.open.CloseIdleConnections()
	g.guarded.CloseIdleConnections()
}

// control returns an error if a connection would lead to an address that is not public. It is a net.Dialer's Control.
func (g *gate) control(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	if !g.options.Public(to.Addr().Unmap()) {
		return ErrNotPublic
	}
	return nil
}

// localName reports whether a host is localhost or an address that is not public. It is for a host that a proxy will
// resolve.
func (g *gate) localName(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if a, err := netip.ParseAddr(host); err == nil {
		return !g.options.Public(a)
	}
	label := host[strings.LastIndexByte(host, '.')+1:]
	// An IPv4 address may also be spelled otherwise, as in "0x7f.1". Such a spelling ends in a number; a name does not
	// (WHATWG URL, host parser).
	return label == "localhost" || label != "" && label[0] >= '0' && label[0] <= '9'
}

func (o Options) checkRedirect(to *http.Request, via []*http.Request) error {
	from := via[len(via)-1].URL
	switch {
	case len(via) > 5:
		return fmt.Errorf("%w: it is the sixth", ErrRedirect)
	case from.Scheme == "https" && to.URL.Scheme != "https":
		return fmt.Errorf("%w: from https to %s", ErrRedirect, to.URL.Scheme)
	case !o.OtherHosts && !sameHost(from, to.URL):
		return fmt.Errorf("%w: to another host, %s", ErrRedirect, to.URL.Host)
	}
	return nil
}

// sameHost reports whether two URLs have the same host and port. A step from http to https is allowed if both have the
// default port.
func sameHost(a, b *url.URL) bool {
	port := func(u *url.URL) string {
		if p := u.Port(); p != "" {
			return p
		}
		return map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return strings.EqualFold(a.Hostname(), b.Hostname()) &&
		(port(a) == port(b) || a.Scheme == "http" && port(a) == "80" && b.Scheme == "https" && port(b) == "443")
}

func (o Options) transport(d *net.Dialer) *http.Transport {
	return &http.Transport{
		DialContext: d.DialContext, TLSHandshakeTimeout: d.Timeout,
		MaxIdleConns: 64, MaxIdleConnsPerHost: 4, IdleConnTimeout: o.MaxIdle,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

func closeBody(r *http.Request) {
	if r.Body != nil {
		r.Body.Close()
	}
}

// cappedBody is a response body whose Read returns ErrTooLarge when it exceeds max bytes.
type cappedBody struct {
	io.ReadCloser
	left, max int64
}

func (b *cappedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if int64(n) > b.left {
		n, b.left = int(b.left), 0
		return n, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, b.max)
	}
	b.left -= int64(n)
	return n, err
}

// Package console serves the admin console on a listener of its own: pages for support staff, a sign-in without tokens,
// and, below /api, a short list of requests that the handlers of the public port answer.
//
// It has no rules about accounts and keeps no state: a sign-in is a session in the database, an encrypted cookie, and a
// key that only the page's own storage holds. It cannot change keys, roles, passwords, addresses or metadata.
package console

import (
	"context"
	"embed"
	"errors"
	"io/fs"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"time"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/httpapi"
	"gatehouse/auth/internal/keys"
	"gatehouse/auth/internal/secret"
	"gatehouse/shared/httpx"
)

//go:embed pages
var pages embed.FS

// Options are what New needs.
type Options struct {
	Core *flow.Core
	// API answers the requests that are forwarded.
	API  *httpapi.Server
	Root *secret.Root
	// Keys lists the signing keys.
	Keys func(context.Context) ([]keys.Listed, error)
	// URL is where browsers find the console, without a path.
	URL *url.URL
	// Loopback is set if the console listens on a loopback address. It then answers under every loopback name.
	Loopback bool
	// Now is the clock for the age of cookies.
	Now func() time.Time
}

// Console is the handler of the console's listener.
type Console struct {
	Options
	accounts *account.Accounts
	factors  *factor.Factors
	mux      *http.ServeMux
	guarded  http.Handler
}

// New makes the handler of the console.
func New(o Options) *Console {
	s := &Console{Options: o, accounts: account.New(o.Core), factors: factor.New(o.Core), mux: http.NewServeMux()}
	s.handle("POST /session", s.postSession)
	s.handle("GET /session", s.signedIn(s.getSession))
	s.handle("DELETE /session", s.deleteSession)
	s.handle("POST /session/challenge", s.signedIn(s.postChallenge))
	s.handle("POST /session/verify", s.signedIn(s.postVerify))
	s.handle("/api/", s.signedIn(s.api))
	s.handle("/api", notFound)
	s.handle("/session/", notFound)
	s.handle("/session", notFound)
	s.mux.HandleFunc("/", getPage)
	s.guarded = http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if path.Clean(r.URL.Path) != r.URL.Path || r.URL.RawPath != "" {
			http.NotFound(w, r) // ServeMux would redirect
			return
		}
		s.mux.ServeHTTP(w, r)
	}))
	return s
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; " +
	"trusted-types 'none'"

// ServeHTTP answers only under the console's own host names. If it answered under any name, an attacker could make a
// name resolve to this machine, and the attacker's page would have the same origin as the console.
func (s *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "no-store")
	if s.secure() {
		h.Set("Strict-Transport-Security", "max-age=31536000")
	}
	if !strings.EqualFold(withPort(r.Host, s.URL.Scheme), withPort(s.URL.Host, s.URL.Scheme)) &&
		!(s.Loopback && httpx.IsLoopbackHost(r.Host)) {
		http.Error(w, "the admin console does not answer under this name: set AUTH_CONSOLE_EXTERNAL_URL",
			http.StatusForbidden)
		return
	}
	s.guarded.ServeHTTP(w, r)
}

func (s *Console) secure() bool { return s.URL.Scheme == "https" }

// withPort returns a host with its port or, if it has none, with the default port of the scheme.
func withPort(host, scheme string) string {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return host
	}
	port := "80"
	if scheme == "https" {
		port = "443"
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), port)
}

// handle adds a route. Its requests are read, limited in time and size, logged and refused as at the public port.
func (s *Console) handle(pattern string, h func(http.ResponseWriter, *http.Request, httpapi.ConsoleCall) error) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		s.API.ServeConsole(w, r, func(c httpapi.ConsoleCall) error {
			if method, _, ok := strings.Cut(pattern, " "); ok && r.Method != method { // such as a HEAD for a GET route
				return httpapi.NotFound()
			}
			if r.ContentLength != 0 {
				if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil ||
					kind != "application/json" {
					return httpapi.BadBody("The body must be application/json")
				}
			}
			return h(w, r, c)
		})
	})
}

func notFound(http.ResponseWriter, *http.Request, httpapi.ConsoleCall) error {
	return httpapi.NotFound()
}

// getPage serves the files of the pages. They contain no data of users.
func getPage(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	if name == "" {
		name = "index.html"
	}
	text, err := fs.ReadFile(pages, "pages/"+name)
	if err != nil || r.Method != http.MethodGet && r.Method != http.MethodHead || r.URL.Path == "/index.html" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	w.Write(text)
}

// Serve serves the console on l until ctx ends.
func (s *Console) Serve(ctx context.Context, l net.Listener, log *slog.Logger) error {
	srv := httpx.NewServer(s, httpx.Timeouts{Header: 2 * time.Second, Read: 30 * time.Second, Write: time.Minute,
		Idle: 2 * time.Minute}, log)
	return httpx.ServeUntil(ctx, srv, l, 5*time.Second)
}

// ExternalURL returns the URL of a console that listens at the given address: the configured URL or, if there is none,
// one made from the address. loopback says whether the address is a loopback address.
func ExternalURL(configured string, at net.Addr) (u *url.URL, loopback bool, err error) {
	tcp, err := netip.ParseAddrPort(at.String())
	if err != nil {
		return nil, false, err
	}
	loopback = tcp.Addr().Unmap().IsLoopback()
	if configured == "" {
		if !loopback {
			return nil, false, errors.New("is required for an address that is not loopback")
		}
		configured = "http://" + at.String()
	}
	u, err = url.Parse(configured)
	return u, loopback, err
}

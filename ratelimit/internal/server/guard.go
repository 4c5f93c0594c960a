package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// guard protects the pages of the debug port that show values of requests or change something. If DEBUG_TOKEN is set, a
// request must have this token. Otherwise these pages are only for programs on this host, and cannot be used to change
// anything. Requests that a browser sends for a web page are refused in either case.
type guard struct {
	token string // DEBUG_TOKEN; empty if it is not set
}

// page returns h, protected: it answers with an error to every request that the guard refuses, and to methods other
// than the given methods.
func (g guard) page(h http.HandlerFunc, methods ...string) http.HandlerFunc {
	h = only(h, methods...)
	writes := slices.Contains(methods, http.MethodDelete)
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		if status, code, message := g.refuses(r, writes); status != 0 {
			if status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			writeError(w, status, code, message)
			return
		}
		h(w, r)
	}
}

// refuses returns the reason why a request is refused; status is 0 if it is not refused. writes says that the page
// accepts DELETE. Requests of foreign web pages have been refused by keepForeignOut already; guarded pages refuse even
// web pages of the operator's own.
func (g guard) refuses(r *http.Request, writes bool) (status int, code, message string) {
	forbidden := func(message string) (int, string, string) {
		return http.StatusForbidden, "PERMISSION_DENIED", message
	}
	if len(r.Header.Values("Origin")) > 0 {
		return forbidden("not for web pages: the request has the header Origin")
	}
	switch {
	case g.token != "":
		if !g.hasToken(r) {
			return http.StatusUnauthorized, "UNAUTHENTICATED", "needs the header Authorization: Bearer with DEBUG_TOKEN"
		}
	case !fromThisHost(r):
		return forbidden("only from this host, or with DEBUG_TOKEN")
	case !isLocalName(r.Host): // a web page may have made its own name resolve to this host
		return forbidden("Host must be an IP address or localhost")
	case writes && r.Method == http.MethodDelete:
		return forbidden("needs DEBUG_TOKEN")
	}
	return 0, "", ""
}

// keepForeignOut returns h, protected: it answers with an error to requests that a browser sends for a foreign web
// page.
func (g guard) keepForeignOut(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if message := g.foreign(r); message != "" {
			writeError(w, http.StatusForbidden, "PERMISSION_DENIED", message)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// foreign returns the reason why a request may come from a foreign web page; empty if it does not. Such a request has
// the header Origin or Sec-Fetch-Site, unless the name of the page's host resolves to this host (DNS rebinding): the
// browser then takes this host for the page's own. Against such pages, foreign looks for Accept-Language: browsers
// always send it, whereas a page can set User-Agent as it likes.
func (g guard) foreign(r *http.Request) (message string) {
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "none" && site != "same-origin" {
			return "not for web pages: the request has the header Sec-Fetch-Site: " + site
		}
	}
	for _, origin := range r.Header.Values("Origin") {
		if _, host, ok := strings.Cut(origin, "://"); !ok || host != r.Host {
			return "not for web pages: the request has the header Origin"
		}
	}
	browser := strings.HasPrefix(r.UserAgent(), "Mozilla/") || len(r.Header.Values("Accept-Language")) > 0
	if browser && !isOwnName(r.Host) && !(g.token != "" && g.hasToken(r)) {
		return fmt.Sprintf("not for web pages at the name %q, which a stranger could own: use the address of this port",
			r.Host)
	}
	return ""
}

// hasToken reports whether the request has the guard's token. The comparison takes the same time for every wrong token,
// whatever its length.
func (g guard) hasToken(r *http.Request) bool {
	all := r.Header.Values("Authorization")
	if len(all) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(all[0], " ")
	got, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(g.token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// fromThisHost reports whether the connection comes from a loopback address and no proxy has forwarded the request.
func fromThisHost(r *http.Request) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "Via"} {
		if len(r.Header.Values(name)) > 0 {
			return false
		}
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback()
}

// isLocalName reports whether a Host header is an IP address or localhost.
func isLocalName(host string) bool {
	name := hostName(host)
	_, err := netip.ParseAddr(name)
	return err == nil || strings.EqualFold(name, "localhost")
}

// hostName returns the host in a Host header, without port and brackets.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		return strings.TrimSuffix(inner, "]")
	}
	return host
}

// isOwnName reports whether a Host header is an IP address, or a name that cannot be registered publicly: the machine's
// own name, a name without a dot, or a name in a zone for private use.
func isOwnName(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(hostName(host), "."))
	own, _ := os.Hostname()
	return isLocalName(host) || !strings.Contains(name, ".") || strings.EqualFold(name, own) ||
		slices.ContainsFunc([]string{".localhost", ".local", ".internal", ".svc"},
			func(zone string) bool { return strings.HasSuffix(name, zone) })
}

// readMethods are the methods of pages that change nothing.
var readMethods = []string{http.MethodGet, http.MethodHead}

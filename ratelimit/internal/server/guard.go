package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// guard protects the pages of the debug port that show values of requests, and those that write. Without a token they
// are for programs on this host, and only to read; with one, for its holders. Browsers that a web page sends there are
// refused in either case.
type guard struct {
	token string // DEBUG_TOKEN; empty: none
}

// page is h for those whom the guard lets in.
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

// refuses says why a request is not let in; a status of 0 lets it in. writes says that the page takes DELETE.
func (g guard) refuses(r *http.Request, writes bool) (status int, code, message string) {
	forbidden := func(message string) (int, string, string) {
		return http.StatusForbidden, "PERMISSION_DENIED", message
	}
	if len(r.Header.Values("Origin")) > 0 {
		return forbidden("not for web pages: the request has the header Origin")
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "none" && site != "same-origin" {
			return forbidden("not for web pages: the request has the header Sec-Fetch-Site: " + site)
		}
	}
	switch {
	case g.token != "":
		if !g.hasToken(r) {
			return http.StatusUnauthorized, "UNAUTHENTICATED", "needs the header Authorization: Bearer with DEBUG_TOKEN"
		}
	case !fromThisHost(r):
		return forbidden("only from this host, or with DEBUG_TOKEN")
	case !isLocalName(r.Host): // a name that a web page made lead here
		return forbidden("Host must be an IP address or localhost")
	case writes && r.Method == http.MethodDelete:
		return forbidden("needs DEBUG_TOKEN")
	}
	return 0, "", ""
}

// hasToken compares in constant time, whatever the lengths.
func (g guard) hasToken(r *http.Request) bool {
	all := r.Header.Values("Authorization")
	if len(all) != 1 {
		return false
	}
	scheme, token, _ := strings.Cut(all[0], " ")
	got, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(g.token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

// fromThisHost says whether the connection is from a loopback address and no proxy has passed the request on.
func fromThisHost(r *http.Request) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "Via"} {
		if len(r.Header.Values(name)) > 0 {
			return false
		}
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback()
}

// isLocalName says whether a Host header names this host by an address, or as localhost.
func isLocalName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else if inner, ok := strings.CutPrefix(host, "["); ok {
		host = strings.TrimSuffix(inner, "]")
	}
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}

// readMethods are those of a page that changes nothing.
var readMethods = []string{http.MethodGet, http.MethodHead}

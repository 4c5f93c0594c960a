package httpapi

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// firstSegments are the first segments of the paths of all routes. A prefix must not begin with one of them.
var firstSegments = []string{".well-known", "admin", "authorize", "callback", "factors", "health", "invite", "livez",
	"logout", "magiclink", "oauth", "openapi.json", "otp", "passkeys", "readyz", "reauthenticate", "recover", "resend",
	"scim", "settings", "signup", "sso", "token", "user", "verify"}

var prefixForm = regexp.MustCompile(`^(/[A-Za-z0-9_-]+)+$`)

// CheckPrefix returns an error if AUTH_API_PREFIX cannot have this value.
func CheckPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	if len(prefix) > 64 || !prefixForm.MatchString(prefix) {
		return fmt.Errorf("must be a path such as /auth/v1: letters, digits, \"-\", \"_\" and \"/\", none at its end, " +
			"at most 64 bytes")
	}
	first, _, _ := strings.Cut(prefix[1:], "/")
	if slices.Contains(firstSegments, first) {
		return fmt.Errorf("must not begin with /%s, which is a route", first)
	}
	return nil
}

// rewritten returns the request with the path that the routes match. It removes AUTH_API_PREFIX once, and only if the
// path has it without escapes. It also removes a slash at the end; slash says whether there was one.
func (l *liveSettings) rewritten(r *http.Request) (_ *http.Request, slash bool) {
	path, raw := r.URL.Path, r.URL.RawPath
	if n := len(l.Prefix); n > 0 && under(path, l.Prefix) && (raw == "" || under(raw, l.Prefix)) {
		path, raw = path[n:], raw[min(n, len(raw)):]
	}
	if len(path) > 1 && path[len(path)-1] == '/' {
		path, raw, slash = path[:len(path)-1], strings.TrimSuffix(raw, "/"), true
	}
	if len(path) == len(r.URL.Path) {
		return r, false
	}
	u := *r.URL
	u.Path, u.RawPath = path, raw
	r = r.WithContext(r.Context()) // a copy: the caller's request must not change
	r.URL = &u
	return r, slash
}

// under reports whether a path is below a prefix.
func under(path, prefix string) bool {
	return strings.HasPrefix(path, prefix) && len(path) > len(prefix) && path[len(prefix)] == '/'
}

// notFound returns the answer to a request for an unknown path. It has a hint if the path is the root, or a path that a
// client library uses behind a proxy.
func (c *call) notFound() *problem {
	p := *errNotFound
	switch {
	case c.r.URL.Path == "/":
		p.msg = "This is the API of Gatehouse auth, which has no pages of its own; /openapi.json describes it"
	case c.live.Prefix == "" && under(c.r.URL.Path, "/auth/v1"):
		p.msg += ": set AUTH_API_PREFIX=/auth/v1, or have the proxy strip it"
	}
	return &p
}

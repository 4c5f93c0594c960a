package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxPattern is the maximum length of a pattern in bytes. It bounds the cost of a match: pattern length × target
// length.
const maxPattern = 512

// rule is a compiled pattern of the list. Scheme, host, port and the rest are matched separately, so that a wildcard in
// one part never matches characters of another part.
type rule struct {
	text    string
	scheme  string
	slashes bool
	// host is nil if the host has no wildcard. Only such a rule can match an IP address that is not loopback.
	host    *regexp.Regexp
	pattern string // of the host
	// wide is set if the pattern ends in ** within the host: it matches any port, path and query.
	wide    bool
	hasPort bool
	port    *regexp.Regexp
	rest    *regexp.Regexp
}

// compile compiles one pattern.
func compile(text string) (r rule, err error) {
	r.text = text
	if len(text) > maxPattern {
		return r, fmt.Errorf("longer than %d bytes", maxPattern)
	}
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return r, errors.New("contains a control character")
	}
	if !utf8.ValidString(text) {
		return r, errors.New("is not UTF-8")
	}
	scheme, rest, ok := strings.Cut(text, ":")
	if !ok || !schemeForm.MatchString(scheme) {
		return r, errors.New("must begin with a scheme written out, such as https://")
	}
	if strings.IndexByte(rest, '#') >= 0 {
		return r, errors.New("contains a fragment, which is never compared")
	}
	if _, why := parse(scheme + "://a"); why != good {
		return r, errors.New(why.String())
	}
	r.scheme = scheme
	authority, slashes := strings.CutPrefix(rest, "//")
	if !slashes {
		if special(scheme) {
			return r, errors.New("must have // and a host after the scheme")
		}
		if rest == "" || strings.Trim(rest, "*") == "" {
			return r, errors.New("must say something after the scheme")
		}
		r.rest, err = compileText(rest)
		return r, err
	}
	r.slashes = true
	rest = ""
	if end := strings.IndexAny(authority, "/?"); end >= 0 {
		authority, rest = authority[:end], authority[end:]
	}
	if err := r.compileAuthority(authority, rest == ""); err != nil {
		return r, err
	}
	r.rest, err = compileText(rest)
	return r, err
}

// compileAuthority compiles host and port of a pattern. end is true if nothing follows them in the pattern.
func (r *rule) compileAuthority(authority string, end bool) (err error) {
	host, port := authority, ""
	if strings.HasPrefix(authority, "[") {
		i := strings.IndexByte(authority, ']')
		if i < 0 {
			return errors.New("the [ of an IPv6 address is not closed")
		}
		if ip, err := netip.ParseAddr(authority[1:i]); err != nil || !ip.Is6() || ip.Zone() != "" {
			return errors.New("the brackets at the host hold no IPv6 address")
		}
		host, port = authority[:i+1], authority[i+1:]
		if port != "" && port[0] != ':' {
			return errors.New("something other than a port follows the IPv6 address")
		}
		host = strings.ToLower(host)
	} else {
		if i := strings.IndexByte(authority, ':'); i >= 0 {
			host, port = authority[:i], authority[i:]
		}
		if host == "" && (special(r.scheme) || port != "") {
			return errors.New("has no host")
		}
		if host != "" && !plainHost(r.scheme, strings.ReplaceAll(host, "*", "a")) {
			return errors.New("the host may hold letters, digits, dots, hyphens, * and **")
		}
		if special(r.scheme) {
			host = strings.ToLower(host)
		}
	}
	r.pattern = host
	if strings.Contains(host, "*") {
		if r.host, err = stars(host, hostLabel, hostRun); err != nil {
			return err
		}
	}
	r.wide = end && port == "" && strings.HasSuffix(host, "**")
	if port == "" {
		return nil
	}
	r.hasPort = true
	port = port[1:]
	if port == "" || strings.Trim(port, "0123456789*") != "" {
		return errors.New("the port may hold digits and *")
	}
	if port == defaultPort(r.scheme) {
		r.hasPort = false // the scheme's default port, which targets may leave out
		return nil
	}
	r.port, err = stars(port, digits, digits)
	return err
}

// match reports whether the rule allows a target that parse has accepted.
func (r *rule) match(t *target) bool {
	if t.scheme != r.scheme && !(special(t.scheme) && t.is(r.scheme)) || t.slashes != r.slashes {
		return false
	}
	if t.slashes {
		if t.ip.IsValid() && r.host != nil && !t.ip.IsLoopback() {
			return false
		}
		host := t.host
		if special(t.scheme) || t.ip.IsValid() {
			host = strings.ToLower(host)
		}
		if r.host == nil && host != r.pattern || r.host != nil && !r.host.MatchString(host) {
			return false
		}
		if r.wide {
			return true
		}
		if !r.matchPort(t) {
			return false
		}
	}
	if !r.rest.MatchString(t.rest) {
		return false
	}
	// https://one.test/app/** must not allow /app/../admin, which leads to /admin. If resolving the dots changes the
	// path, the resolved path must be allowed too.
	plain, changed := withoutDots(t.rest)
	return !changed || r.rest.MatchString(plain)
}

func (r *rule) matchPort(t *target) bool {
	if !r.hasPort {
		return t.port == "" || t.port == defaultPort(t.scheme)
	}
	return t.port != "" && r.port.MatchString(t.port)
}

// withoutDots resolves . and .. in the path as browsers do, also if they are percent-encoded.
func withoutDots(rest string) (plain string, changed bool) {
	path, query := rest, ""
	if q := strings.IndexByte(rest, '?'); q >= 0 {
		path, query = rest[:q], rest[q:]
	}
	if strings.IndexByte(path, '.') < 0 && strings.IndexByte(path, '%') < 0 {
		return rest, false
	}
	segments := strings.Split(path, "/")
	out := segments[:0:0]
	for i, s := range segments {
		last := i == len(segments)-1
		switch strings.ReplaceAll(strings.ToLower(s), "%2e", ".") {
		case ".":
			changed = true
			if last {
				out = append(out, "")
			}
		case "..":
			changed = true
			if len(out) > 1 {
				out = out[:len(out)-1]
			}
			if last {
				out = append(out, "")
			}
		default:
			out = append(out, s)
		}
	}
	if !changed {
		return rest, false
	}
	return strings.Join(out, "/") + query, true
}

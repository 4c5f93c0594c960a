package redirect

import (
	"cmp"
	"net/netip"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// target is a redirect target, split into parts of the original text.
type target struct {
	scheme string // without ":", in its original case
	// slashes is set if // and an authority follow the scheme. Otherwise rest is everything after the colon.
	slashes bool
	host    string // including the brackets of an IPv6 address
	port    string // "" if there is none
	rest    string // path and query, without the fragment
	ip      netip.Addr
}

// reason is why a target is refused.
type reason uint8

const (
	good reason = iota
	empty
	tooLong
	badBytes
	noScheme
	scriptScheme
	noHost
	userInfo
	badHost
	badNumber
	badPort
	foreignIP
	unlisted
)

var words = [...]string{
	good:    "allowed",
	empty:   "it is empty",
	tooLong: "it is longer than 2,048 bytes",
	badBytes: "it contains a backslash, a control character or bytes that are not UTF-8, or begins or ends with " +
		"a blank",
	noScheme:     "it has no scheme: only absolute URLs are allowed",
	scriptScheme: "its scheme runs a script or reads local data; it is never allowed, listed or not",
	noHost:       "it has no host",
	userInfo:     "it contains a user name or password before the host",
	badHost:      "its host contains something other than letters, digits, dots and hyphens",
	badNumber:    "its host is a number that browsers read as an address",
	badPort:      "its port is not a number from 1 to 65535",
	foreignIP:    "its host is an IP address that is neither the site's nor written out in the redirect list",
	unlisted:     "it is not on the host, scheme and port of the site URL, and no item of the redirect list matches",
}

func (r reason) String() string { return words[r] }

// parse splits a target into its parts. why is the constant good or, if browsers might read the target differently from
// this package, the reason.
func parse(text string) (t target, why reason) {
	if text == "" {
		return t, empty
	}
	if len(text) > maxTarget {
		return t, tooLong
	}
	if !isClean(text) {
		return t, badBytes
	}
	colon := strings.IndexByte(text, ':')
	if colon <= 0 || !special(text[:colon]) && !schemeForm.MatchString(text[:colon]) {
		return t, noScheme
	}
	t.scheme, t.rest = text[:colon], text[colon+1:]
	for _, s := range [...]string{"javascript", "data", "vbscript", "blob", "filesystem", "file", "about",
		"view-source"} {
		if t.is(s) {
			return t, scriptScheme
		}
	}
	if hash := strings.IndexByte(t.rest, '#'); hash >= 0 {
		t.rest = t.rest[:hash]
	}
	authority, slashes := strings.CutPrefix(t.rest, "//")
	if !slashes {
		// Browsers read https:evil.test and https:/evil.test as https://evil.test.
		if special(t.scheme) || t.rest == "" {
			return t, noHost
		}
		return t, good
	}
	t.slashes = true
	t.rest = ""
	if end := strings.IndexAny(authority, "/?"); end >= 0 {
		authority, t.rest = authority[:end], authority[end:]
	}
	return t, t.split(authority)
}

// split reads host and port from the authority of a target.
func (t *target) split(authority string) reason {
	if strings.IndexByte(authority, '@') >= 0 {
		return userInfo
	}
	if strings.HasPrefix(authority, "[") {
		end := strings.IndexByte(authority, ']')
		if end < 0 {
			return badHost
		}
		ip, err := netip.ParseAddr(authority[1:end])
		if err != nil || !ip.Is6() || ip.Zone() != "" {
			return badHost
		}
		t.ip = ip.Unmap()
		t.host, authority = authority[:end+1], authority[end+1:]
		if authority == "" {
			return good
		}
		if authority[0] != ':' {
			return badHost
		}
		return t.setPort(authority[1:])
	}
	t.host = authority
	colon := strings.IndexByte(authority, ':')
	if colon >= 0 {
		t.host = authority[:colon]
	}
	if t.host == "" {
		if special(t.scheme) || colon >= 0 {
			return noHost
		}
		return good // such as myapp:///callback
	}
	if !plainHost(t.scheme, t.host) {
		return badHost
	}
	if last := t.host[strings.LastIndexByte(t.host, '.')+1:]; last[0] <= '9' && numeric.MatchString(last) {
		ip, err := netip.ParseAddr(t.host)
		if err != nil {
			return badNumber // 2130706433, 127.1, 0x7f.0.0.1 and 010.0.0.1 are all spellings of IPv4 addresses
		}
		t.ip = ip
	}
	if colon < 0 {
		return good
	}
	return t.setPort(authority[colon+1:])
}

func (t *target) setPort(port string) reason {
	if port == "" || len(port) > 5 || port[0] == '0' || len(port) == 5 && port > "65535" ||
		strings.Trim(port, "0123456789") != "" {
		return badPort
	}
	t.port = port
	return good
}

func (t *target) is(scheme string) bool { return strings.EqualFold(t.scheme, scheme) }

func (t *target) web() bool { return t.slashes && (t.is("http") || t.is("https")) }

// effectivePort returns the port or, without one, the scheme's default port; "" if there is none.
func (t *target) effectivePort() string { return cmp.Or(t.port, defaultPort(t.scheme)) }

// special reports whether browsers repair a malformed authority after this scheme. These are the schemes that have a
// default port.
func special(scheme string) bool { return defaultPort(scheme) != "" }

func defaultPort(scheme string) string {
	switch strings.ToLower(scheme) {
	case "https", "wss":
		return "443"
	case "http", "ws":
		return "80"
	case "ftp":
		return "21"
	}
	return ""
}

// isClean reports whether text has no characters that browsers drop or replace before they parse a URL.
func isClean(text string) bool {
	return text[0] != ' ' && text[len(text)-1] != ' ' && utf8.ValidString(text) &&
		!strings.ContainsFunc(text, func(r rune) bool {
			return r < ' ' || r == '\\' || r == 0x7f || r > 0x7f &&
				(unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Z, r))
		})
}

// schemeForm is the form of a scheme. numeric matches the last label of a host that, by the WHATWG URL standard, must
// be an IPv4 address.
var (
	schemeForm = regexp.MustCompile(`\A[A-Za-z][A-Za-z0-9+.-]*\z`)
	numeric    = regexp.MustCompile(`\A(?:0[Xx][0-9A-Fa-f]*|[0-9]+)\z`)
)

// plainHost reports whether a host consists of labels of letters, digits and hyphens. If the scheme is not special,
// underscores are allowed too.
func plainHost(scheme, host string) bool {
	chars := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._"
	if special(scheme) {
		chars = strings.TrimSuffix(chars, "_")
	}
	return strings.Trim(host, chars) == "" && host[0] != '.' && host[len(host)-1] != '.' &&
		!strings.Contains(host, "..")
}

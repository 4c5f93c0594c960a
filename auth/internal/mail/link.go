package mail

import (
	"fmt"
	"net/url"
	"strings"
)

// Paths are the settings AUTH_MAILER_URLPATHS_*, each a path or a whole URL; "" if not set.
type Paths struct {
	// Path, or whole URL, of the link in an invitation; unset: /verify appended to API_EXTERNAL_URL.
	Invite string `env:"AUTH_MAILER_URLPATHS_INVITE"`
	// As AUTH_MAILER_URLPATHS_INVITE, in a confirmation.
	Confirmation string `env:"AUTH_MAILER_URLPATHS_CONFIRMATION"`
	// As AUTH_MAILER_URLPATHS_INVITE, in recovery mails and sign-in links.
	Recovery string `env:"AUTH_MAILER_URLPATHS_RECOVERY"`
	// As AUTH_MAILER_URLPATHS_INVITE, in mails about a change of address.
	EmailChange string `env:"AUTH_MAILER_URLPATHS_EMAIL_CHANGE"`
}

// Links makes the links that mails contain and that the admin endpoint generate_link returns (docs/mail.md#links). It
// is immutable.
type Links struct {
	paths map[string]*url.URL // by the type parameter of the link; nil if not set
}

// The values of the parameter "type" of links.
const (
	LinkInvite      = "invite"
	LinkSignup      = "signup"
	LinkRecovery    = "recovery"
	LinkMagicLink   = "magiclink"
	LinkEmailChange = "email_change"
)

// NewLinks parses the paths. Its error names the setting of the first path that is malformed.
func NewLinks(p Paths) (*Links, error) {
	l := &Links{paths: map[string]*url.URL{}}
	for _, s := range []struct {
		setting, path string
		types         []string
	}{
		{"INVITE", p.Invite, []string{LinkInvite}},
		{"CONFIRMATION", p.Confirmation, []string{LinkSignup}},
		{"RECOVERY", p.Recovery, []string{LinkRecovery, LinkMagicLink}},
		{"EMAIL_CHANGE", p.EmailChange, []string{LinkEmailChange}},
	} {
		if s.path == "" {
			continue
		}
		u, err := url.Parse(s.path)
		if err != nil {
			return nil, fmt.Errorf("AUTH_MAILER_URLPATHS_%s: %w", s.setting, err)
		}
		if u.Scheme != "" && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
			return nil, fmt.Errorf("AUTH_MAILER_URLPATHS_%s: %q is neither a path nor an http URL", s.setting, s.path)
		}
		for _, t := range s.types {
			l.paths[t] = u
		}
	}
	return l, nil
}

// URL returns {external}{path}?token=…&type=…&redirect_to=…. The order of the parameters is fixed, since tests of
// client libraries compare whole links.
//
// external is API_EXTERNAL_URL or an allowed host, which the caller has checked. linkType is one of the constants
// Link*. If no path is set for the type, /verify is appended to external's path. Otherwise the configured path is
// resolved as a reference relative to external, so that /verify, for example, replaces external's path. A query or
// fragment in external or in the path is dropped.
func (l *Links) URL(external, linkType, tokenHash, redirectTo string) string {
	u, err := url.Parse(external)
	if err != nil { // not reached with checked settings; keep the text as it is
		u = &url.URL{Opaque: external}
	}
	if path := l.paths[linkType]; path != nil {
		u = u.ResolveReference(path)
	} else {
		u = u.JoinPath("verify")
	}
	u.Fragment, u.RawFragment = "", ""
	u.RawQuery = "token=" + url.QueryEscape(tokenHash) + "&type=" + url.QueryEscape(linkType) +
		"&redirect_to=" + escapeTarget(redirectTo)
	return u.String()
}

// verbatim are the characters that need no escape in the parameter redirect_to, so that a simple target such as
// https://app.acme.test/home stays readable. The semicolon is not among them, because Go's query parser drops a
// parameter that contains one.
const verbatim = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/?@!$*,()[]"

// escapeTarget returns the target as it is if it consists only of characters of verbatim, and otherwise escapes all of
// it.
func escapeTarget(target string) string {
	if strings.Trim(target, verbatim) != "" {
		return url.QueryEscape(target)
	}
	return target
}

package mail

import (
	"fmt"
	"net/url"
	"strings"
)

// Paths are MAILER_URLPATHS_*: each a path, or a whole URL. "" is unset.
type Paths struct {
	// Path, or whole URL, of the link in an invitation; unset: /verify below API_EXTERNAL_URL, its path kept.
	Invite string `env:"AUTH_MAILER_URLPATHS_INVITE"`
	// The same in a confirmation.
	Confirmation string `env:"AUTH_MAILER_URLPATHS_CONFIRMATION"`
	// The same in recovery mails and sign-in links.
	Recovery string `env:"AUTH_MAILER_URLPATHS_RECOVERY"`
	// The same in mails about a change of address.
	EmailChange string `env:"AUTH_MAILER_URLPATHS_EMAIL_CHANGE"`
}

// Links makes the links in mails and for generate_link (docs/mail.md#links). It never changes.
type Links struct {
	paths map[string]*url.URL // by the link's type; nil: unset
}

// The type parameters of links.
const (
	LinkInvite      = "invite"
	LinkSignup      = "signup"
	LinkRecovery    = "recovery"
	LinkMagicLink   = "magiclink"
	LinkEmailChange = "email_change"
)

// NewLinks parses the paths; the error names the setting of the first malformed path.
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

// URL returns {external}{path}?token=…&type=…&redirect_to=…, in this order, which clients' tests compare.
//
// external is API_EXTERNAL_URL or a listed host, which the caller has checked. linkType is one of Link*. If the path is
// unset, it is external's path and /verify. If it is set, it is resolved as a reference, so that /verify replaces
// external's path. A query or fragment in either is dropped.
func (l *Links) URL(external, linkType, tokenHash, redirectTo string) string {
	u, err := url.Parse(external)
	if err != nil { // the settings were checked: this text was never a URL, and stays as it is
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

// verbatim are the bytes that need no escape in the link's redirect_to, so that a plain https://app.acme.test/home is
// not escaped. The semicolon is missing because Go's query parser drops a parameter that contains one.
const verbatim = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/?@!$*,()[]"

// escapeTarget escapes the whole target if it contains any byte that is not in verbatim.
func escapeTarget(target string) string {
	if strings.Trim(target, verbatim) != "" {
		return url.QueryEscape(target)
	}
	return target
}

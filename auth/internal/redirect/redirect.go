// Package redirect decides where a link or an answer may send a browser
// (docs/api.md#where-links-and-answers-may-lead).
//
// It knows neither HTTP nor settings and queries no DNS. A target is accepted only when it is written so plainly that
// a browser (the WHATWG URL standard) and this package cannot read it differently: no user name, no backslash, no
// control character, no number that is secretly an address.
package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// maxTarget is the longest target in bytes that is allowed: it is stored while a browser is at a provider, for a
// client that is not known yet.
const maxTarget = 2 << 10

// List is what targets are judged by. It never changes.
type List struct {
	site    target
	anyPort bool
	rules   []rule
}

// New compiles SITE_URL and URI_ALLOW_LIST. Blanks around an item are dropped, and so are empty items.
// anyPort is AUTH_REDIRECT_ANY_PORT_AND_SCHEME: the site's host with http or https on any port. Every
// bad item is reported, by its text and place.
func New(site string, list []string, anyPort bool) (*List, error) {
	l := &List{anyPort: anyPort}
	var why reason
	if l.site, why = parse(site); why != good || !l.site.web() {
		return nil, fmt.Errorf("site URL %q: want an absolute http or https URL", site)
	}
	var errs []error
	for i, text := range list {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		r, err := compile(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("item %d of the redirect list, %q: %w", i+1, text, err))
			continue
		}
		l.rules = append(l.rules, r)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return l, nil
}

// Allowed says whether a browser may be sent to the target. A target on the site allocates nothing.
func (l *List) Allowed(text string) bool {
	_, why := l.judge(text)
	return why == good
}

// Explain is Allowed with the reason in words: for `auth redirect test`.
func (l *List) Explain(text string) (allowed bool, words string) {
	r, why := l.judge(text)
	if why != good {
		return false, why.String()
	}
	if r == nil {
		return true, "it is on the host of the site URL"
	}
	return true, fmt.Sprintf("it matches %q of the redirect list", r.text)
}

func (l *List) judge(text string) (*rule, reason) {
	t, why := parse(text)
	if why != good {
		return nil, why
	}
	if l.onSite(&t) {
		return nil, good
	}
	for i := range l.rules {
		if l.rules[i].match(&t) {
			return &l.rules[i], good
		}
	}
	if t.ip.IsValid() {
		return nil, foreignIP
	}
	return nil, unlisted
}

// onSite: the site's own origin, and any port of this machine while the site is on it.
func (l *List) onSite(t *target) bool {
	if !t.web() {
		return false
	}
	local := loopbackHost(l.site.host)
	if strings.EqualFold(t.host, l.site.host) {
		return l.anyPort || t.is(l.site.scheme) && (local || t.effectivePort() == l.site.effectivePort())
	}
	return local && t.ip.IsLoopback()
}

// loopbackHost: the names for which every port is the developer's own.
func loopbackHost(host string) bool {
	switch {
	case strings.EqualFold(host, "localhost"), host == "0.0.0.0", host == "[::]":
		return true
	case host == "" || host[0] != '[' && (host[0] < '0' || host[0] > '9'):
		return false
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.IsLoopback()
}

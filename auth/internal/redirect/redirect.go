// Package redirect decides where a link or an answer may send a browser (docs/api.md#where-links-and-answers-may-lead).
//
// It knows neither HTTP nor settings, and does not query DNS. It accepts a target only if browsers (which follow the
// WHATWG URL standard) and this package cannot read it differently: the target must not have a user name, a backslash,
// a control character, or a number that is another spelling of an IP address.
package redirect

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// maxTarget is the maximum length of a target in bytes. It is limited because targets of unknown clients are stored
// while their browsers are at a provider.
const maxTarget = 2 << 10

// List is the list of allowed targets. It never changes.
type List struct {
	site    target
	origin  string // of the site URL, as it is written
	anyPort bool
	rules   []rule
}

// New compiles SITE_URL and URI_ALLOW_LIST. It ignores spaces around items, and empty items. anyPort is
// AUTH_REDIRECT_ANY_PORT_AND_SCHEME: it allows the site's host with http or https on any port. The error has every
// malformed item, with its text and position.
func New(site string, list []string, anyPort bool) (*List, error) {
	l := &List{anyPort: anyPort}
	var why reason
	if l.site, why = parse(site); why != good || !l.site.web() {
		return nil, fmt.Errorf("site URL %q: want an absolute http or https URL", site)
	}
	before, _, _ := strings.Cut(site, "#")
	l.origin = strings.TrimSuffix(before, l.site.rest)
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

// Allowed reports whether a browser may be sent to a target. For a target on the site, it does not allocate.
func (l *List) Allowed(text string) bool {
	_, why := l.judge(text)
	return why == good
}

// Explain does what Allowed does, and returns the reason in words, for the command "auth redirect test".
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
	// Most targets are on the site, and comparing is cheaper than parsing.
	if rest, ok := strings.CutPrefix(text, l.origin); ok && (rest == "" || strings.IndexByte("/?#", rest[0]) >= 0) &&
		len(text) <= maxTarget && isClean(text) {
		return nil, good
	}
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

// onSite reports whether a target has the origin of the site. If the site is on this machine, any port counts.
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

// loopbackHost reports whether host is a name or address of this machine.
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

// ours are the parameters that answers of this daemon add to a target. Client libraries take the first parameter of a
// name in query or fragment, so a target from an application must not have a parameter with such a name.
var ours = []string{"access_token", "refresh_token", "token_type", "expires_in", "expires_at", "provider_token",
	"provider_refresh_token", "error", "error_code", "error_description", "sb"}

// oursInFragment are the parameters that a target must not have in its fragment: ours, type and code. Applications also
// use type and code in the query, where they do no harm: this daemon's code replaces the application's code.
var oursInFragment = append(slices.Clone(ours), "type", "code")

// Clean removes the parameters that only an answer may have from a target's query and fragment. Everything else stays,
// including a fragment that has no parameters.
func Clean(target string) string {
	before, fragment, hashed := strings.Cut(target, "#")
	path, query, asked := strings.Cut(before, "?")
	if asked {
		path += without(query, ours, "?")
	}
	switch {
	case hashed && strings.Contains(fragment, "="):
		path += without(fragment, oursInFragment, "#")
	case hashed:
		path += "#" + fragment
	}
	return path
}

// without removes the listed parameters from params. If any are left, it returns them after sign ("?" or "#"). It
// compares names as browsers read them: unescaped, and without a leading question mark.
func without(params string, listed []string, sign string) string {
	kept, dropped := []string{}, false
	for param := range strings.SplitSeq(params, "&") {
		name, _, _ := strings.Cut(strings.TrimPrefix(param, "?"), "=")
		if plain, err := url.QueryUnescape(name); err == nil && slices.Contains(listed, plain) {
			dropped = true
			continue
		}
		kept = append(kept, param)
	}
	if dropped && len(kept) == 0 {
		return ""
	}
	return sign + strings.Join(kept, "&")
}

// Lint returns a warning for each pattern that matches hosts which anyone can register: https://example.com** also
// matches example.com.evil.test, and https://*example.com matches evilexample.com.
func (l *List) Lint() (all []string) {
	for i := range l.rules {
		if host := l.rules[i].registrable(); host != "" {
			all = append(all, fmt.Sprintf(
				"%q of the redirect list also matches hosts that anyone can register, such as %s: "+
					"its wildcard reaches into the registrable domain; write that out, with a dot before and a slash "+
					"behind it, as in https://*.example.com/**", l.rules[i].text, host))
		}
	}
	return all
}

// registrable returns an example of a host that the rule matches and anyone can register; "" if there is none.
func (r *rule) registrable() string {
	if r.host == nil || !special(r.scheme) {
		return ""
	}
	host := strings.ReplaceAll(strings.ReplaceAll(r.pattern, "**", "*"), "*", "evil")
	if host == "localhost" || strings.HasSuffix(r.pattern, ".localhost") {
		return ""
	}
	labels := strings.Split(r.pattern, ".")
	domain, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil { // the whole host is a public suffix, such as co.uk
		domain = host
	}
	own := strings.Join(labels[len(labels)-1-strings.Count(domain, "."):], ".")
	if !strings.Contains(own, "*") {
		return ""
	}
	if before, ok := strings.CutSuffix(host, "evil"); ok && before != "" &&
		strings.HasSuffix(r.pattern, "**") { // ** matches several labels
		return before + ".evil.test"
	}
	return host
}

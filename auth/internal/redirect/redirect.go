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
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
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

// ours are the parameters that an answer has. A client library takes the first of a name that it finds, in the query or
// in the fragment, so that none of the application's may stand next to ours.
var ours = []string{"access_token", "refresh_token", "token_type", "expires_in", "expires_at", "provider_token",
	"provider_refresh_token", "error", "error_code", "error_description", "sb"}

// oursInFragment are those and two that applications use in the query, where they open nothing: a code of ours replaces
// theirs.
var oursInFragment = append(slices.Clone(ours), "type", "code")

// Clean removes the parameters that only an answer may have from a target's query and fragment. All else stays as it
// is, a fragment that holds no parameters too.
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

// without returns the parameters whose names are not listed, behind the sign if any are left. Names are compared as
// browsers read them: unescaped, and without a question mark at the beginning.
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

// Lint returns the items of the list that match hosts which anyone can register, one sentence each: a wildcard of
// https://example.com** also takes example.com.evil.test, one of https://*example.com takes evilexample.com.
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

// registrable is an example of the hosts that the rule matches and that anyone can register; "" when a wildcard
// reaches into no registrable domain.
func (r *rule) registrable() string {
	if r.literalHost || r.pattern == "" || !(&target{scheme: r.scheme}).special() {
		return ""
	}
	host := strings.ReplaceAll(strings.ReplaceAll(r.pattern, "**", "*"), "*", "evil")
	if host == "localhost" || strings.HasSuffix(r.pattern, ".localhost") {
		return ""
	}
	labels := strings.Split(r.pattern, ".")
	domain, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil { // all of it is a suffix
		domain = host
	}
	own := strings.Join(labels[len(labels)-1-strings.Count(domain, "."):], ".")
	if !strings.Contains(own, "*") {
		return ""
	}
	if before, ok := strings.CutSuffix(host, "evil"); ok && before != "" &&
		strings.HasSuffix(r.pattern, "**") { // it crosses labels
		return before + ".evil.test"
	}
	return host
}

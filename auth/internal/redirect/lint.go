package redirect

import (
	"fmt"
	"strings"

	"golang.org/x/net/publicsuffix"
)

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

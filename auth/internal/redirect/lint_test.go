package redirect

import (
	"strings"
	"testing"
)

// A pattern whose wildcard reaches into the registrable domain leads to hosts of other owners; each example is one
// that the pattern matches.
func TestList_Lint(t *testing.T) {
	f := func(pattern, example string) {
		t.Helper()
		l := mustNew(t, testSite, pattern)
		got := strings.Join(l.Lint(), "\n")
		if example == "" {
			if got != "" {
				t.Errorf("%s: %s", pattern, got)
			}
			return
		}
		if !strings.Contains(got, "such as "+example+":") {
			t.Errorf("%s: %q, want the example %s", pattern, got, example)
		}
		if r := &l.rules[0]; !r.host.MatchString(example) {
			t.Errorf("%s does not match %s", pattern, example)
		}
	}
	f("https://example.com**", "example.com.evil.test")
	f("https://*example.com/**", "evilexample.com")
	f("https://**example.com/**", "evilexample.com")
	f("https://example.*/**", "example.evil")
	f("https://*.*/**", "evil.evil")
	f("https://*/**", "evil")
	f("https://**", "evil")
	f("https://*.com/**", "evil.com")
	f("https://*.co.uk/cb", "evil.co.uk")
	f("http://exam*.com/", "examevil.com")
	f("https://*-team.vercel.app/**", "evil-team.vercel.app")
	f("https://app.example.c*/**", "app.example.cevil")
	f("https://app.example.com**", "app.example.com.evil.test")

	f("https://example.com/**", "")
	f("https://*.example.com/**", "")
	f("https://**.example.com/**", "")
	f("https://app*.example.com/**", "")
	f("https://**app.example.co.uk/**", "")
	f("https://*.team.vercel.app/", "")
	f("http://localhost:*/**", "")
	f("http://*.localhost:3000/**", "")
	f("https://192.0.2.1/**", "")
	f("https://[2001:db8::1]/**", "")
	f("exp://**", "")
	f("myapp://*.example/**", "")
	f("https://app.example.com:*/**", "")
}

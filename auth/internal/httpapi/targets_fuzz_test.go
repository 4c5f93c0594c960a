package httpapi

import (
	"net/url"
	"strings"
	"testing"

	"gatehouse/auth/internal/redirect"
)

// Whatever target an application names and whatever a provider answers, the browser goes to the host that was
// checked, and the fragment reads as intended.
func FuzzTargets(f *testing.F) {
	list, err := redirect.New(siteURL, []string{"https://other.example.org/**", "myapp://**"}, false)
	if err != nil {
		f.Fatal(err)
	}
	for _, to := range []string{siteURL, "https://other.example.org/in?a=b&code=c#old",
		"https://other.example.org/a b\u00e9#x#y", "myapp://callback/x?y", "https://other.example.org/?%zz&;=#%"} {
		f.Add(to, "access_denied", "a & b = #c\r\nLocation: x")
	}
	f.Fuzz(func(t *testing.T, to, code, description string) {
		if !list.Allowed(to) {
			return
		}
		v := url.Values{"error": {cleanText(code, 256)}, "error_description": {cleanText(description, 2048)}}
		kept := encodeHeader(to) // as a state remembers it
		got := encodeHeader(withFragment(withQuery(kept, v), v))
		if strings.ContainsFunc(got, func(r rune) bool { return r <= ' ' || r >= 0x7f }) ||
			strings.Count(got, "#") != 1 {
			t.Fatalf("%q becomes %q", to, got)
		}
		base, fragment, _ := strings.Cut(got, "#")
		if before, _, _ := strings.Cut(kept, "#"); !strings.HasPrefix(base, strings.SplitN(before, "?", 2)[0]+"?") {
			t.Fatalf("%q becomes %q", to, got)
		}
		_, query, _ := strings.Cut(base, "?")
		for _, text := range []string{fragment, query} {
			back, err := url.ParseQuery(text)
			if err != nil || back.Get("error") != v.Get("error") ||
				back.Get("error_description") != v.Get("error_description") {
				t.Fatalf("%q: %q, %v", to, text, err)
			}
		}
	})
}

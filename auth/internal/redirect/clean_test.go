package redirect

import (
	"strings"
	"testing"
)

func TestClean(t *testing.T) {
	t.Parallel()
	const site = "https://app.example.org/in"
	for _, c := range [][2]string{
		{"", ""}, {"?", "?"}, {"#", "#"}, {"?a=b&c", "?a=b&c"}, {"#/route", "#/route"}, {"#/route?x=y", "#/route?x=y"},
		{"?code=c&type=recovery", "?code=c&type=recovery"}, {"?a=%zz&;=#%", "?a=%zz&;=#%"},
		{"#access_token", "#access_token"},
		{"?access_token=x", ""}, {"?access_token", ""}, {"?a=1&refresh_token=x&b=2", "?a=1&b=2"},
		{"?a=1&error=&error_code=x&error_description=y&sb", "?a=1"},
		{"?access%5Ftoken=x&acces%73_token=y", ""}, {"?access_token%=x", "?access_token%=x"},
		{"#access_token=x&refresh_token=y&expires_in=1&expires_at=2&token_type=b", ""},
		{"#a=b&code=c&type=recovery", "#a=b"}, {"#?access_token=x", ""}, {"#?a=b", "#?a=b"},
		{"?provider_token=x&q=1#provider_refresh_token=y&z=1", "?q=1#z=1"}, {"?error=x#/route", "#/route"},
		{"?=&&access_token=x", "?=&"}, {"?ACCESS_TOKEN=x", "?ACCESS_TOKEN=x"},
	} {
		if got := Clean(site + c[0]); got != site+c[1] {
			t.Errorf("%q becomes %q, want %q", c[0], strings.TrimPrefix(got, site), c[1])
		}
	}
	if got := Clean("myapp://callback?error=x&y#code=z"); got != "myapp://callback?y" {
		t.Errorf("an application's scheme: %q", got)
	}
}

package mail

import (
	"net/url"
	"strings"
	"testing"

	"gatehouse/shared/must"
)

func TestLinks(t *testing.T) {
	f := func(p Paths, external, linkType, hash, target, want string) {
		t.Helper()
		l, err := NewLinks(p)
		must.Succeed(t, err)
		if got := l.URL(external, linkType, hash, target); got != want {
			t.Errorf("link is\n%s, want\n%s", got, want)
		}
	}
	var unset Paths
	const home = "https://app.acme.test/home"
	f(unset, "http://auth.acme.test", "signup", "ab", home,
		"http://auth.acme.test/verify?token=ab&type=signup&redirect_to=https://app.acme.test/home")
	f(unset, "http://auth.acme.test/", "signup", "ab", home,
		"http://auth.acme.test/verify?token=ab&type=signup&redirect_to=https://app.acme.test/home")
	f(unset, "http://auth.acme.test/v1", "recovery", "ab", home,
		"http://auth.acme.test/v1/verify?token=ab&type=recovery&redirect_to=https://app.acme.test/home")
	f(unset, "http://auth.acme.test/v1/?a=b#c", "invite", "ab", home,
		"http://auth.acme.test/v1/verify?token=ab&type=invite&redirect_to=https://app.acme.test/home")

	set := Paths{Invite: "/welcome", Confirmation: "/verify", Recovery: "reset?x=1#y",
		EmailChange: "https://mail.acme.test/change?x=1"}
	f(set, "http://auth.acme.test/v1", "signup", "pkce_ab", home,
		"http://auth.acme.test/verify?token=pkce_ab&type=signup&redirect_to=https://app.acme.test/home")
	f(set, "http://auth.acme.test/v1", "invite", "ab", home,
		"http://auth.acme.test/welcome?token=ab&type=invite&redirect_to=https://app.acme.test/home")
	f(set, "http://auth.acme.test/v1", "recovery", "ab", home,
		"http://auth.acme.test/reset?token=ab&type=recovery&redirect_to=https://app.acme.test/home")
	f(set, "http://auth.acme.test/v1/", "magiclink", "ab", home,
		"http://auth.acme.test/v1/reset?token=ab&type=magiclink&redirect_to=https://app.acme.test/home")
	f(set, "http://auth.acme.test/v1", "email_change", "ab", home,
		"https://mail.acme.test/change?token=ab&type=email_change&redirect_to=https://app.acme.test/home")
	f(set, "http://auth.acme.test/v1", "signup", "a&b", "",
		"http://auth.acme.test/verify?token=a%26b&type=signup&redirect_to=")
}

func TestLinks_bad(t *testing.T) {
	f := func(p Paths, want string) {
		t.Helper()
		if _, err := NewLinks(p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("NewLinks(%+v) = %v, want a complaint about %s", p, err, want)
		}
	}
	f(Paths{Invite: "http://[::1"}, "AUTH_MAILER_URLPATHS_INVITE")
	f(Paths{Recovery: "javascript:alert(1)"}, "AUTH_MAILER_URLPATHS_RECOVERY")
	f(Paths{EmailChange: "https:///x"}, "AUTH_MAILER_URLPATHS_EMAIL_CHANGE")
}

func TestEscapeTarget(t *testing.T) {
	f := func(target, want string) {
		t.Helper()
		if got := escapeTarget(target); got != want {
			t.Errorf("escapeTarget(%q) = %q, want %q", target, got, want)
		}
	}
	f("", "")
	f("https://app.acme.test/home", "https://app.acme.test/home")
	f("https://app.acme.test/home?a", "https://app.acme.test/home?a")
	f("myapp://callback", "myapp://callback")
	f("https://a.test/?x=1", "https%3A%2F%2Fa.test%2F%3Fx%3D1")
	f("https://a.test/#x", "https%3A%2F%2Fa.test%2F%23x")
	f("https://a.test/a b", "https%3A%2F%2Fa.test%2Fa+b")
	f("https://a.test/a+b", "https%3A%2F%2Fa.test%2Fa%2Bb")
	f("https://a.test/a%20b", "https%3A%2F%2Fa.test%2Fa%2520b")
	f(`https://a.test/"`, "https%3A%2F%2Fa.test%2F%22")
	f("https://a.test/'", "https%3A%2F%2Fa.test%2F%27")
	f("https://a.test/ü", "https%3A%2F%2Fa.test%2F%C3%BC")
	f("https://a.test/a;b", "https%3A%2F%2Fa.test%2Fa%3Bb")
}

// FuzzLinks: whatever the target is, it comes back from the link's query as it went in.
func FuzzLinks(f *testing.F) {
	f.Add("ab", "https://app.acme.test/home?a=b&c#d")
	f.Add("pkce_ab", "x+y z;%41\r\n\"'<>")
	l, err := NewLinks(Paths{})
	must.Succeed(f, err)
	f.Fuzz(func(t *testing.T, hash, target string) {
		link := l.URL("https://auth.acme.test/v1", LinkSignup, hash, target)
		u, err := url.Parse(link)
		if err != nil {
			t.Fatalf("%q: %v", link, err)
		}
		q, err := url.ParseQuery(u.RawQuery)
		if err != nil {
			t.Fatalf("%q: %v", link, err)
		}
		if u.Host != "auth.acme.test" || u.Path != "/v1/verify" || u.Fragment != "" ||
			q.Get("token") != hash || q.Get("redirect_to") != target || q.Get("type") != LinkSignup || len(q) != 3 {
			t.Errorf("%q says token %q, target %q", link, q.Get("token"), q.Get("redirect_to"))
		}
	})
}

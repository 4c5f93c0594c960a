package redirect

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"gatehouse/shared/must"
)

const (
	testSite = "https://app.acme.test/home"
	testList = "https://one.test/cb, https://*.two.test/**, https://three.test/*, myapp://callback, exp://**, " +
		"https://six.test/p?q=1, https://seven.test/**, http://localhost:*/cb, https://five.test/app/**"
)

func mustNew(t testing.TB, site, list string) *List {
	t.Helper()
	l, err := New(site, strings.Split(list, ","), false)
	must.Succeed(t, err)
	return l
}

// Worked examples: a list of each kind of pattern, and targets that are on the edge of it.
func TestAllowed_workedExamples(t *testing.T) {
	l := mustNew(t, testSite, testList)
	f := func(target string, want bool) {
		t.Helper()
		if got := l.Allowed(target); got != want {
			t.Errorf("Allowed(%q) = %v, want %v", target, got, want)
		}
	}
	f("https://app.acme.test/anything?x=1", true) // 1
	f("http://app.acme.test/", false)             // 2
	f("https://app.acme.test:8443/", false)       // 3
	f("https://acme.test/", false)                // 4
	f("https://one.test/cb", true)                // 5
	f("https://one.test/cb/", false)              // 6
	f("https://one.test/cb?x=1", false)           // 7
	f("https://one.test/cb#frag", true)           // 8
	f("https://x.two.test/a/b", true)             // 9
	f("https://x.y.two.test/a", false)            // 10
	f("https://x.two.test", false)                // 11
	f("https://three.test/a", true)               // 12
	f("https://three.test/a/b", false)            // 13
	f("https://three.test/a.b", false)            // 14
	f("https://three.test/a?x=b", true)           // 15
	f("myapp://callback/x", false)                // 16
	f("MYAPP://callback", false)                  // 16
	f("exp://host/x", true)                       // 17
	f("exp://10.0.0.1:80/x", false)               // 17
	f("https://six.test/pXq=1", false)            // 18
	f("https://six.test/p?q=1", true)             // 18
	f("https://seven.test@evil.test/", false)     // 19
	f("https://app.acme.test.evil.test/", false)  // 19
	f("http://localhost:3000/cb", true)           // 20
	f("http://localhost:3000/cbx", false)         // 20
	f("http://127.0.0.1:9/x", false)              // 21
	f("http://10.0.0.5/", false)                  // 21
	f("http://2130706433/", false)                // 21
	f("//app.acme.test/x", false)                 // 22
	f("/relative", false)                         // 22
	f("javascript:alert(1)", false)               // 22
	f("https://ex_ample.two.test/a", false)       // 22
	f("https://seven.test/a/../b?c=d&e=f", true)  // 23
	f("https://bad.test/", false)                 // 24
	f("https://seven.test/ref", true)             // 24, the Referer
	f("", false)                                  // empty is no target
	f("https://app.acme.test/"+string(rune(0x7f)), false)
	f("https://app.acme.test/"+strings.Repeat("a", 2027), false)
	f("https://app.acme.test/"+strings.Repeat("a", 2026), true)
}

// A class stands for one character, which may be of several bytes.
func TestAllowed_classes(t *testing.T) {
	l := mustNew(t, testSite, "https://not.test/[!a], https://one.test/[a-c], https://either.test/[^a-c][!x]")
	for target, want := range map[string]bool{
		"https://not.test/b": true, "https://not.test/é": true, "https://not.test/😀": true,
		"https://not.test/a": false, "https://not.test/": false, "https://not.test/éé": false,
		"https://not.test/bb": false, "https://not.test/.": false, "https://not.test//": false,
		"https://not.test/%C3%A9": false,
		"https://one.test/c":      true, "https://one.test/d": false, "https://one.test/é": false,
		"https://either.test/éé": true, "https://either.test/é": false, "https://either.test/éx": false,
	} {
		if l.Allowed(target) != want {
			t.Errorf("Allowed(%q) = %v", target, !want)
		}
	}
}

func TestAllowed_bypassAttempts(t *testing.T) {
	l := mustNew(t, testSite, testList)
	file, err := os.Open("testdata/bypass.txt")
	must.Succeed(t, err)
	defer file.Close()
	seen := map[string]bool{}
	attempts := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		quoted, where, ok := strings.Cut(lines.Text(), "\t")
		var target string
		if err := json.Unmarshal([]byte(quoted), &target); err != nil || !ok || where == "" || seen[target] {
			t.Fatalf("bad line %q: %v", lines.Text(), err)
		}
		seen[target] = true
		if l.Allowed(target) {
			t.Errorf("Allowed(%q), which leads to %s", target, where)
		}
		// Some lead to an allowed place by a spelling that isn't: refused, but no attempts.
		if where != "nowhere" && !strings.HasPrefix(where, "https://app.acme.test/") &&
			!strings.HasPrefix(where, "https://auth.acme.test/") {
			attempts++
		}
	}
	if attempts < 250 {
		t.Errorf("%d attempts that lead to a foreign place, want 250 at least", attempts)
	}
}

func TestAllowed_goodTargets(t *testing.T) {
	l := mustNew(t, testSite,
		testList+
			", com.acme.app:/oauth2redirect, myapp:///done, http://[::1]:*/cb, http://10.1.2.3:8080/**, "+
			"https://eight.test:8443/x, https://nine.test/[a-c][!x]/{end}, https://ten.test/a\\*b, "+
			"https://**.eleven.test/, https://*twelve.test/, exp+app://**, https://pre-*-suf.test/**")
	good := `https://app.acme.test/
https://app.acme.test
https://app.acme.test?x
https://app.acme.test#x
https://app.acme.test/#/route?x=y
https://APP.ACME.TEST/
HTTPS://app.acme.test/
https://app.acme.test:443/
https://app.acme.test/a/../b
https://app.acme.test/ä/ö
https://app.acme.test/a b
https://app.acme.test/%2e%2e/%0d%0a
https://app.acme.test/?next=https://evil.test/
https://app.acme.test/@user
https://app.acme.test/?a@b
https://app.acme.test//double
https://app.acme.test/a:b
https://app.acme.test/#a@b
https://one.test/cb
https://ONE.test/cb
https://one.test:443/cb
https://one.test/cb#/a/b?c
https://x.two.test/
https://x.two.test/a.b/c?d=e&f=https://evil.test#g
https://xn--bcher-kva.two.test/a
https://a-b-c.two.test/@me
https://X.Two.Test/a
https://x.two.test:443/a
https://three.test/
https://three.test/abc
https://three.test/a?b
https://three.test/a%2fb
myapp://callback
myapp://callback#token
exp://host
exp://host:19000
exp://u.expo.dev/abc?x=y
exp://127.0.0.1:19000/--/cb
exp://host:1?x=y
https://six.test/p?q=1
https://six.test/p?q=1#x
https://seven.test/
https://seven.test/a/b/c.html?x=../..
https://seven.test/../..
https://seven.test/?u=a@b
http://localhost:3000/cb
http://localhost:65535/cb
http://localhost:80/cb
https://five.test/app/x/y
https://five.test/app/x/../y
https://five.test/app/...
https://five.test/app/..x/y
com.acme.app:/oauth2redirect
myapp:///done
http://[::1]:8080/cb
http://10.1.2.3:8080/a
https://eight.test:8443/x
https://nine.test/by/end
https://ten.test/a*b
https://a.b.c.eleven.test/
https://twelve.test/
https://xtwelve.test/
exp+app://anything:1/x
https://pre-7f3a-suf.test/x`
	n := 0
	for target := range strings.SplitSeq(good, "\n") {
		n++
		if ok, why := l.Explain(target); !ok {
			t.Errorf("%q is refused: %s", target, why)
		}
	}
	if n < 50 {
		t.Errorf("only %d good targets", n)
	}
}

// While the site is on this machine, so may be what it redirects to.
func TestAllowed_loopback(t *testing.T) {
	f := func(site, list string, anyPort bool, target string, want bool) {
		t.Helper()
		l, err := New(site, strings.Split(list, ","), anyPort)
		must.Succeed(t, err)
		if got := l.Allowed(target); got != want {
			t.Errorf("site %s, list %q: Allowed(%q) = %v", site, list, target, got)
		}
	}
	f("http://localhost:3000", "", false, "http://localhost:9/x", true)
	f("http://localhost:3000", "", false, "https://localhost/x", false)
	f("http://localhost:3000", "", false, "http://127.0.0.1:9/x", true)
	f("http://localhost:3000", "", false, "http://[::1]:9/x", true)
	f("http://localhost:3000", "", false, "exp://127.0.0.1:9/x", false)
	f("http://localhost:3000", "", false, "http://10.0.0.1/", false)
	f("http://127.0.0.1:3000", "", false, "http://127.0.0.1/", true)
	f("http://[::1]:3000", "", false, "http://[::1]:4/", true)
	f("http://0.0.0.0:3000", "", false, "http://0.0.0.0:4/", true)
	f("http://10.0.0.1:3000", "", false, "http://10.0.0.1:3000/a", true)
	f("http://10.0.0.1:3000", "", false, "http://10.0.0.1:3001/a", false)
	f("http://10.0.0.1:3000", "", false, "http://127.0.0.1:3000/a", false)
	f("https://a.test", "http://127.0.0.1:*/cb", false, "http://127.0.0.1:5/cb", true)
	f("https://a.test", "http://**", false, "http://127.0.0.1:5/cb", true)
	f("https://a.test", "http://**", false, "http://10.0.0.1:5/cb", false)
	f("https://a.test", "http://10.0.0.*/cb", false, "http://10.0.0.1/cb", false)

	// AUTH_REDIRECT_ANY_PORT_AND_SCHEME: "any URI sharing its host", on the web.
	f("https://a.test", "", true, "http://a.test:8080/x", true)
	f("https://a.test", "", true, "https://A.test/x", true)
	f("https://a.test", "", true, "ftp://a.test/x", false)
	f("https://a.test", "", true, "myapp://a.test/x", false)
	f("https://a.test", "", true, "https://b.a.test/x", false)
	f("https://a.test", "", true, "https://a.test:0/x", false)
}

func TestNew_refusals(t *testing.T) {
	f := func(pattern, words string) {
		t.Helper()
		_, err := New(testSite, []string{" ", pattern}, false)
		if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "item 2") {
			t.Errorf("%q: error %v, want one with %q", pattern, err, words)
		}
	}
	f("one.test/cb", "must begin with a scheme")
	f("*://one.test/", "must begin with a scheme")
	f("**", "must begin with a scheme")
	f("https:one.test", "must have //")
	f("https:///cb", "has no host")
	f("https://a@b.test/", "letters, digits")
	f("https://a..test/", "letters, digits")
	f("https://[ab].test/", "no IPv6 address")
	f("https://[::1/", "not closed")
	f("https://[::1]x/", "other than a port")
	f("https://a.test:x/", "port may hold")
	f("https://a.test:/", "port may hold")
	f("https://a.test/#x", "fragment")
	f("https://a.test/[a", "not closed")
	f("https://a.test/{a", "not closed")
	f("https://a.test/a}", "closes nothing")
	f(`https://a.test/a\`, "backslash")
	f("https://a.test/[c-a]", "backwards")
	f("https://a.test/[ä]", "ASCII")
	f("javascript:**", "never allowed")
	f("data:*", "never allowed")
	f("myapp:**", "must say something")
	f("https://a.test/"+strings.Repeat("x", 512), "longer than")
	f("https://a.test/\x01", "control")
	f("https://a.test/\xff", "is not UTF-8")
	f("https://a.test/\\\xe4", "is not UTF-8")

	_, err := New(testSite, []string{"x", "y"}, false)
	if err == nil || !strings.Contains(err.Error(), "item 1") || !strings.Contains(err.Error(), "item 2") {
		t.Errorf("not all bad items at once: %v", err)
	}
	for _, site := range []string{"", "app.test", "ftp://app.test", "https://", "https://a@b.test", "https:a.test"} {
		if _, err := New(site, nil, false); err == nil {
			t.Errorf("site %q is accepted", site)
		}
	}
}

// A pattern full of wildcards must cost its length times the target's: a matcher that tried all ways to divide this
// target among them would not return.
func TestAllowed_hostilePattern(t *testing.T) {
	pattern := "https://a.test/" + strings.Repeat("*a**", 100)
	target := "https://a.test/" + strings.Repeat("a", 2000) + "/.b/"
	if !mustNew(t, testSite, pattern).Allowed(target) {
		t.Error("refused by a pattern that matches")
	}
	if allowed, why := mustNew(t, testSite, pattern+"c").Explain(target); allowed || !strings.Contains(why, "no item") {
		t.Errorf("a pattern that ends in c: %v, %s", allowed, why)
	}
}

func TestAllowed_siteDoesNotAlloc(t *testing.T) {
	l := mustNew(t, testSite, testList)
	if n := testing.AllocsPerRun(100, func() { l.Allowed("https://app.acme.test/anything?x=1#y") }); n != 0 {
		t.Errorf("%v allocations for a target on the site, want 0", n)
	}
}

func BenchmarkAllowed(b *testing.B) {
	l := mustNew(b, testSite, testList)
	for name, target := range map[string]string{"site": "https://app.acme.test/anything?x=1",
		"listed": "https://x.two.test/a/b", "last": "https://five.test/app/x"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !l.Allowed(target) {
					b.Fatal("refused")
				}
			}
		})
	}
}

// What is allowed must lead where a plain reading says: the site's host or one of the list's.
func FuzzAllowed(f *testing.F) {
	l := mustNew(f, testSite, testList)
	file, err := os.ReadFile("testdata/bypass.txt")
	must.Succeed(f, err)
	for line := range strings.Lines(string(file)) {
		var target string
		quoted, _, _ := strings.Cut(line, "\t")
		if json.Unmarshal([]byte(quoted), &target) == nil {
			f.Add(target)
		}
	}
	f.Fuzz(func(t *testing.T, target string) {
		if !l.Allowed(target) {
			return
		}
		scheme, rest, _ := strings.Cut(target, "://")
		host := rest
		if i := strings.IndexAny(rest, "/?#\\"); i >= 0 {
			host = rest[:i]
		}
		host, _, _ = strings.Cut(strings.ToLower(host), ":")
		switch strings.ToLower(scheme) {
		case "https":
			if sub, ok := strings.CutSuffix(host, ".two.test"); ok && sub != "" && !strings.ContainsAny(sub, ".@%") {
				return
			}
			for _, h := range []string{"app.acme.test", "one.test", "three.test", "six.test", "seven.test",
				"five.test"} {
				if host == h {
					return
				}
			}
		case "http":
			if host == "localhost" {
				return
			}
		case "exp":
			return
		case "myapp":
			if host == "callback" {
				return
			}
		}
		t.Errorf("%q is allowed and leads to %q", target, host)
	})
}

// No text may make the compiler panic, and a pattern without special characters matches itself.
func FuzzPattern(f *testing.F) {
	for item := range strings.SplitSeq(testList, ",") {
		f.Add(strings.TrimSpace(item))
	}
	f.Add("https://a.test/[a-c][!x]{y}\\*")
	f.Fuzz(func(t *testing.T, pattern string) {
		l, err := New(testSite, []string{pattern}, false)
		if err != nil {
			return
		}
		l.Allowed(pattern)
		pattern = strings.TrimSpace(pattern)
		if strings.ContainsAny(pattern, `*[]{}\`) {
			return
		}
		own, why := parse(pattern)
		if _, moved := withoutDots(own.rest); why == good && !moved && !l.Allowed(pattern) {
			t.Errorf("pattern %q refuses itself", pattern)
		}
	})
}

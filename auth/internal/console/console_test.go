package console

import (
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/secret"
	"gatehouse/shared/must"
)

// routesOf are the routes of the public port.
func routesOf(t *testing.T) (list [][]string) {
	t.Helper()
	text, err := os.ReadFile("../httpapi/routes.go")
	must.Succeed(t, err)
	for _, m := range regexp.MustCompile(`"([A-Z]+) (/[^"]*)"`).FindAllStringSubmatch(string(text), -1) {
		list = append(list, m[1:])
	}
	return list
}

// What is forwarded is this list and nothing else: a new route of the public port is not the console's.
func TestForwarded(t *testing.T) {
	want := []string{"DELETE /admin/users/{}", "DELETE /admin/users/{}/factors/{}", "DELETE /admin/users/{}/sessions",
		"DELETE /admin/users/{}/sessions/{}", "GET /admin/outbox", "GET /admin/users", "GET /admin/users/{}",
		"GET /admin/users/{}/factors", "GET /admin/users/{}/sessions", "POST /admin/outbox/{}/resend", "POST /invite",
		"POST /recover", "PUT /admin/users/{}"}
	const id = "f81d4fae-7dec-41d0-a765-00a0c91e6bf6"
	variable := regexp.MustCompile(`\{[a-z_]+\}`)
	var got []string
	for _, route := range routesOf(t) {
		method, path := route[0], variable.ReplaceAllString(route[1], id)
		for _, a := range forwarded {
			if a.matches(method, path) {
				got = append(got, method+" "+variable.ReplaceAllString(route[1], "{}"))
			}
			for _, other := range []string{path + "/", "/" + path, path + "/x", strings.ToUpper(path), path + "?", path + "%20",
				strings.Replace(path, "/", "//", 1), "/auth/v1" + path} {
				if a.matches(method, other) {
					t.Errorf("%s %s is forwarded", method, other)
				}
			}
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("forwarded %q\nwant %q", got, want)
	}
	for _, a := range forwarded {
		if a.matches(a.method, strings.ReplaceAll(a.path, "{id}", "x")) && strings.Contains(a.path, "{id}") {
			t.Errorf("%s takes what is no id", a.path)
		}
	}
}

func consoleAt(t *testing.T, external, root string) *Console {
	t.Helper()
	u, err := url.Parse(external)
	must.Succeed(t, err)
	return &Console{Options: Options{URL: u, Root: secret.NewRoot(root), Now: time.Now}}
}

func TestCookie(t *testing.T) {
	s := consoleAt(t, "http://127.0.0.1:8085", "root")
	key := newKey()
	in := ticket{User: uuid.New(), Session: uuid.New(), Used: 1795277919, Key: sha256.Sum256([]byte(key))}
	value := s.seal(&in)
	f := func(c *Console, cookies, key string, want bool) {
		t.Helper()
		r := httptest.NewRequest("GET", "http://127.0.0.1:8085/session", nil)
		r.Header.Set("Cookie", cookies)
		r.Header.Set("X-Console-Key", key)
		if got, err := c.ticketOf(r); (err == nil) != want || want && got != in {
			t.Errorf("%.60s %.5s: %+v, %v", cookies, key, got, err)
		}
	}
	const name = "auth_console_8085="
	f(s, name+value, key, true)
	f(s, name+"x; "+name+value, key, true) // another server of this host set one
	f(s, name+value, newKey(), false)
	f(s, name+value, "", false)
	f(s, "", key, false)
	f(s, "auth_console_8086="+value, key, false)
	f(s, "__Host-auth_console="+value, key, false)
	for i := range len(value) {
		c := byte('A')
		if value[i] == c {
			c = 'B'
		}
		f(s, name+value[:i]+string(c)+value[i+1:], key, false)
	}
	f(consoleAt(t, "http://127.0.0.1:8085", "other root"), name+value, key, false)
	other := *s
	other.Root = secret.NewRoot("new root", "root")
	f(&other, name+value, key, true) // sealed under an earlier root key
	sealed := s.Root.Seal(secret.Factors, []byte(value), nil)
	f(s, name+string(sealed), key, false)
	https := consoleAt(t, "https://console.example.org", "root")
	f(https, "__Host-auth_console="+value, key, true)
	f(https, name+value, key, false)
}

// The attributes keep the cookie from scripts, other sites and, with https, from plain text.
func TestCookie_attributes(t *testing.T) {
	f := func(external, host, want string) {
		t.Helper()
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Host = host
		consoleAt(t, external, "root").setCookie(w, r, "v")
		if got := w.Header().Get("Set-Cookie"); got != want {
			t.Errorf("%s at %s: %s, want %s", external, host, got, want)
		}
	}
	f("http://127.0.0.1:8085", "localhost:9000", "auth_console_9000=v; Path=/; HttpOnly; SameSite=Strict")
	f("http://127.0.0.1:8085", "localhost", "auth_console_80=v; Path=/; HttpOnly; SameSite=Strict")
	f("https://console.example.org", "console.example.org",
		"__Host-auth_console=v; Path=/; HttpOnly; Secure; SameSite=Strict")
}

func TestHost(t *testing.T) {
	f := func(external string, loopback bool, host string, want bool) {
		t.Helper()
		s := consoleAt(t, external, "root")
		s.Loopback = loopback
		s.guarded = http.NotFoundHandler()
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Host = host
		s.ServeHTTP(w, r)
		if got := w.Code != http.StatusForbidden; got != want {
			t.Errorf("%s %v %s: %d", external, loopback, host, w.Code)
		}
		if hsts := w.Header().Get("Strict-Transport-Security") != ""; hsts != strings.HasPrefix(external, "https") {
			t.Errorf("%s: %v", external, w.Header())
		}
	}
	f("https://console.example.org", false, "console.example.org", true)
	f("https://console.example.org", false, "Console.Example.org:443", true)
	f("https://console.example.org", false, "console.example.org:8443", false)
	f("https://console.example.org", false, "evil.example", false)
	f("https://console.example.org", false, "localhost", false)
	f("https://console.example.org", false, "", false)
	f("http://127.0.0.1:8085", true, "127.0.0.1:8085", true)
	f("http://127.0.0.1:8085", true, "localhost:9000", true)
	f("http://127.0.0.1:8085", true, "[::1]:9000", true)
	f("http://127.0.0.1:8085", true, "rebound.example:8085", false)
}

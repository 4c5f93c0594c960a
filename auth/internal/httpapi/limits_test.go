package httpapi

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
)

func TestClientIP(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	srv := &Server{log: slog.New(slog.DiscardHandler), now: time.Now}
	f := func(s Settings, from string, headers map[string]string, ip, key string) {
		t.Helper()
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = from
		for name, v := range headers {
			r.Header.Set(name, v)
		}
		if got := clientIP(&s, r); got != ip {
			t.Errorf("from %s with %v: client %q, want %q", from, headers, got, ip)
		}
		if got := srv.limitKey(&call{r: r, live: &liveSettings{Settings: s}}); got != key {
			t.Errorf("from %s with %v: counted as %q, want %q", from, headers, got, key)
		}
	}
	none, believed := Settings{}, Settings{ForwardedFor: true}
	behind, named := Settings{TrustedProxies: proxies}, Settings{LimitHeader: "X-Real-Ip"}
	byPeer := Settings{LimitByPeer: true}

	f(none, "192.0.2.1:5", nil, "192.0.2.1", "")
	f(none, "[2001:db8::1]:5", nil, "2001:db8::1", "")
	f(none, "[::ffff:192.0.2.1]:5", nil, "192.0.2.1", "")
	f(none, "@", nil, "", "") // a unix socket
	f(none, "192.0.2.1:5", map[string]string{"X-Forwarded-For": "198.51.100.9", "Auth-Forwarded-For": "198.51.100.8"},
		"192.0.2.1", "")
	f(byPeer, "192.0.2.1:5", map[string]string{"X-Forwarded-For": "198.51.100.9"}, "192.0.2.1", "192.0.2.1")

	f(believed, "192.0.2.1:5", map[string]string{"Auth-Forwarded-For": " 198.51.100.8 , 203.0.113.1"}, "198.51.100.8",
		"198.51.100.8")
	f(believed, "192.0.2.1:5", map[string]string{"Auth-Forwarded-For": "2001:DB8:0::8"}, "2001:db8::8", "2001:db8::/64")
	f(believed, "192.0.2.1:5", map[string]string{"Auth-Forwarded-For": "nonsense"}, "192.0.2.1", "")
	f(believed, "192.0.2.1:5", nil, "192.0.2.1", "")

	f(behind, "192.0.2.1:5", map[string]string{"X-Forwarded-For": "198.51.100.9"}, "192.0.2.1", "")
	f(behind, "10.1.1.1:5", map[string]string{"X-Forwarded-For": "198.51.100.9"}, "198.51.100.9", "198.51.100.9")
	f(behind, "10.1.1.1:5", map[string]string{"X-Forwarded-For": "203.0.113.66, 198.51.100.9, 10.2.2.2"},
		"198.51.100.9", "198.51.100.9")
	f(behind, "10.1.1.1:5", map[string]string{"X-Forwarded-For": "198.51.100.9, garbage"}, "10.1.1.1", "")
	f(behind, "10.1.1.1:5", map[string]string{"X-Forwarded-For": "10.3.3.3"}, "10.1.1.1", "")
	f(behind, "10.1.1.1:5", map[string]string{"X-Forwarded-For": "198.51.100.9:4711"}, "198.51.100.9", "198.51.100.9")
	f(behind, "[fd00::1]:5", map[string]string{"X-Forwarded-For": "2001:db8::9"}, "2001:db8::9", "2001:db8::/64")
	f(behind, "[fd00::1]:5", map[string]string{"X-Forwarded-For": "2001:db8:0:0:ffff:1::"}, "2001:db8::ffff:1:0:0",
		"2001:db8::/64")
	f(behind, "[fd00::1]:5", map[string]string{"X-Forwarded-For": "2001:db8:0:1::9"}, "2001:db8:0:1::9",
		"2001:db8:0:1::/64")
	f(byPeer, "[2001:db8:1:2:3:4:5:6%eth0]:5", nil, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64")
	f(byPeer, "[::ffff:192.0.2.1]:5", nil, "192.0.2.1", "192.0.2.1")
	f(behind, "10.1.1.1:5", nil, "10.1.1.1", "")

	f(named, "192.0.2.1:5", map[string]string{"X-Real-Ip": " any text , more"}, "192.0.2.1", "any text")
	f(named, "192.0.2.1:5", map[string]string{"X-Real-Ip": "  "}, "192.0.2.1", "")
	f(named, "192.0.2.1:5", map[string]string{"X-Real-Ip": "2001:db8::9"}, "192.0.2.1", "2001:db8::/64")
	f(named, "192.0.2.1:5", map[string]string{"X-Real-Ip": "198.51.100.9:4711"}, "192.0.2.1", "198.51.100.9")
	f(named, "192.0.2.1:5", nil, "192.0.2.1", "")
	both := Settings{LimitHeader: "X-Real-Ip", LimitByPeer: true, TrustedProxies: proxies, ForwardedFor: true}
	f(both, "10.1.1.1:5", map[string]string{"Auth-Forwarded-For": "192.0.2.3", "X-Real-Ip": "b",
		"X-Forwarded-For": "198.51.100.9"}, "192.0.2.3", "192.0.2.3")
	f(both, "10.1.1.1:5", map[string]string{"X-Real-Ip": "b", "X-Forwarded-For": "198.51.100.9"}, "198.51.100.9", "b")
	f(both, "10.1.1.1:5", map[string]string{"X-Forwarded-For": "198.51.100.9"}, "198.51.100.9", "198.51.100.9")
	f(both, "192.0.2.1:5", map[string]string{"X-Forwarded-For": "198.51.100.9"}, "192.0.2.1", "192.0.2.1")
}

func TestBaseURL(t *testing.T) {
	l := liveSettings{flows: &flow.Settings{BaseURL: "https://auth.example.org/v1"}}
	l.ExternalHosts = []string{"alias.example.org", "alias.example.org:8443", "localhost:9999"}
	f := func(host, proto, want string) {
		t.Helper()
		r := httptest.NewRequest("GET", "http://evil.example/", nil)
		r.Header.Set("X-Forwarded-Host", host)
		r.Header.Set("X-Forwarded-Proto", proto)
		if got, _ := l.baseURL(r); got != want {
			t.Errorf("X-Forwarded-Host %q: %q, want %q", host, got, want)
		}
	}
	f("", "", "https://auth.example.org/v1")
	f("evil.example", "https", "https://auth.example.org/v1")
	f("alias.example.org", "", "https://alias.example.org")
	f("alias.example.org", "http", "https://alias.example.org")
	f("alias.example.org:8443", "", "https://alias.example.org:8443")
	f("alias.example.org:1", "", "https://auth.example.org/v1")
	f("ALIAS.example.org", "", "https://auth.example.org/v1")
	f("localhost:9999", "http", "http://localhost:9999")
	f("localhost:9999", "https", "https://localhost:9999")
}

// A proxy whose name is missing from the list shows in the log; without a list nothing is logged.
func TestBaseURL_log(t *testing.T) {
	a := open(t)
	f := func(host string, want bool) {
		t.Helper()
		a.do("POST /recover", map[string]any{"email": "nobody@example.org"}, header{"X-Forwarded-Host", host})
		if have := strings.Contains(a.log.String(), "unlisted_host="+host); have != want {
			t.Errorf("%s in the log: %t, want %t", host, have, want)
		}
	}
	f("none.example.org", false)
	a.apply(func(_ *flow.Settings, s *Settings) { s.ExternalHosts = []string{"alias.example.org"} })
	f("alias.example.org", false)
	f("other.example.org", true)
}

func TestLimiter(t *testing.T) {
	var l limiter
	l.init()
	now := time.Date(2031, 3, 4, 12, 0, 0, 0, time.UTC)
	r := Limits{OTP: 3}.rate(byOTP)
	f := func(key string, pass time.Duration, wait time.Duration) {
		t.Helper()
		now = now.Add(pass)
		if got := l.draw(take, key, r, now); (got == 0) != (wait == 0) || got.Round(time.Second) != wait {
			t.Errorf("%s after %s: wait %s, want %s", key, pass, got, wait)
		}
	}
	f("a", 0, 0)
	f("a", 0, 0)
	f("a", 0, 0)
	f("a", 0, 100*time.Second)
	f("b", 0, 0)
	f("a", 60*time.Second, 40*time.Second)
	f("a", 40*time.Second, 0)
	f("a", 0, 100*time.Second)
	f("a", time.Hour, 0)
	f("a", 0, 0)
	f("a", 0, 0)
	f("a", 0, 100*time.Second)
	f("a", -time.Hour, 100*time.Second) // a clock that is put back gives nothing and takes nothing
	r = Limits{}.rate(byOTP)
	f("c", 0, time.Hour)

	big := Limits{OTP: 1000, Anonymous: 1000}
	if r := big.rate(byOTP); r.burst != 30 || r.n != 1000 || r.per != 5*time.Minute {
		t.Errorf("%+v", r)
	}
	if r := big.rate(byAnonymous); r.burst != 1000 || r.per != time.Hour {
		t.Errorf("%+v", r)
	}
}

// Idle addresses are forgotten, and a flood of new ones cannot fill the memory.
func TestLimiter_memory(t *testing.T) {
	var l limiter
	l.init()
	now := time.Date(2031, 3, 4, 12, 0, 0, 0, time.UTC)
	r := defaultLimits.rate(byOTP)
	held := func() (n int) {
		for i := range l.shard {
			n += len(l.shard[i].buckets)
		}
		return n
	}
	for i := range 5000 {
		l.draw(take, fmt.Sprint(i), r, now)
	}
	if n := held(); n != 5000 {
		t.Errorf("%d buckets", n)
	}
	now = now.Add(time.Hour)
	for i := range 200 {
		l.draw(take, fmt.Sprint("x", i), r, now)
	}
	if n := held(); n > 200 {
		t.Errorf("%d buckets an hour later", n)
	}
	for i := range (maxKeys + 100) * shards {
		l.draw(take, fmt.Sprint("y", i), r, now)
	}
	if n := held(); n > maxKeys*shards {
		t.Errorf("%d buckets after a flood", n)
	}
	long := strings.Repeat("z", 100)
	l.draw(take, long, r, now)
	for i := range l.shard {
		for key := range l.shard[i].buckets {
			if len(key) > 64 {
				t.Errorf("a key of %d bytes is kept", len(key))
			}
		}
	}
}

// Each endpoint has its own counter, counts before it validates, and is deaf to other addresses.
func TestLimits_endpoints(t *testing.T) {
	a := open(t, passkeysOn, func(_ *flow.Settings, s *Settings) {
		s.LimitHeader = "X-Real-Ip"
		s.Limits = Limits{OTP: 2, Verify: 3, Token: 2, Anonymous: 1, Passkeys: 2}
	})
	g := a.member("mia@example.org") // without the header nothing is counted
	n := 0
	f := func(times int, what string, body any, headers ...header) {
		t.Helper()
		n++
		from := header{"X-Real-Ip", fmt.Sprintf("192.0.2.%d", n)}
		for range times {
			if got := a.do(what, body, append(headers, from)...); got.StatusCode == 429 {
				t.Errorf("%s is limited too early: %s", what, got.body)
			}
		}
		got := a.do(what, body, append(headers, from)...).refused(429, "over_request_rate_limit",
			"Request rate limit reached")
		if got.Header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		if got := a.do(what, body, append(headers,
			header{"X-Real-Ip", fmt.Sprintf("198.51.100.%d", n)})...); got.StatusCode == 429 {
			t.Errorf("%s: another address is limited too", what)
		}
	}
	f(2, "POST /signup", map[string]any{"email": "x"})
	f(1, "POST /signup", map[string]any{})
	f(2, "POST /recover", "nonsense")
	f(2, "POST /magiclink", "nonsense")
	f(2, "POST /otp", "nonsense")
	f(2, "POST /resend", "nonsense")
	f(3, "POST /verify", "nonsense")
	f(3, "GET /verify?type=signup&token=x", nil)
	f(3, "GET /authorize?provider=none", nil)
	f(3, "GET /callback", nil)
	f(3, "POST /callback", nil)
	f(2, "PUT /user", "nonsense", bearer(g.AccessToken))
	f(2, "GET /reauthenticate", nil, bearer(g.AccessToken))
	f(2, "POST /factors", "nonsense", bearer(g.AccessToken))
	for _, step := range []string{"options", "verify"} {
		f(2, "POST /passkeys/authentication/"+step, "nonsense")
		f(2, "POST /passkeys/registration/"+step, "nonsense", bearer(g.AccessToken))
	}
	f(2, "POST /token?grant_type=password", "nonsense")
	f(2, "POST /token?grant_type=pkce", "nonsense")
	f(2, "POST /token?grant_type=refresh_token", "nonsense")
	f(2, "POST /token?grant_type=refresh_token", map[string]any{"refresh_token": "forged"})

	// A token of this daemon is never counted: its user would be signed out because of others at the address.
	from := header{"X-Real-Ip", "192.0.2.200"}
	a.do("POST /token?grant_type=password", "x", from)
	a.do("POST /token?grant_type=password", "x", from)
	a.do("POST /token?grant_type=password", "x", from).refused(429, "over_request_rate_limit", "*")
	for range 5 {
		a.do("POST /token?grant_type=refresh_token", map[string]any{"refresh_token": g.RefreshToken}, from).json(&g)
	}
	// PUT /user without a token takes nothing from the address.
	from = header{"X-Real-Ip", "192.0.2.201"}
	for range 5 {
		a.do("PUT /user", "{}", from).refused(401, "no_authorization", "*")
	}
	a.pass(5 * time.Minute)
	a.do("POST /token?grant_type=password", "x", header{"X-Real-Ip", "192.0.2.200"}).refused(400, "bad_json", "*")
	if log := a.log.String(); strings.Count(log, "without the header") > 3 {
		t.Errorf("the missing header is told too often: %s", log)
	}
}

// A user's token, signed out or not, does not lift the share of the mails that a client has; an administrator's does.
func TestLimits_sentPerClient(t *testing.T) {
	a := open(t, func(u *flow.Settings, s *Settings) { s.LimitHeader = "X-Real-Ip" })
	in, out := a.member("mia@example.org"), a.member("tom@example.org")
	a.do("POST /logout?scope=global", nil, bearer(out.AccessToken)).is(204, "")
	a.apply(func(u *flow.Settings, _ *Settings) {
		u.SentPerClient, u.Email.Sent = 0.5, flow.Rate{N: 4, Per: time.Hour}
	})
	client := header{"X-Real-Ip", "192.0.2.7"}
	for i, token := range []string{in.AccessToken, out.AccessToken} {
		a.do("POST /recover", map[string]any{"email": fmt.Sprintf("a%d@example.org", i)}, client, bearer(token)).
			is(200, "{}")
	}
	for i, token := range []string{in.AccessToken, out.AccessToken, ""} {
		a.do("POST /recover", map[string]any{"email": fmt.Sprintf("b%d@example.org", i)}, client, bearer(token)).
			refused(429, "over_email_send_rate_limit", "email rate limit exceeded")
	}
	a.do("POST /recover", map[string]any{"email": "c@example.org"}, client, a.service()).is(200, "{}")
}

package httpapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/testdb"
)

// moveIn takes over the sessions of the replaced service.
func (a *api) moveIn() *formertest.Source {
	a.t.Helper()
	s := formertest.Fill(a.t, testdb.Postgres(a.t), "auth", formertest.Newest, a.clock())
	until := a.clock().Add(time.Hour)
	formertest.Carry(a.t, func(sql string, args ...any) {
		a.t.Helper()
		storetest.Exec(a.t, a.db, sql, args...)
	}, a.root, s, until)
	a.core.TookOver(until)
	return s
}

// A former refresh token is not counted against the address when it is found, and is when it is not. From an address
// over its limit the answer is to retry, since at a 429 the client library ends the session.
func TestFormerToken_limits(t *testing.T) {
	t.Parallel()
	const burst = 5
	a := open(t, func(_ *flow.Settings, s *Settings) {
		s.LimitHeader = "X-Real-Ip"
		s.Limits.Token = burst
	})
	refresh := func(text string, from header) answer {
		t.Helper()
		return a.do("POST /token?grant_type=refresh_token", map[string]any{"refresh_token": text}, from)
	}
	n := 0
	address := func() header {
		n++
		return header{"X-Real-Ip", fmt.Sprintf("198.51.100.%d", n)}
	}
	notFound := func(text string, from header) {
		t.Helper()
		refresh(text, from).refused(400, "refresh_token_not_found", "Invalid Refresh Token: Refresh Token Not Found")
	}
	unknown := map[string]string{"version 1": "abcdefghijkl", "version 1, old": "ABCDEFGHIJKLMNOPQRST-_",
		"version 2": formertest.Version2(uuid.New(), 300, []byte("0123456789abcdef0123456789abcdef"))}

	// Without a takeover the forms are refused like any other text.
	from := address()
	for range burst {
		notFound(unknown["version 1"], from)
	}
	refresh(unknown["version 1"], from).refused(429, "over_request_rate_limit", "Request rate limit reached")
	refresh(unknown["version 1, old"], address()).refused(400, "validation_failed", "Refresh token is not valid")
	notFound(unknown["version 2"], address())

	s := a.moveIn()
	for form, text := range unknown {
		from := address()
		for range burst {
			notFound(text, from)
		}
		got := refresh(text, from).refused(503, "unexpected_failure",
			"The service is temporarily unavailable, please retry after a moment.")
		if got.Header.Get("Retry-After") != "60" {
			t.Errorf("%s: Retry-After %q", form, got.Header.Get("Retry-After"))
		}
		// Other texts get the 429, and a good former token has to wait like a bad one.
		refresh("nonsense", from).refused(429, "over_request_rate_limit", "Request rate limit reached")
		live := s.User(1).Sessions[0].Token
		refresh(live, from).refused(503, "unexpected_failure", "*")
		a.pass(time.Minute)
		notFound(text, from)
	}

	// Those that are found take nothing, however often they come.
	from = address()
	for _, u := range s.Users {
		for _, v := range u.Sessions {
			if v.Left {
				continue
			}
			for range 2 {
				var g grantJSON
				got := refresh(v.Token, from)
				got.is(200, "*").json(&g)
				if len(g.RefreshToken) != 76 || g.User.ID != u.ID.String() {
					t.Errorf("kind %d: %s", u.Kind, got.body)
				}
			}
		}
	}
	for range burst {
		notFound(unknown["version 1"], from)
	}
	refresh(unknown["version 1"], from).refused(503, "unexpected_failure", "*")

	// What was malformed before still is, and counted.
	from = address()
	for range burst {
		refresh("ABCdefghijkl", from).refused(400, "validation_failed", "Refresh token is not valid")
	}
	refresh("ABCdefghijkl", from).refused(429, "over_request_rate_limit", "*")

	a.db.Close()
	got := refresh(s.User(2).Sessions[0].Token, address()).refused(503, "unexpected_failure", "*")
	if got.Header.Get("Retry-After") != "1" {
		t.Errorf("without a database: Retry-After %q", got.Header.Get("Retry-After"))
	}
}

// Misses that were requested together are all counted.
func TestLimiter_charge(t *testing.T) {
	var l limiter
	l.init()
	r, now := rate{burst: 2, n: 2, per: time.Minute}, time.Unix(1e9, 0)
	f := func(want bool) {
		t.Helper()
		if ok := l.draw(look, "a", r, now) == 0; ok != want {
			t.Errorf("look says %v", ok)
		}
	}
	f(true)
	for range 3 {
		l.draw(charge, "a", r, now)
	}
	f(false)
	now = now.Add(30 * time.Second) // one token is back, and pays what was overdrawn
	f(false)
	now = now.Add(30 * time.Second)
	f(true)
	for range 100 {
		l.draw(charge, "a", r, now)
	}
	now = now.Add(90 * time.Second) // at most a burst is overdrawn
	f(true)
	if l.draw(take, "a", r, now) > 0 {
		t.Error("nothing was there to take after a look")
	}
	f(false)
}

// A link of the replaced service's form redirects as others do, and names the type that was requested.
func TestFormerLink(t *testing.T) {
	t.Parallel()
	a := open(t)
	s := a.moveIn()
	u := s.User(22)
	text := formertest.LinkToken(u.Email, "654321")
	link := formertest.CarriedLink{User: u.ID, Kind: "recovery", Address: u.Email, Text: text,
		Expires: a.clock().Add(time.Hour)}
	link.Carry(func(sql string, args ...any) { storetest.Exec(t, a.db, sql, args...) })
	a.do("GET /verify?type=recovery&token="+formertest.LinkToken(u.Email, "1"), nil).is(303, "*")
	got := a.do("GET /verify?type=magiclink&token="+text, nil).is(303, "*")
	if to := got.Header.Get("Location"); !strings.Contains(to, "access_token=") ||
		!strings.Contains(to, "type=magiclink") {
		t.Errorf("leads to %s", to)
	}
}

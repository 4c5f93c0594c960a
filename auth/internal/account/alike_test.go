package account_test

import (
	"context"
	"encoding/binary"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// spied counts the statements that go to the server: the Bind messages of a connection.
type spied struct {
	net.Conn
	mu      *sync.Mutex
	n       *int
	started bool // the start-up message, which has no type, has gone
	rest    []byte
}

func (c *spied) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.rest = append(c.rest, p...)
	for {
		head := 1
		if !c.started {
			head = 0
		}
		if len(c.rest) < head+4 {
			break
		}
		size := head + int(binary.BigEndian.Uint32(c.rest[head:]))
		if len(c.rest) < size {
			break
		}
		if c.started && c.rest[0] == 'B' {
			*c.n++
		}
		c.started, c.rest = true, c.rest[size:]
	}
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// Known and unknown addresses cost the same work: the same number of statements, and a commit that has something to
// write, for each of the public endpoints, with pauses between mails and without.
func TestKnownAndUnknown_Statements(t *testing.T) {
	t.Run("pauses", func(t *testing.T) { knownAndUnknown(t, time.Minute) })
	t.Run("none", func(t *testing.T) { knownAndUnknown(t, 0) })
}

// measured returns accounts on a database of their own, with pauses between mails, and a function that says how many
// statements f sends and whether it writes.
func measured(t *testing.T, pause time.Duration) (h *house, work func(f func()) (statements int, writes bool)) {
	t.Helper()
	var mu sync.Mutex
	n := 0
	url := storetest.URL(t)
	beside := testdb.Connect(t, url)
	// written grows with each transaction that left a row behind: without one a commit costs nothing.
	written := func() (last int64) {
		err := beside.QueryRow(context.Background(),
			`select max(x::text::bigint) from (select xmin x from limits union all select xmin from users
			union all select xmin from one_time_tokens union all select xmin from outbox union all select xmin from audit) rows`).Scan(&last)
		must.Succeed(t, err)
		return last
	}
	db, err := store.Open(t.Context(),
		store.Options{URL: url, Settings: store.Settings{MaxConns: 1},
			Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				return &spied{Conn: c, mu: &mu, n: &n}, err
			}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	h = openOn(t, db, func(s *flow.Settings) {
		s.Email.Interval, s.Email.ConfirmationInterval, s.Phone.Interval, s.HideUnknownOnOTP = pause, pause, pause, true
	})
	return h, func(f func()) (int, bool) {
		h.pass(time.Hour)
		last := written()
		mu.Lock()
		before := n
		mu.Unlock()
		f()
		mu.Lock()
		defer mu.Unlock()
		return n - before, written() != last
	}
}

func knownAndUnknown(t *testing.T, pause time.Duration) {
	h, work := measured(t, pause)
	h.confirmed("confirmed@example.org")
	h.create(flow.Attributes{Phone: ptr("491511"), PhoneConfirm: ptr(true)})
	f := func(name string, call func(who string), who ...string) {
		t.Helper()
		for range 2 { // the second time the addresses are what the first made of them
			want := 0
			for i, w := range who {
				got, writes := work(func() { call(w) })
				if !writes {
					t.Errorf("%s writes nothing for %s", name, w)
				}
				if i == 0 {
					want = got
				}
				if got != want || got == 0 {
					t.Errorf("%s takes %d statements for %s, %d for %s", name, got, w, want, who[0])
				}
			}
		}
	}
	ctx, challenge := t.Context(), s256(verifier)
	f("sign-up", func(who string) {
		in := flow.SignUp{Email: who, Password: "sesame", Challenge: challenge}
		accepted(t, must.ErrOf(h.SignUp(ctx, browser, in)))
	}, "confirmed@example.org", "pending@example.org", "new-"+uuid.NewString()+"@example.org")
	f("sign-up by phone", func(who string) {
		accepted(t, must.ErrOf(h.SignUp(ctx, browser, flow.SignUp{Phone: who, Password: "sesame"})))
	}, "491511", "491512", "491513")
	f("recover", func(who string) {
		accepted(t, h.Recover(ctx, browser, flow.Recover{Email: who, Challenge: challenge}))
	}, "confirmed@example.org", "pending@example.org", "nobody@example.org")
	f("otp", func(who string) {
		accepted(t, h.SendOTP(ctx, browser, flow.OTP{Email: who, Challenge: challenge}))
	}, "confirmed@example.org", "pending@example.org", "nobody@example.org")
	f("otp by phone", func(who string) {
		accepted(t, h.SendOTP(ctx, browser, flow.OTP{Phone: who}))
	}, "491511", "491512", "491599")
	f("magic link", func(who string) {
		accepted(t, h.MagicLink(ctx, browser, flow.MagicLink{Email: who}))
	}, "confirmed@example.org", "pending@example.org", "new2@example.org")
	for _, typ := range []string{"signup", "email_change"} {
		f("resend "+typ, func(who string) {
			accepted(t, must.ErrOf(h.Resend(ctx, browser, flow.Resend{Type: typ, Email: who, Challenge: challenge})))
		}, "confirmed@example.org", "pending@example.org", "nobody@example.org")
	}
	for _, typ := range []string{"sms", "phone_change"} {
		f("resend "+typ, func(who string) {
			accepted(t, must.ErrOf(h.Resend(ctx, browser, flow.Resend{Type: typ, Phone: who})))
		}, "491511", "491512", "491599")
	}
	const badPassword = "invalid_credentials: Invalid login credentials"
	f("password", func(who string) {
		refused(t, h.signIn(who, "wrong"), badPassword)
	}, "confirmed@example.org", "pending@example.org", "nobody@example.org")
	for who, ban := range map[string]string{"boss": "none", "banned": "10000h"} {
		h.create(flow.Attributes{Email: ptr(who + "@example.org"), EmailConfirm: ptr(true), Password: ptr("sesame"),
			Role: ptr("service_role"), BanDuration: &ban})
	}
	f("password at the console", func(who string) {
		pass := "sesame" // right, but for the administrator
		if who == "boss@example.org" {
			pass = "wrong"
		}
		_, _, err := h.SignInConsole(ctx, browser, account.Password{Email: who, Password: pass})
		refused(t, err, badPassword)
	}, "boss@example.org", "confirmed@example.org", "banned@example.org", "pending@example.org", "nobody@example.org")
	// With a challenge of the sign-up, contested or not, and without any.
	for email, passwords := range map[string][]string{"one@example.org": {"sesame"}, "two@example.org": {"sesame", "another"}} {
		for _, pass := range passwords {
			h.pass(time.Hour)
			_, err := h.SignUp(ctx, browser, flow.SignUp{Email: email, Password: pass, Challenge: challenge})
			accepted(t, err)
		}
	}
	f("resend without a challenge", func(who string) {
		accepted(t, must.ErrOf(h.Resend(ctx, browser, flow.Resend{Type: "signup", Email: who})))
	}, "one@example.org", "two@example.org", "pending@example.org", "confirmed@example.org", "nobody@example.org")
	sent := h.s.Email.Sent
	h.set(func(s *flow.Settings) { s.Email.Sent.N = 0 })
	for _, pass := range []string{"sesame", "something else"} {
		f("a refused sign-up", func(who string) {
			_, err := h.SignUp(ctx, browser, flow.SignUp{Email: who, Password: pass})
			refusedAs(t, err, refusal.KindLimited, "over_email_send_rate_limit: email rate limit exceeded")
		}, "confirmed@example.org", "pending@example.org", "one@example.org", "two@example.org", "free@example.org")
	}
	h.set(func(s *flow.Settings) { s.Email.Sent = sent })
	f("verify", func(who string) {
		refused(t, must.ErrOf(h.verify(flow.Verify{Type: "email", Email: who, Token: "000000"})),
			"otp_expired: Token has expired or is invalid")
	}, "confirmed@example.org", "pending@example.org", "nobody@example.org")
}

package account_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/shared/await"
)

const (
	minePassword, theirPassword = "open sesame", "a stranger's"
	confirmationPause           = "over_email_send_rate_limit: For security purposes, you can only request this " +
		"after 900 seconds."
)

// stillPaused has the default pause between confirmations, and those of SMS.
func stillPaused(s *flow.Settings) {
	s.Email.ConfirmationInterval, s.Phone.Interval = 15*time.Minute, time.Minute
}

func (h *house) trySignUp(p flow.SignUp) error {
	h.t.Helper()
	_, err := h.SignUp(h.t.Context(), browser, p)
	return err
}

// sendsAgain is the link or digits of another confirmation, after the pause.
func (h *house) sendsAgain(p flow.Resend, from flow.RequestInfo) message {
	h.t.Helper()
	h.pass(time.Hour - time.Minute)
	id, err := h.Resend(h.t.Context(), from, p)
	if err != nil || id == uuid.Nil {
		h.t.Fatalf("resend: %v, %v", id, err)
	}
	if p.Phone != "" {
		return h.newest("signup", p.Phone)
	}
	return h.newest("confirmation", p.Email)
}

// The owner of an address who asks for another confirmation gets a link without a password, data or challenge of the
// others who wanted the address: where both signed up, and where only a stranger did, since the owner was refused for
// the pause or the budget. The link is a sign-up's, and its session is announced as a recovery.
func TestResend_contested(t *testing.T) {
	t.Parallel()
	const email, number = "mia@example.org", "4915100000001"
	byEmail := func(pass string) flow.SignUp {
		return flow.SignUp{Email: email, Password: pass, Data: []byte(`{"nick":"` + pass + `"}`),
			Challenge: s256(verifier)}
	}
	byPhone := func(pass string) flow.SignUp { return flow.SignUp{Phone: number, Password: pass} }
	for name, c := range map[string]func(t *testing.T, h *house, up func(pass string) flow.SignUp){
		"both signed up, the owner first": func(t *testing.T, h *house, up func(string) flow.SignUp) {
			accepted(t, h.trySignUp(up(minePassword)))
			h.pass(15 * time.Minute)
			accepted(t, h.trySignUp(up(theirPassword)))
		},
		"both signed up, the owner last": func(t *testing.T, h *house, up func(string) flow.SignUp) {
			accepted(t, h.trySignUp(up(theirPassword)))
			h.pass(15 * time.Minute)
			accepted(t, h.trySignUp(up(minePassword)))
		},
		"the owner was refused": func(t *testing.T, h *house, up func(string) flow.SignUp) {
			accepted(t, h.trySignUp(up(theirPassword)))
			if err := h.trySignUp(up(minePassword)); kindOf(err) != refusal.KindLimited {
				t.Fatalf("got %v, want a pause", err)
			}
		},
		"the owner was refused by the budget": func(t *testing.T, h *house, up func(string) flow.SignUp) {
			accepted(t, h.trySignUp(up(theirPassword)))
			h.pass(15 * time.Minute)
			sent, texts := h.s.Email.Sent, h.s.Phone.Sent
			h.set(func(s *flow.Settings) { s.Email.Sent.N, s.Phone.Sent.N = 0, 0 })
			if err := h.trySignUp(up(minePassword)); kindOf(err) != refusal.KindLimited {
				t.Fatalf("got %v, want a refusal by the budget", err)
			}
			h.set(func(s *flow.Settings) { s.Email.Sent, s.Phone.Sent = sent, texts })
		},
		"the sign-up of one was swept": func(t *testing.T, h *house, up func(string) flow.SignUp) {
			accepted(t, h.trySignUp(up(minePassword)))
			h.pass(15 * time.Minute)
			accepted(t, h.trySignUp(up(theirPassword)))
			h.exec("delete from one_time_tokens where created_at = (select min(created_at) from one_time_tokens)")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, stillPaused)
			c(t, h, byEmail)
			for range 2 { // and once more
				l := h.sendsAgain(flow.Resend{Type: "signup", Email: email}, browser)
				if strings.HasPrefix(l.Hash, pkcePrefix) || !strings.Contains(l.Link, "type=signup") {
					t.Errorf("got the link %s, want a sign-up's without another person's challenge", l.Link)
				}
				if strings.Contains(string(l.Vars.Data), "nick") {
					t.Errorf("the mail's template sees %s", l.Vars.Data)
				}
			}
			for _, pass := range []string{minePassword, theirPassword} {
				if err := h.signIn(email, pass); kindOf(err) == 0 {
					t.Errorf("%q signs in before the proof", pass)
				}
			}
			v, err := h.Verify(t.Context(), browser,
				flow.Verify{Type: "signup", TokenHash: h.newest("confirmation", email).Hash, Link: true})
			if err != nil || v.Grant == nil || v.Type != "recovery" {
				t.Fatalf("got %+v, %v, want a session announced as a recovery", v, err)
			}
			h.hasNoPassword(v.Grant.User.ID)
		})
		t.Run(name+", by phone", func(t *testing.T) {
			t.Parallel()
			h := open(t, stillPaused)
			c(t, h, byPhone)
			l := h.sendsAgain(flow.Resend{Type: "sms", Phone: number}, browser)
			v, err := h.verify(flow.Verify{Type: "sms", Phone: number, Token: l.Code})
			if err != nil || v.Type != "sms" {
				t.Fatalf("got %+v, %v, want a session by sms", v, err)
			}
			h.hasNoPassword(v.Grant.User.ID)
		})
		t.Run(name+", and support confirms", func(t *testing.T) {
			t.Parallel()
			h := open(t, stillPaused)
			c(t, h, byEmail)
			u, err := h.AdminUpdate(t.Context(), browser, service, h.idOf(email),
				flow.Attributes{EmailConfirm: ptr(true)})
			accepted(t, err)
			h.hasNoPassword(u.ID)
		})
		t.Run(name+", and support makes a link", func(t *testing.T) {
			t.Parallel()
			h := open(t, stillPaused)
			c(t, h, byEmail)
			l, err := h.generate(flow.LinkRequest{Type: "signup", Email: email})
			accepted(t, err)
			h.hasNoPassword(h.redeem("signup", l.HashedToken).User.ID)
		})
	}
}

const pkcePrefix = "pkce_"

func (h *house) hasNoPassword(id uuid.UUID) {
	h.t.Helper()
	u := h.user(id)
	if u.PasswordHash != "" || metadata(h.t, u.UserMetadata)["nick"] != nil {
		h.t.Errorf("got the user\n%s\nwant neither password nor data of a sign-up", brief(u))
	}
}

// The link of a contested sign-up itself carries what it carried, and POST /verify may set a password with the link
// that proves the address alone.
func TestResend_contestedLinks(t *testing.T) {
	t.Parallel()
	h := open(t, stillPaused)
	for _, email := range []string{"own@example.org", "again@example.org"} {
		accepted(t, h.trySignUp(flow.SignUp{Email: email, Password: theirPassword}))
		refused(t, h.trySignUp(flow.SignUp{Email: email, Password: minePassword}), confirmationPause)
	}
	v, err := h.Verify(t.Context(), browser, flow.Verify{Type: "signup", Link: true,
		TokenHash: h.newest("confirmation", "own@example.org").Hash})
	if err != nil || v.Type != "signup" {
		t.Errorf("got %+v, %v, want the sign-up", v, err)
	}
	accepted(t, h.signIn("own@example.org", theirPassword))
	l := h.sendsAgain(flow.Resend{Type: "signup", Email: "again@example.org", Challenge: s256(verifier)}, browser)
	if !strings.HasPrefix(l.Hash, pkcePrefix) {
		t.Error("the call's own challenge is not in the link")
	}
	v, err = h.follow("signup", l)
	if err != nil || v.Code == "" {
		t.Fatalf("got %+v, %v, want a code", v, err)
	}
	h.set(func(s *flow.Settings) { s.Email.ConfirmationInterval = 0 })
	accepted(t, h.trySignUp(flow.SignUp{Email: "two@example.org", Password: theirPassword}))
	accepted(t, h.trySignUp(flow.SignUp{Email: "two@example.org", Password: minePassword}))
	l = h.sendsAgain(flow.Resend{Type: "signup", Email: "two@example.org"}, browser)
	h.redeemWith("signup", l.Hash, "my choice")
	accepted(t, h.signIn("two@example.org", "my choice"))
}

// An owner who is alone keeps password, data and challenge, from wherever the confirmation is asked for again, also
// after a second click and several confirmations.
func TestResend_alone(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(h *house, p flow.SignUp){
		"one click": func(*house, flow.SignUp) {},
		"a second click": func(h *house, p flow.SignUp) {
			refused(h.t, h.trySignUp(p), confirmationPause)
		},
		"clicks at once": func(h *house, p flow.SignUp) {
			await.Together(4, func(int) {
				if err := h.trySignUp(p); kindOf(err) != refusal.KindLimited {
					h.t.Errorf("got %v, want a pause", err)
				}
			})
		},
		"an /otp": func(h *house, p flow.SignUp) {
			accepted(h.t, h.SendOTP(h.t.Context(), browser, flow.OTP{Email: p.Email}))
		},
		"an /otp of the client library": func(h *house, p flow.SignUp) {
			h.pass(time.Hour)
			accepted(h.t, h.SendOTP(h.t.Context(), browser,
				flow.OTP{Email: p.Email, CreateUser: true, Data: []byte(`{ }`)}))
		},
	} {
		for place, from := range map[string]flow.RequestInfo{"the same network": browser,
			"another network": {IP: "198.51.100.9", Network: "198.51.100.0/24", RedirectTo: browser.RedirectTo,
				BaseURL: browser.BaseURL},
			"no known network": {RedirectTo: browser.RedirectTo, BaseURL: browser.BaseURL}} {
			t.Run(name+", from "+place, func(t *testing.T) {
				t.Parallel()
				h := open(t, stillPaused)
				p := flow.SignUp{Email: "mia@example.org", Password: minePassword, Data: []byte(`{"nick":"mi"}`),
					Challenge: s256(verifier)}
				accepted(t, h.trySignUp(p))
				again(h, p)
				h.sendsAgain(flow.Resend{Type: "signup", Email: p.Email}, from)
				l := h.sendsAgain(flow.Resend{Type: "signup", Email: p.Email}, from)
				refused(t, h.signIn(p.Email, minePassword), "email_not_confirmed: Email not confirmed")
				v, err := h.follow("signup", l)
				if err != nil || v.Code == "" {
					t.Fatalf("got %+v, %v, want a code for the challenge of the sign-up", v, err)
				}
				g, err := h.exchange(v.Code, verifier)
				accepted(t, err)
				accepted(t, h.signIn(p.Email, minePassword))
				if metadata(t, h.user(g.User.ID).UserMetadata)["nick"] != "mi" {
					t.Error(brief(h.user(g.User.ID)))
				}
			})
		}
	}
}

// Of two sign-ups at the same moment one is refused, by the pause, after its hash: it contests the other all the same.
func TestSignUp_contestedAtOnce(t *testing.T) {
	t.Parallel()
	for range 5 {
		h := open(t, stillPaused)
		errs := make([]error, 2)
		var group sync.WaitGroup
		for i, pass := range []string{minePassword, theirPassword} {
			group.Go(func() { errs[i] = h.trySignUp(flow.SignUp{Email: "mia@example.org", Password: pass}) })
		}
		group.Wait()
		if err := errors.Join(errs...); (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("got %v, want one refusal", err)
		}
		h.hasNoPassword(h.redeem("signup",
			h.sendsAgain(flow.Resend{Type: "signup", Email: "mia@example.org"}, browser).Hash).User.ID)
	}
}

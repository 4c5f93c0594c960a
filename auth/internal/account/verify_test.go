package account_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

const (
	linkExpired  = "otp_expired: Email link is invalid or has expired"
	tokenExpired = "otp_expired: Token has expired or is invalid"
)

func (h *house) verify(p flow.Verify) (flow.Verified, error) {
	return h.Verify(h.t.Context(), browser, p)
}

// signUp requests an account and returns the message that comes.
func (h *house) signUp(email, pass, data string) message {
	h.t.Helper()
	h.pass(time.Second)
	_, err := h.SignUp(h.t.Context(), browser, flow.SignUp{Email: email, Password: pass, Data: []byte(data)})
	must.Succeed(h.t, err)
	return h.newest("confirmation", email)
}

func TestVerify_refusals(t *testing.T) {
	t.Parallel()
	h := open(t)
	f := func(p flow.Verify, kind refusal.Kind, want string) {
		t.Helper()
		refusedAs(t, must.ErrOf(h.verify(p)), kind, want)
	}
	hash := strings.Repeat("0", 64)
	either := "validation_failed: Verify requires either a token or a token hash"
	only := "validation_failed: Only the token_hash and type should be provided"
	f(flow.Verify{Token: "123456"}, refusal.KindInvalid, "validation_failed: Verify requires a verification type")
	f(flow.Verify{Type: "signup"}, refusal.KindInvalid, either)
	f(flow.Verify{Type: "signup", Token: "1", TokenHash: "2"}, refusal.KindInvalid, either)
	f(flow.Verify{Type: "signup", Token: "1", Email: "a@b", Phone: "12"}, refusal.KindInvalid,
		"validation_failed: Only an email address or phone number should be provided on verify")
	f(flow.Verify{Type: "signup", Token: "1", Email: "a"}, refusal.KindUnprocessable,
		"validation_failed: Invalid email format")
	f(flow.Verify{Type: "sms", Token: "1", Phone: "0"}, refusal.KindInvalid,
		"validation_failed: Invalid phone number format (E.164 required)")
	f(flow.Verify{Type: "signup", TokenHash: hash, Email: "a@b"}, refusal.KindInvalid, only)
	f(flow.Verify{Type: "signup", TokenHash: hash, Phone: "12"}, refusal.KindInvalid, only)
	f(flow.Verify{Type: "signup", TokenHash: hash, RedirectTo: "x"}, refusal.KindInvalid, only)
	f(flow.Verify{Type: "sms", TokenHash: hash}, refusal.KindInvalid,
		"validation_failed: Invalid email verification type")
	f(flow.Verify{Type: "x", Token: hash}, refusal.KindInvalid, "validation_failed: Invalid email verification type")
	for _, typ := range []string{"email", "signup", "invite", "recovery", "magiclink", "email_change"} {
		f(flow.Verify{Type: typ, TokenHash: hash}, refusal.KindDenied, linkExpired)
		f(flow.Verify{Type: typ, TokenHash: "pkce_" + hash, Link: true}, refusal.KindDenied, linkExpired)
		f(flow.Verify{Type: typ, TokenHash: "short"}, refusal.KindDenied, linkExpired)
		f(flow.Verify{Type: typ, Token: "123456", Email: "a@b"}, refusal.KindDenied, tokenExpired)
	}
	f(flow.Verify{Type: "sms", Token: "123456", Phone: "12"}, refusal.KindDenied, tokenExpired)
	f(flow.Verify{Type: "phone_change", Token: "123456", Phone: "12"}, refusal.KindDenied, tokenExpired)
	f(flow.Verify{Type: "x", Token: "123456", Email: "a@b"}, refusal.KindDenied, tokenExpired)
	f(flow.Verify{Type: "signup", Token: "123456", Email: "a@b", Password: "short"}, refusal.KindUnprocessable,
		"weak_password: Password should be at least 6 characters.")
	if !strings.HasPrefix(h.trail(), "verification_failed verification_failed") {
		t.Errorf("trail %s", h.trail())
	}
}

// Guessing does not fill the log: one row a minute for an address, one for all invented links.
func TestVerify_auditRate(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	noted := func() []store.AuditRow {
		t.Helper()
		rows, _, err := h.AuditLog(t.Context(), store.AuditFilter{Action: "verification_failed", Limit: 1000})
		must.Succeed(t, err)
		return rows
	}
	guess := func(p flow.Verify, aud string) {
		t.Helper()
		c := browser
		c.Aud = aud
		_, err := h.Verify(t.Context(), c, p)
		if kindOf(err) != refusal.KindDenied {
			t.Errorf("%+v: %v", p, err)
		}
	}
	flood := func() {
		for i := range 10 {
			guess(flow.Verify{Type: "email", Token: fmt.Sprintf("%06d", i), Email: "mia@example.org"}, "")
			guess(flow.Verify{Type: "recovery", Token: "000000", Email: "mia@example.org"}, fmt.Sprint("other", i))
			guess(flow.Verify{Type: "email", Token: "000000", Email: "nobody@example.org"}, "")
			guess(flow.Verify{Type: "recovery", TokenHash: fmt.Sprintf("%064d", i)}, "")
			guess(flow.Verify{Type: strings.Repeat("\x00long", 10000), Token: "1", Phone: "491511"}, "")
		}
	}
	flood()
	if n := len(noted()); n != 4 {
		t.Errorf("%d rows, want one for each address and one for links", n)
	}
	h.pass(59 * time.Second)
	flood()
	if n := len(noted()); n != 4 {
		t.Errorf("%d rows within a minute", n)
	}
	h.pass(time.Second)
	flood()
	rows := noted()
	if len(rows) != 8 {
		t.Errorf("%d rows in the next minute", len(rows))
	}
	for _, r := range rows {
		if len(r.Traits) > 50 {
			t.Errorf("%d bytes of traits", len(r.Traits))
		}
	}
}

// The sign-up whose link is used decides about password and data; the others die.
func TestVerify_signup(t *testing.T) {
	t.Parallel()
	h := open(t)
	first := h.signUp("mia@example.org", "first password", `{"nick":"one","a":1}`)
	second := h.signUp("mia@example.org", "second password", `{"nick":"two"}`)
	// Until then the newest one's password is compared, and nothing can be entered.
	refused(t, h.signIn("mia@example.org", "first password"), "invalid_credentials: Invalid login credentials")
	refused(t, h.signIn("mia@example.org", "second password"), "email_not_confirmed: Email not confirmed")
	if !digitsOnly.MatchString(first.Code) || !strings.HasPrefix(first.Link,
		"https://auth.example.org/verify?token="+first.Hash+"&type=signup&redirect_to=https://app.example.org/home") {
		t.Errorf("%+v", first)
	}
	v, err := h.verify(flow.Verify{Type: "signup", Token: first.Code, Email: "MIA@example.org"})
	if err != nil || v.Type != "signup" || v.Grant.Type != "signup" || v.Grant.User.LastSignInAt != h.now {
		t.Fatal(v, err)
	}
	var meta map[string]any
	h.decode(v.Grant.User.UserMetadata, &meta)
	if meta["nick"] != "one" || meta["email_verified"] != true || meta["email"] != "mia@example.org" ||
		meta["sub"] != v.User.ID.String() {
		t.Errorf("metadata %v", meta)
	}
	if i := v.Grant.User.Identities; len(i) != 1 || !strings.Contains(string(i[0].Data), `"email_verified": true`) ||
		!strings.Contains(string(i[0].Data), `"nick": "one"`) {
		t.Errorf("identities %s", i[0].Data)
	}
	if c := h.caller(*v.Grant); c.Claims.AMR[0].Method != "otp" {
		t.Errorf("%+v", c.Claims)
	}
	accepted(t, h.signIn("mia@example.org", "first password"))
	refused(t, h.signIn("mia@example.org", "second password"), "invalid_credentials: Invalid login credentials")
	for _, l := range []message{first, second} {
		refused(t, must.ErrOf(h.verify(flow.Verify{Type: "signup", TokenHash: l.Hash})), linkExpired)
		_, err = h.verify(flow.Verify{Type: "email", Token: l.Code, Email: "mia@example.org"})
		refused(t, err, tokenExpired)
	}
}

// Five side by side, a sixth drops the oldest.
func TestVerify_sixSignups(t *testing.T) {
	t.Parallel()
	h := open(t)
	var all []message
	for range 6 {
		all = append(all, h.signUp("mia@example.org", "sesame", `{}`))
	}
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "email", TokenHash: all[0].Hash})), linkExpired)
	accepted(t, must.ErrOf(h.verify(flow.Verify{Type: "email", TokenHash: all[1].Hash})))
}

// A token is redeemed as what it was sent for; email finds sign-ups, invitations and magic links.
func TestVerify_kinds(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	send := map[string]func() message{
		"signup": func() message { return h.signUp("tom@example.org", "sesame", `{}`) },
		"invite": func() message {
			accepted(t, must.ErrOf(h.Invite(t.Context(), browser, service, flow.Invitation{Email: "ann@example.org"})))
			return h.newest("invite", "ann@example.org")
		},
		"recovery": func() message {
			accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
			return h.newest("recovery", "mia@example.org")
		},
		"magiclink": func() message {
			accepted(t, h.MagicLink(t.Context(), browser, flow.MagicLink{Email: "mia@example.org"}))
			return h.newest("magic_link", "mia@example.org")
		},
	}
	for sent, f := range send {
		h.pass(time.Second)
		l := f()
		for _, typ := range []string{"signup", "invite", "recovery", "magiclink", "email_change"} {
			if typ == sent {
				continue
			}
			refused(t, must.ErrOf(h.verify(flow.Verify{Type: typ, TokenHash: l.Hash})), linkExpired)
		}
		as := sent
		if sent != "recovery" {
			as = "email"
		} else {
			refused(t, must.ErrOf(h.verify(flow.Verify{Type: "email", Token: l.Hash})), linkExpired)
		}
		v, err := h.verify(flow.Verify{Type: as, Token: l.Hash}) // a token alone is the link's
		if err != nil || v.Type != sent {
			t.Errorf("%s: %+v, %v", sent, v, err)
		}
	}
}

func TestVerify_misses(t *testing.T) {
	t.Parallel()
	h := open(t)
	l := h.signUp("mia@example.org", "sesame", `{}`)
	p := flow.Verify{Type: "signup", Email: "mia@example.org"}
	for range 5 {
		p.Token = wrong(l.Code)
		refused(t, must.ErrOf(h.verify(p)), tokenExpired)
	}
	p.Token = l.Code
	refused(t, must.ErrOf(h.verify(p)), tokenExpired)
	h.redeem("signup", l.Hash)
	// And after an hour even the link is dead.
	l = h.signUp("tom@example.org", "sesame", `{}`)
	h.pass(time.Hour)
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "signup", TokenHash: l.Hash})), linkExpired)
}

// Two hundred at once, by link and by digits: one session.
func TestVerify_parallel(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.CodesPerAccount = 1000 })
	l := h.signUp("mia@example.org", "sesame", `{}`)
	var got atomic.Int64
	await.Together(200, func(i int) {
		p, want := flow.Verify{Type: "signup", TokenHash: l.Hash}, linkExpired
		if i%2 == 0 {
			p, want = flow.Verify{Type: "email", Token: l.Code, Email: "mia@example.org"}, tokenExpired
		}
		v, err := h.verify(p)
		if err != nil {
			refused(t, err, want)
			return
		}
		if got.Add(1); v.Grant == nil {
			t.Errorf("%+v", v)
		}
	})
	page, _, err := h.AdminUsers(t.Context(), store.UsersFilter{Email: "mia@example.org", Limit: 2})
	if err != nil || len(page) != 1 || got.Load() != 1 {
		t.Fatalf("%d users, redeemed %d times, %v", len(page), got.Load(), err)
	}
	all, err := h.UserSessions(t.Context(), page[0].ID)
	if err != nil || len(all) != 1 {
		t.Errorf("%d sessions, %v", len(all), err)
	}
}

// An account that is confirmed by recovery or a magic link loses its password: the sign-up may have been by another
// person.
func TestVerify_confirmsWithout(t *testing.T) {
	t.Parallel()
	f := func(typ string, send func(*house) (hash string)) {
		t.Helper()
		h := open(t)
		l := h.signUp("mia@example.org", "sesame", `{"nick":"x"}`)
		g := h.redeem(typ, send(h))
		if u := h.user(g.User.ID); u.PasswordHash != "" || u.EmailConfirmedAt.IsZero() ||
			strings.Contains(string(u.UserMetadata), "nick") {
			t.Errorf("%+v", u)
		}
		refused(t, h.signIn("mia@example.org", "sesame"), "invalid_credentials: Invalid login credentials")
		refused(t, must.ErrOf(h.verify(flow.Verify{Type: "signup", TokenHash: l.Hash})), linkExpired)
		if want := "user_confirmation_requested user_recovery_requested user_signedup login_failed " +
			"verification_failed"; h.trail() != want {
			t.Errorf("trail %s", h.trail())
		}
	}
	f("recovery", func(h *house) string {
		accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "nobody@example.org"}))
		accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
		return h.newest("recovery", "mia@example.org").Hash
	})
	f("magiclink", func(h *house) string {
		l, err := h.GenerateLink(t.Context(), browser, service,
			flow.LinkRequest{Type: "magiclink", Email: "mia@example.org"})
		accepted(t, err)
		return l.HashedToken
	})
}

// A password may come with the verification of a user who has none; it wins over the one of the sign-up.
func TestVerify_password(t *testing.T) {
	t.Parallel()
	h := open(t)
	accepted(t, must.ErrOf(h.Invite(t.Context(), browser, service, flow.Invitation{Email: "ann@example.org"})))
	accepted(t, must.ErrOf(h.verify(flow.Verify{Type: "invite", TokenHash: h.newest("invite", "ann@example.org").Hash,
		Password: "sesame"})))
	accepted(t, h.signIn("ann@example.org", "sesame"))
	l := h.signUp("mia@example.org", "stranger", `{}`)
	accepted(t, must.ErrOf(h.verify(flow.Verify{Type: "signup", TokenHash: l.Hash, Password: "sesame"})))
	accepted(t, h.signIn("mia@example.org", "sesame"))
	accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
	accepted(t, must.ErrOf(h.verify(flow.Verify{Type: "recovery", TokenHash: h.newest("recovery", "mia@example.org").Hash,
		Password: "another"})))
	refused(t, h.signIn("mia@example.org", "another"), "invalid_credentials: Invalid login credentials")
}

func TestVerify_banned(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
	l := h.newest("recovery", "mia@example.org")
	h.ban(g.User, "10m")
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "recovery", TokenHash: l.Hash})), "user_banned: User is banned")
	h.pass(10 * time.Minute)
	accepted(t, must.ErrOf(h.verify(flow.Verify{Type: "recovery", TokenHash: l.Hash})))
}

func TestVerify_sms(t *testing.T) {
	t.Parallel()
	h := open(t)
	_, err := h.SignUp(t.Context(), browser,
		flow.SignUp{Phone: "+49 151 1234", Password: "sesame", Data: []byte(`{"nick":"x"}`)})
	accepted(t, err)
	l := h.newest("signup", "491511234")
	if l.Text != "Your code is "+l.Code {
		t.Errorf("%+v", l)
	}
	v, err := h.verify(flow.Verify{Type: "sms", Token: l.Code, Phone: "+491511234"})
	if err != nil || v.Type != "sms" || v.User.PhoneConfirmedAt.IsZero() ||
		!strings.Contains(string(v.User.UserMetadata), `"phone_verified": true`) {
		t.Fatalf("%+v, %v", v, err)
	}
	_, err = h.SignInPassword(t.Context(), browser, account.Password{Phone: "491511234", Password: "sesame"})
	accepted(t, err)
	h.pass(time.Second)
	accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Phone: "491511234"}))
	v, err = h.verify(flow.Verify{Type: "sms", Token: h.newest("sms", "491511234").Code, Phone: "491511234"})
	if err != nil || v.Type != "sms" {
		t.Fatal(v, err)
	}
	if want := "user_confirmation_requested user_signedup login user_recovery_requested login"; h.trail() != want {
		t.Errorf("trail %s", h.trail())
	}
}

// Test numbers: a fixed code, no message, no caps, no five tries; the pause holds.
func TestVerify_testNumber(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) {
		s.Phone.TestCodes, s.Phone.Configured, s.Phone.Sent.N, s.Phone.Interval = map[string]string{
			"491511234": "424242"},
			false, 0, time.Minute
		s.Phone.TestUntil = noon.Add(48 * time.Hour)
	})
	accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Phone: "+491511234", CreateUser: true}))
	refused(t, h.SendOTP(t.Context(), browser, flow.OTP{Phone: "+491511234", CreateUser: true}),
		"over_sms_send_rate_limit: For security purposes, you can only request this after 60 seconds.")
	refused(t, h.SendOTP(t.Context(), browser, flow.OTP{Phone: "+491511235", CreateUser: true}),
		"sms_send_failed: Error sending confirmation OTP to provider: no SMS provider is configured")
	for range 7 {
		refused(t, must.ErrOf(h.verify(flow.Verify{Type: "sms", Token: "000000", Phone: "491511234"})), tokenExpired)
	}
	h.pass(24 * time.Hour)
	accepted(t, must.ErrOf(h.verify(flow.Verify{Type: "sms", Token: "424242", Phone: "491511234"})))
	_, err := h.verify(flow.Verify{Type: "sms", Token: "424242", Phone: "491511234"}) // nothing was sent since
	accepted(t, err)
	for _, p := range []flow.Verify{
		{Type: "sms", Token: "424243", Phone: "491511234"}, {Type: "phone_change", Token: "424242", Phone: "491511234"},
		{Type: "sms", Token: "424242", Phone: "491511235"},
	} {
		refused(t, must.ErrOf(h.verify(p)), tokenExpired)
	}
	h.set(func(s *flow.Settings) { s.Phone.TestCodes["491511299"] = "424242" })
	_, err = h.verify(flow.Verify{Type: "sms", Token: "424242", Phone: "491511299"}) // no account has it
	refused(t, err, tokenExpired)
	h.pass(24 * time.Hour) // the end of it all
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "sms", Token: "424242", Phone: "491511234"})), tokenExpired)
	if n := len(h.messages()); n != 0 {
		t.Errorf("%d messages", n)
	}
}

// A token that was sent to an address at the moment when the user lost it opens nothing.
func TestVerify_lostAddress(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
	l := h.newest("recovery", "mia@example.org")
	h.exec(`with u as (update users set email = 'new@example.org' where id = $1 returning *)
		update identities i set email = u.email from u where i.user_id = u.id`, g.User.ID)
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "recovery", TokenHash: l.Hash})), tokenExpired)
}

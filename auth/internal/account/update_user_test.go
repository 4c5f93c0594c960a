package account_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

func (h *house) update(g flow.Grant, p flow.UserUpdate) (store.User, error) {
	return h.UpdateUser(h.t.Context(), browser, h.caller(g), p)
}

func TestUpdateUser_refusals(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	tom := h.confirmed("tom@example.org").User
	h.create(flow.Attributes{Phone: ptr("491511"), PhoneConfirm: ptr(true)})
	b := h.db.Batch()
	b.PutIdentity(store.Identity{ID: uuid.New(), UserID: tom.ID, Provider: "github", ProviderID: "7",
		Email: "tom@work.example", Data: []byte(`{}`), CreatedAt: noon, UpdatedAt: noon})
	must.Succeed(t, b.Send(t.Context()))
	anonymous, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	f := func(g flow.Grant, p flow.UserUpdate, kind refusal.Kind, want string,
		change ...func(*flow.Settings)) {
		t.Helper()
		defer h.under(change...)()
		refusedAs(t, must.ErrOf(h.update(g, p)), kind, want)
	}
	nonce := func(s *flow.Settings) { s.Passwords.RequireNonce = true }
	current := func(s *flow.Settings) { s.Passwords.RequireCurrent = true }
	f(g, flow.UserUpdate{Email: "a"}, refusal.KindInvalid,
		"validation_failed: Unable to validate email address: invalid format")
	f(g, flow.UserUpdate{Phone: "0"}, refusal.KindInvalid,
		"validation_failed: Invalid phone number format (E.164 required)")
	f(g, flow.UserUpdate{Phone: "12", Channel: "fax"}, refusal.KindInvalid,
		"validation_failed: Invalid channel, supported values are 'sms' or 'whatsapp'. 'whatsapp' is only supported "+
			"if Twilio or Twilio Verify is used as the provider.")
	f(g, flow.UserUpdate{Email: "a@b", Challenge: flow.Challenge{Method: "s256"}}, refusal.KindInvalid,
		"validation_failed: PKCE flow requires code_challenge_method and code_challenge")
	f(g, flow.UserUpdate{Password: ptr(strings.Repeat("x", 73))}, refusal.KindInvalid,
		"validation_failed: Password cannot be longer than 72 characters")
	f(g, flow.UserUpdate{Password: ptr("")}, refusal.KindUnprocessable,
		"weak_password: Password should be at least 6 characters.")
	f(g, flow.UserUpdate{AppMetadata: []byte(`{"role":"admin"}`)}, refusal.KindDenied,
		"not_admin: Updating app_metadata requires admin privileges")
	f(anonymous, flow.UserUpdate{Password: ptr("sesame")}, refusal.KindUnprocessable,
		"validation_failed: Updating password of an anonymous user without an email or phone is not allowed")
	exists := "email_exists: A user with this email address has already been registered"
	f(g, flow.UserUpdate{Email: "TOM@example.org"}, refusal.KindUnprocessable, exists)
	f(g, flow.UserUpdate{Email: "tom@work.example"}, refusal.KindUnprocessable, exists)
	f(g, flow.UserUpdate{Phone: "491511"}, refusal.KindUnprocessable,
		"phone_exists: A user with this phone number has already been registered")
	f(g, flow.UserUpdate{Password: ptr("another")}, refusal.KindInvalid,
		"reauthentication_needed: Password update requires reauthentication", nonce)
	f(g, flow.UserUpdate{Password: ptr("another"), Nonce: "123456"}, refusal.KindUnprocessable,
		"reauthentication_not_valid: Nonce has expired or is invalid", nonce, current)
	f(g, flow.UserUpdate{Data: []byte(`[]`)}, refusal.KindInvalid,
		"bad_json: Could not parse request body as JSON: metadata is not an object")
	f(g, flow.UserUpdate{Email: "new@example.org"}, refusal.KindFailed,
		"unexpected_failure: Error sending email change email", func(s *flow.Settings) {
			s.Email.Configured = false
		})
	f(g, flow.UserUpdate{Phone: "491512"}, refusal.KindUnprocessable,
		"sms_send_failed: Error sending phone_change OTP to provider: no SMS provider is configured",
		func(s *flow.Settings) { s.Phone.Configured = false })
	f(g, flow.UserUpdate{Password: ptr("sesame")}, refusal.KindUnprocessable,
		"same_password: New password should be different from the old password.")
	// The session came by mail: the current password is not required. After a sign-in with the password it is.
	f(g, flow.UserUpdate{Password: ptr("sesame")}, refusal.KindUnprocessable,
		"same_password: New password should be different from the old password.", current)
	g = h.again("mia@example.org")
	f(g, flow.UserUpdate{Password: ptr("another")}, refusal.KindInvalid,
		"current_password_required: Current password required when setting new password.", current)
	f(g, flow.UserUpdate{Password: ptr("another"), CurrentPassword: ptr("wrong")}, refusal.KindInvalid,
		"current_password_invalid: Current password required when setting new password.", current)
	f(g, flow.UserUpdate{Email: "new@example.org", Password: ptr("another")}, refusal.KindLimited,
		"over_email_send_rate_limit: email rate limit exceeded", func(s *flow.Settings) { s.Email.Sent.N = 0 })
	accepted(t, h.signIn("mia@example.org", "sesame")) // nothing of the last one happened
	f(g, flow.UserUpdate{Password: ptr("another"), CurrentPassword: ptr("sesame")}, 0, "", current)
	accepted(t, h.signIn("mia@example.org", "another"))
}

// The holder of a session may add another address; the session that its proof opens does not allow a new password
// without the current one.
func TestUpdateUser_currentPasswordAfterChange(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) {
		s.Passwords.RequireCurrent, s.Email.SecureChange, s.Email.ChangeEndsSessions = true, false, false
	})
	h.confirmed("mia@example.org")
	g := h.again("mia@example.org")
	f := func(g flow.Grant, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.update(g, flow.UserUpdate{Password: ptr("another")})), want)
	}
	const required = "current_password_required: Current password required when setting new password."
	f(g, required)
	_, err := h.update(g, flow.UserUpdate{Phone: "491511"})
	accepted(t, err)
	v, err := h.verify(flow.Verify{Type: "phone_change", Phone: "491511",
		Token: h.newest("phone_change", "491511").Code})
	accepted(t, err)
	f(*v.Grant, required)
	accepted(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "new@example.org"})))
	changed := h.redeem("email_change", h.newest("email_change", "new@example.org").Hash)
	f(changed, required)
	changed, err = h.refresh(changed.RefreshToken)
	accepted(t, err)
	f(changed, required)
	accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "new@example.org"}))
	f(h.redeem("recovery", h.newest("recovery", "new@example.org").Hash), "")
}

// A new password voids what was sent, what waits, and other sessions.
func TestUpdateUser_password(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) {
		s.Email.Notify.PasswordChanged, s.Email.Interval = true, time.Minute
	})
	h.confirmed("mia@example.org")
	mine, other := h.again("mia@example.org"), h.again("mia@example.org")
	accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
	l := h.newest("recovery", "mia@example.org")
	_, err := h.update(mine, flow.UserUpdate{Email: "new@example.org"})
	accepted(t, err)
	change := h.newest("email_change", "new@example.org")
	u, err := h.update(mine, flow.UserUpdate{Password: ptr("another"), Data: []byte(`{"nick":"x"}`)})
	if err != nil || u.NewEmail != "" || !u.RecoverySentAt.IsZero() || !u.EmailChangeSentAt.IsZero() ||
		!strings.Contains(string(u.UserMetadata), `"nick": "x"`) || len(u.Identities) != 1 {
		t.Errorf("%+v, %v", u, err)
	}
	for _, p := range []flow.Verify{{Type: "recovery", TokenHash: l.Hash},
		{Type: "email_change", TokenHash: change.Hash}} {
		refused(t, must.ErrOf(h.verify(p)), linkExpired)
	}
	refused(t, must.ErrOf(h.refresh(other.RefreshToken)), notFound)
	mine, err = h.refresh(mine.RefreshToken)
	accepted(t, err)
	accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"})) // the pause is over
	if m := h.newest("password_changed_notification", "mia@example.org"); m.Vars.Email != "mia@example.org" ||
		m.Vars.SiteURL != h.s.SiteURL {
		t.Errorf("%+v", m)
	}
	// Without budget no notification is sent, and the password changes all the same.
	h.set(func(s *flow.Settings) { s.Email.Sent.N = 0 })
	accepted(t, must.ErrOf(h.update(mine, flow.UserUpdate{Password: ptr("a third one")})))
	accepted(t, h.signIn("mia@example.org", "a third one"))
	h.set(func(s *flow.Settings) { s.Passwords.ChangeEndsSessions = false })
	other = h.confirmedAgain("mia@example.org", "a third one")
	accepted(t, must.ErrOf(h.update(mine, flow.UserUpdate{Password: ptr("the fourth")})))
	accepted(t, must.ErrOf(h.refresh(other.RefreshToken)))
	if !strings.HasSuffix(h.trail(), "user_updated_password user_modified token_refreshed") {
		t.Errorf("trail %s", h.trail())
	}
}

func (h *house) confirmedAgain(email, pass string) flow.Grant {
	h.t.Helper()
	g, err := h.SignInPassword(h.t.Context(), browser, account.Password{Email: email, Password: pass})
	must.Succeed(h.t, err)
	return g
}

func TestUpdateUser_data(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	u, err := h.update(g, flow.UserUpdate{Data: []byte(`{"a":{"b":1},"c":2}`)})
	accepted(t, err)
	u, err = h.update(g, flow.UserUpdate{Data: []byte(`{"a":null,"sub":null,"d":[]}`), Email: "MIA@example.org"})
	if want := `{"c": 2, "d": [], "sub": "` +
		g.User.ID.String() +
		`", "email": "mia@example.org", "email_verified": true, "phone_verified": false}`; err != nil ||
		string(u.UserMetadata) != want || u.NewEmail != "" {
		t.Errorf("%s, %v", u.UserMetadata, err)
	}
	accepted(t, must.ErrOf(h.update(g, flow.UserUpdate{})))
	if want := "user_confirmation_requested user_signedup user_modified user_modified user_modified"; h.trail() != want {
		t.Errorf("trail %s", h.trail())
	}
	h.pass(time.Second)
	g, err = h.refresh(g.RefreshToken)
	if err != nil || !strings.Contains(h.caller(g).Claims.Payload, `"user_metadata":{"c":2,`) {
		t.Errorf("%s, %v", h.caller(g).Claims.Payload, err)
	}
}

// A wrong nonce counts as a miss, and costs neither mails nor pauses of what came along with it.
func TestUpdateUser_wrongNonceCostsNoMail(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Passwords.RequireNonce = true })
	g := h.confirmed("mia@example.org")
	accepted(t, h.Reauthenticate(t.Context(), browser, h.caller(g)))
	code := h.newest("reauthenticate", "mia@example.org").Code
	h.set(func(s *flow.Settings) {
		s.Email.Interval, s.Phone.Interval = time.Hour, time.Hour
		s.Email.Sent, s.Phone.Sent, s.Phone.PerNumber = flow.Rate{N: 1, Per: time.Hour},
			flow.Rate{N: 1, Per: time.Hour}, flow.Rate{N: 1, Per: time.Hour}
	})
	h.pass(time.Minute) // the bucket of before is full again
	f := func(nonce, want string) {
		t.Helper()
		_, err := h.update(g, flow.UserUpdate{Password: ptr("another"), Nonce: nonce, Email: "new@example.org",
			Phone: "491511"})
		refused(t, err, want)
	}
	for range 4 {
		f(wrong(code), "reauthentication_not_valid: Nonce has expired or is invalid")
	}
	f(code, "")
	for _, l := range []message{h.newest("email_change", "new@example.org"), h.newest("phone_change", "491511")} {
		if l.Code == "" {
			t.Errorf("%+v", l)
		}
	}
	// The fifth miss voids the nonce.
	h.set(func(s *flow.Settings) {
		s.Email.Interval, s.Email.Sent = 0, flow.Rate{N: 100, Per: time.Hour}
	})
	h.pass(10 * time.Minute)
	accepted(t, h.Reauthenticate(t.Context(), browser, h.caller(g)))
	code = h.newest("reauthenticate", "mia@example.org").Code
	for range 5 {
		refused(t, must.ErrOf(h.update(g, flow.UserUpdate{Password: ptr("a third"), Nonce: wrong(code),
			Email: "newer@example.org"})), "reauthentication_not_valid: Nonce has expired or is invalid")
	}
	_, err := h.update(g, flow.UserUpdate{Password: ptr("a third"), Nonce: code, Email: "newer@example.org"})
	refused(t, err, "reauthentication_not_valid: Nonce has expired or is invalid")
}

func TestReauthenticate(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Passwords.RequireNonce, s.Email.Interval = true, time.Minute })
	g := h.confirmed("mia@example.org")
	ask := func(g flow.Grant) error { return h.Reauthenticate(t.Context(), browser, h.caller(g)) }
	accepted(t, ask(g))
	refused(t, ask(g), "over_email_send_rate_limit: For security purposes, you can only request this after 60 seconds.")
	l := h.newest("reauthenticate", "mia@example.org")
	if l.Link != "" || l.Hash != "" || !digitsOnly.MatchString(l.Code) {
		t.Errorf("%+v", l)
	}
	f := func(pass, nonce, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.update(g, flow.UserUpdate{Password: &pass, Nonce: nonce})), want)
	}
	const bad = "reauthentication_not_valid: Nonce has expired or is invalid"
	f("another", wrong(l.Code), bad)
	// A refused update does not use the nonce up.
	f("sesame", l.Code, "same_password: New password should be different from the old password.")
	f("another", l.Code, "")
	f("a third one", l.Code, bad)
	h.pass(time.Minute)
	accepted(t, ask(g))
	l = h.newest("reauthenticate", "mia@example.org")
	for range 5 {
		f("a third one", wrong(l.Code), bad)
	}
	f("a third one", l.Code, bad)
	// Young sessions may be exempt.
	h.set(func(s *flow.Settings) { s.Passwords.NonceMaxAge = time.Hour })
	f("a third one", "", "")
	h.pass(time.Hour)
	g, _ = h.refresh(g.RefreshToken)
	f("the fourth", "", "reauthentication_needed: Password update requires reauthentication")

	anonymous, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	refused(t, ask(anonymous),
		"validation_failed: Reauthentication requires the user to have an email or a phone number")
	c := h.caller(g)
	c.User.EmailConfirmedAt = time.Time{}
	refused(t, h.Reauthenticate(t.Context(), browser, c), "email_not_confirmed: Please verify your email first.")
	c.User.Email, c.User.Phone = "", "491511"
	refused(t, h.Reauthenticate(t.Context(), browser, c), "phone_not_confirmed: Please verify your phone first.")
	h.create(flow.Attributes{Phone: ptr("491511"), Password: ptr("sesame"), PhoneConfirm: ptr(true)})
	p, err := h.SignInPassword(t.Context(), browser, account.Password{Phone: "491511", Password: "sesame"})
	accepted(t, err)
	accepted(t, ask(p))
	accepted(t, must.ErrOf(h.update(p,
		flow.UserUpdate{Password: ptr("another"), Nonce: h.newest("reauthentication", "491511").Code})))
}

func TestEmailChange(t *testing.T) {
	t.Parallel()
	f := func(order []string, secure bool, pkce flow.Challenge) {
		t.Helper()
		h := open(t, func(s *flow.Settings) { s.Email.SecureChange, s.Email.Notify.EmailChanged = secure, true })
		g := h.confirmed("mia@example.org")
		other := h.again("mia@example.org")
		u, err := h.update(g, flow.UserUpdate{Email: "New@Example.org", Challenge: pkce})
		if err != nil || u.Email != "mia@example.org" || u.NewEmail != "new@example.org" ||
			u.EmailChangeSentAt != h.now {
			t.Fatalf("%+v, %v", u, err)
		}
		for i, to := range order {
			l := h.newest("email_change", to)
			if l.Vars.Email != "mia@example.org" || l.Vars.NewEmail != "new@example.org" || l.Vars.SendingTo != to {
				t.Errorf("%+v", l.Vars)
			}
			p := flow.Verify{Type: "email_change", TokenHash: l.Hash, Link: true}
			if pkce.Challenge == "" && i == 0 {
				p = flow.Verify{Type: "email_change", Token: l.Code, Email: to}
			}
			v, err := h.verify(p)
			if err != nil || v.Type != "email_change" {
				t.Fatalf("%+v, %v", v, err)
			}
			if i < len(order)-1 {
				if !v.Half || v.Grant != nil || v.Code != "" {
					t.Errorf("first half: %+v", v)
				}
				_, err := h.verify(p) // the same mailbox once more proves nothing
				if err == nil {
					t.Error("the same token twice")
				}
				continue
			}
			if pkce.Challenge != "" {
				g, err := h.exchange(v.Code, verifier)
				must.Succeed(t, err)
				v.Grant = &g
			}
			u := v.Grant.User
			if v.Half || u.Email != "new@example.org" || u.NewEmail != "" || u.CurrentEmailProven ||
				u.NewEmailProven || len(u.Identities) != 1 || u.Identities[0].Email != "new@example.org" {
				t.Errorf("%+v", v)
			}
		}
		refused(t, must.ErrOf(h.refresh(other.RefreshToken)), notFound)
		if m := h.newest("email_changed_notification", "mia@example.org"); m.Vars.OldEmail != "mia@example.org" ||
			m.Vars.Email != "new@example.org" {
			t.Errorf("%+v", m)
		}
		accepted(t, h.signIn("new@example.org", "sesame"))
	}
	none := flow.Challenge{}
	f([]string{"mia@example.org", "new@example.org"}, true, none)
	f([]string{"new@example.org", "mia@example.org"}, true, none)
	f([]string{"new@example.org", "mia@example.org"}, true, s256(verifier))
	f([]string{"new@example.org"}, false, none)
	f([]string{"new@example.org"}, false, s256(verifier))
}

func TestEmailChange_rules(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	change := func(to string) (current, next message) {
		t.Helper()
		h.pass(2 * time.Minute)
		accepted(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: to})))
		return h.newest("email_change", "mia@example.org"), h.newest("email_change", to)
	}
	redeem := func(l message) (flow.Verified, error) {
		return h.verify(flow.Verify{Type: "email_change", TokenHash: l.Hash})
	}
	// A second request starts over.
	current, _ := change("one@example.org")
	v, err := redeem(current)
	if err != nil || !v.Half {
		t.Fatal(v, err)
	}
	_, next := change("two@example.org")
	// Sent again, by either address, with tokens of their own.
	h.pass(time.Second)
	accepted(t, must.ErrOf(h.Resend(t.Context(), browser, flow.Resend{Type: "email_change", Email: "two@example.org"})))
	refused(t, must.ErrOf(redeem(next)), linkExpired)
	v, err = redeem(h.newest("email_change", "two@example.org"))
	if err != nil || !v.Half {
		t.Fatal(v, err)
	}
	h.pass(time.Second)
	accepted(t, must.ErrOf(h.Resend(t.Context(), browser, flow.Resend{Type: "email_change", Email: "mia@example.org"})))
	// Another user takes the address meanwhile.
	h.create(flow.Attributes{Email: ptr("two@example.org"), EmailConfirm: ptr(true)})
	_, err = redeem(h.newest("email_change", "mia@example.org"))
	refused(t, err, "email_exists: A user with this email address has already been registered")

	// Under autoconfirm only the new address counts, and the old one alone never does.
	current, _ = change("three@example.org")
	h.set(func(s *flow.Settings) { s.Email.Autoconfirm = true })
	v, err = redeem(current)
	if err != nil || !v.Half {
		t.Fatal(v, err)
	}
	before := len(h.messages())
	_, next = change("four@example.org")
	if n := len(h.messages()) - before; n != 1 {
		t.Errorf("%d messages", n)
	}
	v, err = redeem(next)
	if err != nil || v.Grant == nil || v.Grant.User.Email != "four@example.org" {
		t.Fatal(v, err)
	}
}

// Many proofs at once, of both sides: one change.
func TestEmailChange_parallel(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	accepted(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "new@example.org"})))
	messages := []message{h.newest("email_change", "mia@example.org"), h.newest("email_change", "new@example.org")}
	var mu sync.Mutex
	halves, wholes := 0, 0
	await.Together(40, func(i int) {
		v, err := h.verify(flow.Verify{Type: "email_change", TokenHash: messages[i%2].Hash})
		if err != nil {
			refused(t, err, linkExpired)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if v.Half {
			halves++
		} else {
			wholes++
		}
	})
	if u := h.user(g.User.ID); halves != 1 || wholes != 1 || u.Email != "new@example.org" {
		t.Errorf("%d halves, %d wholes, %s", halves, wholes, u.Email)
	}
}

func TestAnonymous_becomesPermanent(t *testing.T) {
	t.Parallel()
	f := func(p flow.UserUpdate, change func(*flow.Settings), prove func(*house)) {
		t.Helper()
		h := open(t, change)
		g, err := h.SignUpAnonymous(t.Context(), browser, nil)
		accepted(t, err)
		accepted(t, must.ErrOf(h.update(g, p)))
		prove(h)
		u := h.user(g.User.ID)
		if u.IsAnonymous || len(u.Identities) != 1 ||
			!strings.Contains(string(u.AppMetadata), u.Identities[0].Provider) ||
			u.NewEmail+u.NewPhone != "" {
			t.Errorf("%+v", u)
		}
		by, meta := u.Identities[0].Provider, metadata(t, u.UserMetadata)
		if meta[by] != u.Email+u.Phone || meta[by+"_verified"] != true {
			t.Errorf("metadata %v of a user with the %s %s", meta, by, u.Email+u.Phone)
		}
		h.pass(time.Minute)
		g, err = h.refresh(g.RefreshToken) // the caller's session stays
		if err != nil || h.caller(g).Claims.IsAnonymous {
			t.Errorf("%+v, %v", g, err)
		}
		if p.Password != nil {
			accepted(t, h.signIn(p.Email, *p.Password))
		}
	}
	email := flow.UserUpdate{Email: "mia@example.org", Password: ptr("sesame")}
	f(email, func(*flow.Settings) {},
		func(h *house) { h.redeem("email_change", h.newest("email_change", "mia@example.org").Hash) })
	f(email, func(s *flow.Settings) { s.Email.Autoconfirm, s.Email.Configured = true, false }, func(*house) {})
	phone := flow.UserUpdate{Phone: "491511"}
	f(phone, func(*flow.Settings) {}, func(h *house) {
		refused(h.t, must.ErrOf(h.verify(flow.Verify{Type: "phone_change", Phone: "491511",
			Token: h.newest("phone_change", "491511").Code})), "")
	})
	f(phone, func(s *flow.Settings) { s.Phone.Autoconfirm, s.Phone.Configured = true, false }, func(*house) {})
}

// Under autoconfirm only the first address is set at once, also when two requests of an anonymous user cross.
func TestAnonymous_twoAddressesAtOnce(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Email.Autoconfirm = true })
	g, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	caller := h.caller(g) // of both
	for click := range 2 {
		u, err := h.UpdateUser(t.Context(), browser, caller, flow.UserUpdate{Email: "mia@example.org"})
		if accepted(t, err); u.Email != "mia@example.org" || u.NewEmail != "" || u.EmailUnproven != (click == 0) {
			t.Errorf("%+v", u)
		}
		h.exec("update users set email_unproven = false where id = $1", u.ID) // proven between both
	}
	second := flow.UserUpdate{Email: "another@example.org"}
	if _, err = h.UpdateUser(t.Context(), browser, caller, second); kindOf(err) != refusal.KindUnavailable ||
		strings.Contains(err.Error(), "password") {
		t.Errorf("the second: %v", err)
	}
	if u, err := h.update(g, second); err != nil || u.Email != "mia@example.org" || u.NewEmail != "another@example.org" {
		t.Errorf("again: %+v, %v", u, err)
	}
}

// The pause between two changes of address holds for a user, whatever the new addresses are.
func TestUpdateUser_pause(t *testing.T) {
	t.Parallel()
	h := open(t)
	confirmed := h.confirmed("mia@example.org")
	h.set(func(s *flow.Settings) { s.Email.Interval, s.Phone.Interval = time.Minute, time.Minute })
	anonymous, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	const wait = "_send_rate_limit: For security purposes, you can only request this after 60 seconds."
	for i, g := range []flow.Grant{confirmed, anonymous} {
		for what, change := range map[string]func(n int) flow.UserUpdate{
			"email": func(n int) flow.UserUpdate { return flow.UserUpdate{Email: fmt.Sprintf("%d.%d@example.org", i, n)} },
			"sms":   func(n int) flow.UserUpdate { return flow.UserUpdate{Phone: fmt.Sprintf("4915%d%d", i, n)} },
		} {
			accepted(t, must.ErrOf(h.update(g, change(1))))
			refused(t, must.ErrOf(h.update(g, change(2))), "over_"+what+wait)
			h.pass(time.Minute)
			accepted(t, must.ErrOf(h.update(g, change(2))))
		}
	}
}

func TestPhoneChange(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) {
		s.Email.Notify.PhoneChanged, s.Email.Notify.IdentityLinked, s.Phone.Interval = true, true, time.Minute
	})
	g := h.confirmed("mia@example.org")
	change := func(to string) flow.Verified {
		t.Helper()
		u, err := h.update(g, flow.UserUpdate{Phone: "+" + to})
		if err != nil || u.NewPhone != to || u.PhoneChangeSentAt != h.now {
			t.Fatalf("%+v, %v", u, err)
		}
		_, err = h.update(g, flow.UserUpdate{Phone: to})
		refused(t, err, "over_sms_send_rate_limit: For security purposes, you can only request this after 60 seconds.")
		h.pass(time.Minute)
		accepted(t, must.ErrOf(h.Resend(t.Context(), browser, flow.Resend{Type: "phone_change", Phone: to})))
		l := h.newest("phone_change", to)
		v, err := h.verify(flow.Verify{Type: "phone_change", Phone: to, Token: l.Code})
		if err != nil || v.Type != "phone_change" || v.User.Phone != to || v.User.NewPhone != "" ||
			v.User.PhoneConfirmedAt.IsZero() || len(v.User.Identities) != 2 {
			t.Fatalf("%+v, %v", v, err)
		}
		return v
	}
	change("491511")
	if m := h.newest("identity_linked_notification", "mia@example.org"); m.Vars.Provider != "phone" {
		t.Errorf("%+v", m)
	}
	v := change("491512")
	if m := h.newest("phone_changed_notification", "mia@example.org"); m.Vars.Phone != "491512" ||
		m.Vars.OldPhone != "491511" || m.Kind != string(mail.PhoneChanged) {
		t.Errorf("%+v", m)
	}
	if !strings.Contains(string(v.User.AppMetadata), `["email", "phone"]`) {
		t.Errorf("%s", v.User.AppMetadata)
	}
}

package account_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

func TestSendOTP_refusals(t *testing.T) {
	t.Parallel()
	h := open(t)
	f := func(p flow.OTP, kind refusal.Kind, want string, change ...func(*flow.Settings)) {
		t.Helper()
		defer h.under(change...)()
		refusedAs(t, h.SendOTP(t.Context(), browser, p), kind, want)
	}
	mail := flow.OTP{Email: "a@b", CreateUser: true}
	f(flow.OTP{Email: "a@b", Phone: "12"}, refusal.KindInvalid,
		"validation_failed: Only an email address or phone number should be provided")
	f(flow.OTP{Email: "a@b", Channel: "sms"}, refusal.KindInvalid,
		"validation_failed: Channel should only be specified with Phone OTP")
	f(flow.OTP{Email: "a@b", Challenge: flow.Challenge{Method: "s256"}}, refusal.KindInvalid,
		"validation_failed: PKCE flow requires code_challenge_method and code_challenge")
	f(flow.OTP{}, refusal.KindInvalid, "validation_failed: One of email or phone must be set")
	f(flow.OTP{Email: "a"}, refusal.KindInvalid, "validation_failed: Unable to validate email address: invalid format")
	f(flow.OTP{Email: "a@b"}, refusal.KindUnprocessable, "otp_disabled: Signups not allowed for otp")
	f(flow.OTP{Phone: "12"}, refusal.KindUnprocessable, "otp_disabled: Signups not allowed for otp")
	f(flow.OTP{Email: "a@b"}, 0, "", func(s *flow.Settings) { s.HideUnknownOnOTP = true })
	f(mail, refusal.KindUnprocessable, "signup_disabled: Signups not allowed for this instance",
		func(s *flow.Settings) { s.DisableSignup = true })
	f(mail, refusal.KindUnprocessable, "email_provider_disabled: Email logins are disabled",
		func(s *flow.Settings) { s.Email.Enabled = false })
	f(mail, refusal.KindUnprocessable, "email_provider_disabled: Login with magic link is disabled",
		func(s *flow.Settings) { s.Email.MagicLink = false })
	f(mail, refusal.KindFailed, "unexpected_failure: Error sending magic link email",
		func(s *flow.Settings) { s.Email.Configured = false })
	f(flow.OTP{Phone: "12"}, refusal.KindInvalid, "phone_provider_disabled: Unsupported phone provider",
		func(s *flow.Settings) { s.Phone.Enabled = false })
	f(flow.OTP{Phone: "0"}, refusal.KindInvalid, "validation_failed: Invalid phone number format (E.164 required)")
	f(flow.OTP{Phone: "12", Channel: "whatsapp"}, refusal.KindInvalid,
		"validation_failed: Invalid channel, supported values are 'sms' or 'whatsapp'. 'whatsapp' is only supported "+
			"if Twilio or Twilio Verify is used as the provider.")
	f(flow.OTP{Phone: "12", CreateUser: true}, refusal.KindLimited, "over_sms_send_rate_limit: SMS rate limit exceeded",
		func(s *flow.Settings) { s.Phone.Sent.N = 0 })
	refused(t, h.MagicLink(t.Context(), browser, flow.MagicLink{}),
		"validation_failed: Password recovery requires an email")
	if h.trail() != "" || len(h.messages()) != 0 {
		t.Errorf("refusals left %s", h.trail())
	}
}

func TestSendOTP(t *testing.T) {
	t.Parallel()
	h := open(t)
	mia := h.confirmed("mia@example.org").User
	send := func(p flow.OTP) {
		t.Helper()
		h.pass(time.Second)
		accepted(t, h.SendOTP(t.Context(), browser, p))
	}
	send(flow.OTP{Email: "MIA@example.org"})
	if u := h.redeem("magiclink", h.newest("magic_link", "mia@example.org").Hash).User; u.ID != mia.ID ||
		u.RecoverySentAt.IsZero() {
		t.Errorf("%+v", u)
	}
	// A new address becomes an account, without password, by a confirmation.
	send(flow.OTP{Email: "new@example.org", CreateUser: true, Data: []byte(`{"nick":"x"}`)})
	u := h.redeem("signup", h.newest("confirmation", "new@example.org").Hash).User
	if u.PasswordHash != "" || !strings.Contains(string(u.UserMetadata), `"nick": "x"`) {
		t.Errorf("%+v", u)
	}
	// So does an unconfirmed user, although sign-ups are closed.
	h.signUp("tom@example.org", "sesame", `{}`)
	h.set(func(s *flow.Settings) { s.DisableSignup = true })
	send(flow.OTP{Email: "tom@example.org"})
	h.redeem("email", h.newest("confirmation", "tom@example.org").Hash)
	h.set(func(s *flow.Settings) { s.DisableSignup, s.Email.Autoconfirm = false, true })
	send(flow.OTP{Email: "auto@example.org", CreateUser: true})
	l := h.newest("magic_link", "auto@example.org")
	if g := h.redeem("magiclink", l.Hash); g.User.EmailConfirmedAt.IsZero() || len(g.User.Identities) != 1 {
		t.Errorf("%+v", g.User)
	}
	if list, err := h.UserSessions(t.Context(), u.ID); len(list) != 1 || err != nil {
		t.Errorf("%d sessions of one sign-in", len(list))
	}
	send(flow.OTP{Phone: "491511", CreateUser: true})
	accepted(t, must.ErrOf(h.verify(flow.Verify{Type: "sms", Phone: "491511", Token: h.newest("signup", "491511").Code})))
	h.set(func(s *flow.Settings) { s.Phone.Autoconfirm = true })
	send(flow.OTP{Phone: "491512", CreateUser: true})
	accepted(t, must.ErrOf(h.verify(flow.Verify{Type: "sms", Phone: "491512", Token: h.newest("sms", "491512").Code})))
	accepted(t, must.ErrOf(h.SignUp(t.Context(), browser, flow.SignUp{Phone: "491513", Password: "sesame"})))
	rows, _, err := h.AuditLog(t.Context(), store.AuditFilter{Limit: 100})
	accepted(t, err)
	var channels []string // of requests that named none
	for _, r := range rows {
		if strings.Contains(string(r.Traits), "channel") {
			channels = append(channels, fmt.Sprint(r.Action, " ", metadata(t, r.Traits)["channel"]))
		}
	}
	if got, want := strings.Join(channels, ", "),
		"user_signedup sms, user_recovery_requested sms, user_confirmation_requested sms"; got != want {
		t.Errorf("channels in the audit log: %s, want %s", got, want)
	}
	// The address of another provider's identity cannot be signed up with, and no message is sent.
	b := h.db.Batch()
	b.PutIdentity(store.Identity{ID: uuid.New(), UserID: mia.ID, Provider: "github", ProviderID: "7",
		Email: "mia@work.example", Data: []byte(`{}`), CreatedAt: noon, UpdatedAt: noon})
	must.Succeed(t, b.Send(t.Context()))
	n := len(h.messages())
	send(flow.OTP{Email: "mia@work.example", CreateUser: true})
	if len(h.messages()) != n {
		t.Error("a message was sent")
	}
}

// The pauses and round trips of /recover, /otp and /resend are the same for known and unknown addresses.
func TestUnknown_Statements(t *testing.T) {
	db, trips := storetest.Counting(t)
	h := openOn(t, db, func(s *flow.Settings) { s.Email.Interval, s.HideUnknownOnOTP = time.Minute, true })
	h.confirmed("mia@example.org")
	h.pass(time.Hour)
	const wait = "over_email_send_rate_limit: For security purposes, you can only request this after 60 seconds."
	f := func(name string, call func(email string) error, emails ...string) {
		t.Helper()
		for _, email := range emails { // so that all is prepared
			accepted(t, call(email))
		}
		h.pass(time.Hour)
		for _, email := range emails {
			if n := trips.During(func() { accepted(t, call(email)) }); n != 2 {
				t.Errorf("%s for %s takes %d round trips, want 2", name, email, n)
			}
			if n := trips.During(func() { refused(t, call(email), wait) }); n != 1 {
				t.Errorf("%s for %s takes %d round trips to be refused, want 1", name, email, n)
			}
		}
	}
	f("recover", func(email string) error { return h.Recover(t.Context(), browser, flow.Recover{Email: email}) },
		"mia@example.org", "nobody@example.org")
	h.pass(time.Hour)
	f("otp", func(email string) error { return h.SendOTP(t.Context(), browser, flow.OTP{Email: email}) },
		"mia@example.org", "nobody@example.org")
	h.pass(time.Hour)
	h.set(func(s *flow.Settings) { s.Email.ConfirmationInterval = time.Minute })
	h.signUp("tom@example.org", "sesame", "{}")
	h.pass(time.Hour)
	for _, typ := range []string{"signup", "email_change"} {
		f("resend "+typ, func(email string) error {
			id, err := h.Resend(t.Context(), browser, flow.Resend{Type: typ, Email: email})
			if err == nil && id == uuid.Nil {
				t.Errorf("no message id for %s", email)
			}
			return err
		}, "tom@example.org", "mia@example.org", "nobody@example.org")
		h.pass(time.Hour)
	}
}

func TestRecover(t *testing.T) {
	t.Parallel()
	h := open(t)
	f := func(p flow.Recover, want string, change ...func(*flow.Settings)) {
		t.Helper()
		defer h.under(change...)()
		refused(t, h.Recover(t.Context(), browser, p), want)
	}
	f(flow.Recover{}, "validation_failed: Password recovery requires an email")
	f(flow.Recover{Email: "a"}, "validation_failed: Unable to validate email address: invalid format")
	f(flow.Recover{Email: "a@b", Challenge: flow.Challenge{Method: "plain"}},
		"validation_failed: PKCE flow requires code_challenge_method and code_challenge")
	f(flow.Recover{Email: "a@b"}, "email_provider_disabled: Email logins are disabled",
		func(s *flow.Settings) { s.Email.Enabled = false })
	f(flow.Recover{Email: "a@b"}, "unexpected_failure: Error sending recovery email",
		func(s *flow.Settings) { s.Email.Configured = false })
	f(flow.Recover{Email: "a@b"}, "")
	if len(h.messages()) != 0 || h.trail() != "" {
		t.Error("something was written for nobody")
	}
	mia := h.confirmed("mia@example.org")
	f(flow.Recover{Email: "mia@example.org"}, "")
	older := h.newest("recovery", "mia@example.org")
	h.pass(time.Second)
	f(flow.Recover{Email: "mia@example.org"}, "")
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "recovery", TokenHash: older.Hash})), linkExpired)
	if g := h.redeem("recovery", h.newest("recovery", "mia@example.org").Hash); g.User.ID != mia.User.ID ||
		g.Type != "recovery" {
		t.Errorf("%+v", g)
	}
}

func TestResend(t *testing.T) {
	t.Parallel()
	h := open(t)
	f := func(p flow.Resend, want string, change ...func(*flow.Settings)) {
		t.Helper()
		defer h.under(change...)()
		refused(t, must.ErrOf(h.Resend(t.Context(), browser, p)), want)
	}
	const types = "validation_failed: Missing one of these types: signup, email_change, sms, phone_change"
	f(flow.Resend{}, types)
	f(flow.Resend{Type: "recovery", Email: "a@b"}, types)
	f(flow.Resend{Type: "signup", Challenge: flow.Challenge{Method: "s256"}},
		"validation_failed: PKCE flow requires code_challenge_method and code_challenge")
	f(flow.Resend{Type: "signup", Phone: "12"}, "validation_failed: Type provided requires an email address")
	f(flow.Resend{Type: "sms", Email: "a@b"}, "validation_failed: Type provided requires a phone number")
	f(flow.Resend{Type: "signup", Email: "a@b", Phone: "12"},
		"validation_failed: Only an email address or phone number should be provided.")
	f(flow.Resend{Type: "email_change"}, "validation_failed: Missing email address or phone number")
	f(flow.Resend{Type: "email_change", Phone: "12"}, "validation_failed: Missing email address or phone number")
	f(flow.Resend{Type: "signup", Email: "a@b"}, "email_provider_disabled: Email logins are disabled",
		func(s *flow.Settings) { s.Email.Enabled = false })
	f(flow.Resend{Type: "sms", Phone: "12"}, "phone_provider_disabled: Phone logins are disabled",
		func(s *flow.Settings) { s.Phone.Enabled = false })
	f(flow.Resend{Type: "signup", Email: "a"}, "validation_failed: Unable to validate email address: invalid format")
	f(flow.Resend{Type: "sms", Phone: "0"}, "validation_failed: Invalid phone number format (E.164 required)")
	f(flow.Resend{Type: "signup", Email: "nobody@example.org"}, "")
	h.confirmed("mia@example.org")
	before := len(h.messages())
	f(flow.Resend{Type: "signup", Email: "mia@example.org"}, "")
	f(flow.Resend{Type: "email_change", Email: "mia@example.org"}, "")
	if len(h.messages()) != before {
		t.Error("a message was sent although nothing waits")
	}
	// A pending sign-up is renewed with its password, data and PKCE flow.
	_, err := h.SignUp(t.Context(), browser, flow.SignUp{Email: "tom@example.org", Password: "sesame",
		Data: []byte(`{"nick":"x"}`), Challenge: s256(verifier)})
	accepted(t, err)
	h.pass(2 * time.Minute)
	id, err := h.Resend(t.Context(), browser, flow.Resend{Type: "signup", Email: "tom@example.org"})
	accepted(t, err)
	l := h.newest("confirmation", "tom@example.org")
	list, err := h.db.Messages(t.Context(), store.MessageFilter{Limit: 1}, time.Now())
	if err != nil || list[0].ID != id {
		t.Errorf("message %v, want %v, %v", list[0].ID, id, err)
	}
	v, err := h.follow("signup", l)
	if err != nil || v.Code == "" {
		t.Fatalf("%+v, %v", v, err)
	}
	g, err := h.exchange(v.Code, verifier)
	if err != nil || !strings.Contains(string(g.User.UserMetadata), `"nick": "x"`) {
		t.Errorf("%+v, %v", g, err)
	}
	accepted(t, h.signIn("tom@example.org", "sesame"))
	accepted(t, must.ErrOf(h.SignUp(t.Context(), browser, flow.SignUp{Phone: "491511", Password: "sesame"})))
	h.pass(time.Second)
	f(flow.Resend{Type: "sms", Phone: "+491511", Challenge: flow.Challenge{Challenge: "x", Method: "y"}}, "")
	accepted(t, must.ErrOf(h.verify(flow.Verify{Type: "sms", Phone: "491511", Token: h.newest("signup", "491511").Code})))
	accepted(t, must.ErrOf(h.SignInPassword(t.Context(), browser, account.Password{Phone: "491511", Password: "sesame"})))
}

// The cap of a block of numbers, those that differ in their last four digits, is one for all replicas. Test
// numbers cost nothing of it.
func TestSendOTP_capOfPrefix(t *testing.T) {
	cap := func(s *flow.Settings) {
		s.Phone.PerPrefix = flow.Rate{N: 4, Per: time.Hour}
		s.Phone.TestCodes = map[string]string{"4915100009999": "123456"}
	}
	h := open(t, cap)
	replicas := []*house{h, openOn(t, h.db, cap)}
	send := func(i int, number string) error {
		return replicas[i%2].SendOTP(t.Context(), browser, flow.OTP{Phone: number, CreateUser: true})
	}
	for i := range 6 {
		must.Succeed(t, send(i, "4915100009999"))
	}
	for i := range 4 {
		must.Succeed(t, send(i, fmt.Sprintf("491510000%04d", i)))
	}
	for i := range 2 {
		refused(t, send(i, fmt.Sprintf("491510000%04d", 10+i)), "over_sms_send_rate_limit: SMS rate limit exceeded")
	}
	if err := send(0, "4915100010000"); err != nil { // the next block
		t.Error(err)
	}
	if n := len(h.messages()); n != 5 {
		t.Errorf("%d SMS", n)
	}
}

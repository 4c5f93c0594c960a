package account_test

import (
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/shared/must"
)

func (h *house) generate(p flow.LinkRequest) (flow.Link, error) {
	return h.GenerateLink(h.t.Context(), browser, service, p)
}

func TestGenerateLink_refusals(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	h.confirmed("tom@example.org")
	f := func(p flow.LinkRequest, kind refusal.Kind, want string) {
		t.Helper()
		refusedAs(t, must.ErrOf(h.generate(p)), kind, want)
	}
	const exists = "email_exists: A user with this email address has already been registered"
	f(flow.LinkRequest{Type: "signup", Email: "a"}, refusal.KindInvalid,
		"validation_failed: Unable to validate email address: invalid format")
	for _, typ := range []string{"recovery", "email_change_current", "email_change_new"} {
		f(flow.LinkRequest{Type: typ, Email: "new@example.org"}, refusal.KindMissing,
			"user_not_found: User with this email not found")
	}
	f(flow.LinkRequest{Type: "signup", Email: "new@example.org"}, refusal.KindInvalid,
		"validation_failed: Signup requires a valid password")
	f(flow.LinkRequest{Type: "signup", Email: "new@example.org", Password: "short"}, refusal.KindUnprocessable,
		"weak_password: Password should be at least 6 characters.")
	f(flow.LinkRequest{Type: "x", Email: "mia@example.org"}, refusal.KindInvalid,
		"validation_failed: Invalid email action link type requested: x")
	f(flow.LinkRequest{Type: "x", Email: "new@example.org"}, refusal.KindInvalid,
		"validation_failed: Invalid email action link type requested: x")
	f(flow.LinkRequest{Type: "signup", Email: "mia@example.org", Password: "sesame"}, refusal.KindUnprocessable, exists)
	f(flow.LinkRequest{Type: "invite", Email: "mia@example.org"}, refusal.KindUnprocessable, exists)
	f(flow.LinkRequest{Type: "email_change_new", Email: "mia@example.org"}, refusal.KindInvalid,
		"validation_failed: An email address is required")
	f(flow.LinkRequest{Type: "email_change_new", Email: "mia@example.org", NewEmail: "tom@example.org"},
		refusal.KindUnprocessable, exists)
	h.set(func(s *flow.Settings) { s.Email.SecureChange = false })
	f(flow.LinkRequest{Type: "email_change_current", Email: "mia@example.org", NewEmail: "x@example.org"},
		refusal.KindInvalid, "validation_failed: Enable secure email change to generate link for current email")
}

func TestGenerateLink(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) {
		s.DisableSignup, s.Email.Sent.N, s.Email.Configured = true, 0, false
		s.Email.Interval, s.Email.ConfirmationInterval = time.Minute, time.Minute
	})
	ok := func(p flow.LinkRequest, typ string) flow.Link {
		t.Helper()
		h.pass(time.Second)
		l, err := h.generate(p)
		if err != nil || l.VerificationType != typ || !digitsOnly.MatchString(l.EmailOTP) ||
			l.RedirectTo != browser.RedirectTo || l.User.Email != p.Email || len(l.User.Identities) != 1 ||
			!strings.HasPrefix(l.ActionLink, "https://auth.example.org/verify?token="+l.HashedToken+"&type=") {
			t.Fatalf("%+v, %v", l, err)
		}
		return l
	}
	type req = flow.LinkRequest
	l := ok(req{Type: "signup", Email: "mia@example.org", Password: "sesame", Data: []byte(`{"nick":"x"}`)}, "signup")
	shows := func(want string) {
		t.Helper()
		if m := string(l.User.UserMetadata); m != want {
			t.Errorf("the answer's user_metadata is %s, want %s", m, want)
		}
	}
	if l.User.ConfirmationSentAt != h.now {
		t.Errorf("%+v", l.User)
	}
	shows(`{"nick":"x"}`)
	// For an unconfirmed user the data is merged, and the password is that of the link that is used: the earlier
	// sign-up may have been by another person.
	l = ok(req{Type: "signup", Email: "mia@example.org", Password: "another", Data: []byte(`{"a":1}`)}, "signup")
	shows(`{"a":1,"nick":"x"}`)
	g := h.redeem("signup", l.HashedToken)
	if m := string(g.User.UserMetadata); !strings.Contains(m, `"nick": "x"`) || !strings.Contains(m, `"a": 1`) {
		t.Error(m)
	}
	accepted(t, h.signIn("mia@example.org", "another"))
	refused(t, h.signIn("mia@example.org", "sesame"), "invalid_credentials: Invalid login credentials")

	// Without a password the link renews the sign-up that waits.
	ok(req{Type: "signup", Email: "eve@example.org", Password: "sesame"}, "signup")
	h.redeem("signup", ok(req{Type: "signup", Email: "eve@example.org"}, "signup").HashedToken)
	accepted(t, h.signIn("eve@example.org", "sesame"))

	l = ok(req{Type: "invite", Email: "ann@example.org", Data: []byte(`{"nick":"y"}`)}, "invite")
	if l.User.InvitedAt != h.now {
		t.Errorf("%+v", l.User)
	}
	h.set(func(s *flow.Settings) { s.DisableSignup, s.Email.Configured = false, true })
	_, err := h.SignUp(t.Context(), browser, flow.SignUp{Email: "ann@example.org", Password: "sesame"})
	refused(t, err, "over_email_send_rate_limit: For security purposes, you can only request this after 60 seconds.")
	h.redeem("invite", l.HashedToken)
	l = ok(req{Type: "magiclink", Email: "tom@example.org"}, "signup")
	h.redeem("signup", l.HashedToken)
	l = ok(req{Type: "magiclink", Email: "mia@example.org"}, "magiclink")
	accepted(t, must.ErrOf(h.verify(flow.Verify{Type: "magiclink", Token: l.EmailOTP, Email: "mia@example.org"})))
	l = ok(req{Type: "recovery", Email: "mia@example.org"}, "recovery")
	h.redeem("recovery", l.HashedToken)
	// The user's own next request meets the pause.
	if err := h.Recover(
		t.Context(), browser, flow.Recover{Email: "mia@example.org"}); kindOf(err) != refusal.KindLimited ||
		!strings.Contains(err.Error(), "For security purposes") {
		t.Error(err)
	}

	// Both links of a change; hashed_token is that of the link.
	current := ok(req{Type: "email_change_current", Email: "mia@example.org", NewEmail: "new@example.org"},
		"email_change_current")
	next := ok(req{Type: "email_change_new", Email: "mia@example.org", NewEmail: "new@example.org"}, "email_change_new")
	if next.User.NewEmail != "new@example.org" || !strings.Contains(next.ActionLink, "&type=email_change&") {
		t.Errorf("%+v", next)
	}
	v, err := h.verify(flow.Verify{Type: "email_change", TokenHash: current.HashedToken})
	if err != nil || !v.Half {
		t.Fatal(v, err)
	}
	v, err = h.verify(flow.Verify{Type: "email_change", Token: next.EmailOTP, Email: "new@example.org"})
	if err != nil || v.Grant == nil || v.Grant.User.Email != "new@example.org" {
		t.Fatal(v, err)
	}
	if n := len(h.messages()); n != 0 {
		t.Errorf("%d messages", n)
	}
}

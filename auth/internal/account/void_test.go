package account_test

import (
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/shared/must"
)

// Whatever was started with a stolen session ends with a change of either address, which ends that session.
func TestAddressChange_dropsTheOther(t *testing.T) {
	h := open(t, func(s *flow.Settings) { s.Email.SecureChange = false })
	g := h.confirmed("mia@example.org")
	update := func(p flow.UserUpdate) {
		t.Helper()
		must.Succeed(t, must.ErrOf(h.update(g, p)))
	}
	prove := func(number string) {
		t.Helper()
		v, err := h.verify(flow.Verify{Type: "phone_change", Phone: number,
			Token: h.newest("phone_change", number).Code})
		must.Succeed(t, err)
		g = *v.Grant
	}
	update(flow.UserUpdate{Phone: "4915100000001"})
	prove("4915100000001")

	update(flow.UserUpdate{Phone: "4915199999999"})
	h.pass(time.Second)
	update(flow.UserUpdate{Email: "mia@example.com"})
	g = h.redeem("email_change", h.newest("email_change", "mia@example.com").Hash)
	if u := h.user(g.User.ID); u.NewPhone != "" {
		t.Errorf("after a change of e-mail address the number %q still waits", u.NewPhone)
	}
	before := len(h.messages())
	must.Succeed(t, must.ErrOf(h.Resend(
		t.Context(), browser, flow.Resend{Type: "phone_change", Phone: "4915100000001"})))
	if n := len(h.messages()) - before; n != 0 {
		t.Errorf("%d codes for the number that waited", n)
	}

	update(flow.UserUpdate{Email: "mallory@example.net"})
	h.pass(time.Second)
	update(flow.UserUpdate{Phone: "4915100000002"})
	prove("4915100000002")
	if u := h.user(g.User.ID); u.NewEmail != "" {
		t.Errorf("after a change of number the address %q still waits", u.NewEmail)
	}
	before = len(h.messages())
	must.Succeed(t, must.ErrOf(h.Resend(t.Context(), browser,
		flow.Resend{Type: "email_change", Email: "mia@example.com"})))
	if n := len(h.messages()) - before; n != 0 {
		t.Errorf("%d mails for the address that waited", n)
	}
}

// An address that is confirmed without mail drops what waited, but not what the same call asks for.
func TestAddressChange_atOnce(t *testing.T) {
	h := open(t, func(s *flow.Settings) { s.Email.SecureChange = false; s.Phone.Autoconfirm = true })
	g := h.confirmed("mia@example.org")
	must.Succeed(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "mallory@example.net"})))
	u, err := h.update(g, flow.UserUpdate{Phone: "4915100000001"})
	if err != nil || u.NewEmail != "" {
		t.Errorf("%q still waits, %v", u.NewEmail, err)
	}
	u, err = h.update(g, flow.UserUpdate{Email: "mia@example.com", Phone: "4915100000002"})
	if err != nil || u.NewEmail != "mia@example.com" || u.Phone != "4915100000002" {
		t.Errorf("%q waits and the number is %q, %v", u.NewEmail, u.Phone, err)
	}
	h.redeem("email_change", h.newest("email_change", "mia@example.com").Hash)
}

// A new password ends the pauses of the user's own address only: for arbitrary addresses it would allow mails to
// strangers without a pause.
func TestUpdateUser_strangersPause(t *testing.T) {
	h := open(t, func(s *flow.Settings) { s.Email.Interval = time.Minute })
	g := h.confirmed("eve@example.net")
	must.Succeed(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "mia@example.org"})))
	must.Succeed(t, must.ErrOf(h.update(g, flow.UserUpdate{Password: ptr("open sesame")})))
	again := "over_email_send_rate_limit: For security purposes, you can only request this after 60 seconds."
	refused(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "mia@example.org"})), again)
}

// A code that was given out and not yet exchanged is void after a new password, like every token.
func TestExchangeCode_newPassword(t *testing.T) {
	h := open(t)
	g := h.confirmed("mia@example.org")
	const verifier = "a verifier of which the challenge is made, long enough"
	code := func() string {
		t.Helper()
		h.pass(time.Second)
		must.Succeed(t, h.Recover(t.Context(), browser,
			flow.Recover{Email: "mia@example.org", Challenge: s256(verifier)}))
		v, err := h.follow("recovery", h.newest("recovery", "mia@example.org"))
		must.Succeed(t, err)
		return v.Code
	}
	first := code()
	must.Succeed(t, must.ErrOf(h.update(g, flow.UserUpdate{Password: ptr("open sesame")})))
	_, err := h.exchange(first, verifier)
	refused(t, err, "flow_state_not_found: invalid flow state, no valid flow state found")

	second := code()
	must.Succeed(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, service, g.User.ID,
		flow.Attributes{Password: ptr("sesame, open")})))
	_, err = h.exchange(second, verifier)
	refused(t, err, "flow_state_not_found: invalid flow state, no valid flow state found")
}

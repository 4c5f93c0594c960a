package account_test

import (
	"fmt"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/shared/await"
)

// All flows at once on one user: a flow that locked in another order than the rest would run into a deadlock, and be
// answered to retry.
func TestMixed_parallel(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) {
		s.Email.Interval, s.Email.ConfirmationInterval, s.Email.Sent.N = time.Microsecond, time.Microsecond, 1e6
		s.Email.Notify.PasswordChanged, s.Email.Notify.EmailChanged, s.Passwords.ChangeEndsSessions = true, true, false
		s.Passwords.TriesPerAccount = 0
	})
	g := h.confirmed("mia@example.org")
	me := h.caller(g)
	do := []func(i int) error{
		func(int) error { return h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}) },
		func(int) error { return h.SendOTP(t.Context(), browser, flow.OTP{Email: "mia@example.org"}) },
		func(i int) error {
			_, err := h.UpdateUser(t.Context(), browser, me,
				flow.UserUpdate{Email: fmt.Sprintf("new%d@example.org", i)})
			return err
		},
		func(i int) error {
			c := h.caller(g)
			_, err := h.UpdateUser(t.Context(), browser, c,
				flow.UserUpdate{Password: ptr(fmt.Sprintf("sesame %d", i))})
			return err
		},
		func(int) error {
			_, err := h.SignUp(t.Context(), browser, flow.SignUp{Email: "mia@example.org", Password: "sesame"})
			return err
		},
		func(int) error {
			_, err := h.Resend(t.Context(), browser, flow.Resend{Type: "email_change", Email: "mia@example.org"})
			return err
		},
		func(int) error { return h.signIn("mia@example.org", "sesame") },
		func(int) error { _, err := h.refresh(g.RefreshToken); return err },
		func(int) error {
			_, err := h.verify(flow.Verify{Type: "recovery", Email: "mia@example.org", Token: "000000"})
			return err
		},
		func(i int) error {
			_, err := h.AdminUpdate(t.Context(), browser, service, me.User.ID,
				flow.Attributes{Role: ptr(fmt.Sprint("role", i))})
			return err
		},
		func(int) error {
			_, err := h.GenerateLink(t.Context(), browser, service,
				flow.LinkRequest{Type: "recovery", Email: "mia@example.org"})
			return err
		},
	}
	await.Together(15*len(do), func(i int) {
		h.pass(time.Millisecond)
		err := do[i%len(do)](i)
		// A password may have changed between the reading and the writing; nothing else is to wait for.
		if k := kindOf(err); err != nil && (k == 0 || k == refusal.KindUnavailable && i%len(do) != 3) {
			t.Errorf("%d: %v", i%len(do), err)
		}
	})
}

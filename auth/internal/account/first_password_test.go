package account_test

import (
	"testing"
	"time"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/shared/must"
)

// A password that is set together with an account's first address is kept with the token, also when that is sent again,
// and takes effect only once the address is proven.
func TestUpdateUser_firstAddressAndPassword(t *testing.T) {
	t.Parallel()
	h := open(t)
	for _, c := range []struct {
		update flow.UserUpdate
		resend flow.Resend
		signIn account.Password
		prove  func() flow.Verify
	}{
		{flow.UserUpdate{Email: "mia@example.org"}, flow.Resend{Type: "email_change", Email: "mia@example.org"},
			account.Password{Email: "mia@example.org"},
			func() flow.Verify {
				return flow.Verify{Type: "email_change", TokenHash: h.newest("email_change", "mia@example.org").Hash}
			}},
		{flow.UserUpdate{Phone: "4915100000001"}, flow.Resend{Type: "phone_change", Phone: "4915100000001"},
			account.Password{Phone: "4915100000001"},
			func() flow.Verify {
				return flow.Verify{Type: "phone_change", Phone: "4915100000001",
					Token: h.newest("phone_change", "4915100000001").Code}
			}},
	} {
		for _, again := range []bool{false, true} {
			guest, err := h.SignUpAnonymous(t.Context(), browser, nil)
			accepted(t, err)
			c.update.Password, c.signIn.Password = ptr("open sesame"), "open sesame"
			out, err := h.update(guest, c.update)
			if err != nil || out.PasswordHash != "" {
				t.Fatalf("the password is the account's before the address is proven, %v", err)
			}
			if n := h.trail(); n[len(n)-len("user_modified"):] != "user_modified" {
				t.Error(n)
			}
			h.pass(time.Second)
			if again {
				accepted(t, must.ErrOf(h.Resend(t.Context(), browser, c.resend)))
			}
			v, err := h.verify(c.prove())
			accepted(t, err)
			accepted(t, must.ErrOf(h.SignInPassword(t.Context(), browser, c.signIn)))
			if v.Grant != nil {
				accepted(t, h.AdminDelete(t.Context(), browser, service, v.Grant.User.ID, false))
			}
			h.pass(time.Second)
		}
	}
	// A user with a confirmed address changes the password at once.
	mia := h.confirmed("mia@example.com")
	out, err := h.update(mia, flow.UserUpdate{Email: "mia2@example.com", Password: ptr("open sesame")})
	if err != nil || out.PasswordHash == mia.User.PasswordHash {
		t.Errorf("%v", err)
	}
}

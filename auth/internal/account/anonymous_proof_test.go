package account_test

import (
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

// An anonymous user to whom an administrator gave an address is no longer anonymous once the address is proven, by
// whatever way: factors are enrolled, and the sweep spares the account.
func TestAnonymous_givenAddressProven(t *testing.T) {
	t.Parallel()
	const email, number = "mia@example.org", "4915100000001"
	byEmail, byPhone := flow.Attributes{Email: ptr(email)}, flow.Attributes{Phone: ptr(number)}
	for name, c := range map[string]struct {
		given flow.Attributes
		prove func(t *testing.T, h *house) flow.Grant
	}{
		"otp": {byEmail, func(t *testing.T, h *house) flow.Grant {
			accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Email: email}))
			return h.redeem("email", h.newest("confirmation", email).Hash)
		}},
		"recovery": {byEmail, func(t *testing.T, h *house) flow.Grant {
			accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: email}))
			return h.redeem("recovery", h.newest("recovery", email).Hash)
		}},
		"resend": {byEmail, func(t *testing.T, h *house) flow.Grant {
			accepted(t, must.ErrOf(h.Resend(t.Context(), browser, flow.Resend{Type: "signup", Email: email})))
			return h.redeem("signup", h.newest("confirmation", email).Hash)
		}},
		"a generated link": {byEmail, func(t *testing.T, h *house) flow.Grant {
			l, err := h.generate(flow.LinkRequest{Type: "magiclink", Email: email})
			accepted(t, err)
			return h.redeem("magiclink", l.HashedToken)
		}},
		"an invitation": {byEmail, func(t *testing.T, h *house) flow.Grant {
			accepted(t, must.ErrOf(h.Invite(t.Context(), browser, service, flow.Invitation{Email: email})))
			return h.redeem("invite", h.newest("invite", email).Hash)
		}},
		"a provider": {byEmail, func(t *testing.T, h *house) flow.Grant {
			return h.enters(person("github", "17", "*"+email))
		}},
		"sms": {byPhone, func(t *testing.T, h *house) flow.Grant {
			accepted(t, h.SendOTP(t.Context(), browser, flow.OTP{Phone: number}))
			v, err := h.verify(flow.Verify{Type: "sms", Phone: number, Token: h.newest("signup", number).Code})
			accepted(t, err)
			return *v.Grant
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t)
			guest, err := h.SignUpAnonymous(t.Context(), browser, nil)
			accepted(t, err)
			h.pass(time.Second)
			u, err := h.AdminUpdate(t.Context(), browser, service, guest.User.ID, c.given)
			if err != nil || !u.IsAnonymous {
				t.Fatalf("given an address: anonymous %t, %v, want true: nobody has proven it", u.IsAnonymous, err)
			}
			h.pass(time.Second)
			g := c.prove(t, h)
			if u := h.user(g.User.ID); u.ID != guest.User.ID || u.IsAnonymous {
				t.Fatalf("got the user\n%s\nwant the guest, no longer anonymous", brief(u))
			}
			if claims := claimsOf(t, g.AccessToken); claims.Anonymous {
				t.Error("the new session's token says is_anonymous")
			}
			h.pass(60 * 24 * time.Hour)
			if _, err := h.db.Sweep(t.Context(), store.Sweep{Now: h.clock(), EndedBefore: h.clock(), Batch: 100,
				Anonymous: h.clock().Add(-30 * 24 * time.Hour)}); err != nil {
				t.Fatal(err)
			}
			h.user(guest.User.ID)
		})
	}
}

// A sign-up under autoconfirm doesn't get the account of an anonymous user to whom an administrator gave the address.
func TestAnonymous_givenAddressAutoconfirm(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Email.Autoconfirm = true })
	guest, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	accepted(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, service, guest.User.ID,
		flow.Attributes{Email: ptr("mia@example.org")})))
	_, err = h.SignUp(t.Context(), browser, flow.SignUp{Email: "mia@example.org", Password: "sesame"})
	refused(t, err, "user_already_exists: User already registered")
}

// An anonymous user from whom a proof takes the address that an administrator gave it is anonymous as before, and stays.
func TestAnonymous_givenAddressProvenByAnother(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Email.SecureChange = false })
	guest, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	_, err = h.AdminUpdate(t.Context(), browser, service, guest.User.ID, flow.Attributes{Email: ptr("mia@example.org")})
	accepted(t, err)
	owner := h.confirmed("ann@example.org")
	accepted(t, must.ErrOf(h.update(owner, flow.UserUpdate{Email: "mia@example.org"})))
	h.redeem("email_change", h.newest("email_change", "mia@example.org").Hash)
	if u := h.user(guest.User.ID); u.Email != "" || !u.IsAnonymous {
		t.Errorf("the guest is %s", brief(u))
	}
}

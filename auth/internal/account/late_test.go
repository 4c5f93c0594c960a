package account_test

import (
	"testing"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/shared/must"
)

// A session that ends between its check and the write changes nothing: otherwise a stolen session could have a code
// sent to its own number just after the new password that ends it.
func TestUpdateUser_sessionEndedMeanwhile(t *testing.T) {
	h := open(t)
	h.confirmed("mia@example.org")
	stolen := h.caller(h.again("mia@example.org"))
	late := func(want string) {
		t.Helper()
		refused(t, must.ErrOf(h.UpdateUser(t.Context(), browser, stolen, flow.UserUpdate{Phone: "4915199999999"})), want)
		if u := h.user(stolen.User.ID); u.NewPhone != "" {
			t.Errorf("%q waits", u.NewPhone)
		}
	}
	h.ban(stolen.User, "1h")
	late("user_banned: User is banned")
	h.ban(stolen.User, "none")
	must.Succeed(t, must.ErrOf(h.update(h.again("mia@example.org"), flow.UserUpdate{Password: ptr("open sesame")})))
	late("session_not_found: Session from session_id claim in JWT does not exist")
	must.Succeed(t, h.AdminDelete(t.Context(), browser, service, stolen.User.ID, true))
	late("user_not_found: User from sub claim in JWT does not exist")
}

// A button that is clicked twice: the later call compares with the password that the earlier one set.
func TestUpdateUser_passwordMeanwhile(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	g := h.again("mia@example.org")
	early, late, again := h.caller(g), h.caller(g), h.caller(g)
	f := func(c flow.Principal, p flow.UserUpdate, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.UpdateUser(t.Context(), browser, c, p)), want)
	}
	f(early, flow.UserUpdate{Password: ptr("open sesame")}, "")
	f(late, flow.UserUpdate{Password: ptr("open sesame")},
		"same_password: New password should be different from the old password.")
	f(late, flow.UserUpdate{Password: ptr("another word")}, "")
	h.set(func(s *flow.Settings) { s.Passwords.RequireCurrent = true })
	f(again, flow.UserUpdate{Password: ptr("a third word"), CurrentPassword: ptr("open sesame")},
		"current_password_invalid: Current password required when setting new password.")
	accepted(t, h.signIn("mia@example.org", "another word"))
}

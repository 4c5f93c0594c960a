package account_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
)

// What a former holder left in an account is removed; the owner of the address gets a recovery mail.
func TestAdminClaim(t *testing.T) {
	t.Parallel()
	h := open(t, linking, func(s *flow.Settings) { s.Phone.Autoconfirm = true })
	g := h.confirmed("mia@example.org")
	h.link(g, person("github", "17", "!stranger@example.net"))
	must.Succeed(t, must.ErrOf(h.update(g, flow.UserUpdate{Phone: "4915100000001"})))
	g = h.verified(g, h.app(g, ""))
	code := h.pkceArrival(person("github", "17", "!stranger@example.net"))
	accepted(t, h.MagicLink(t.Context(), browser, flow.MagicLink{Email: "mia@example.org"}))
	link := h.newest("magic_link", "mia@example.org").Hash
	h.pass(time.Second)
	must.Succeed(t, must.ErrOf(h.update(g, flow.UserUpdate{Email: "stranger@example.net"})))
	before, trail := len(h.messages()), h.trail()
	h.pass(time.Second)

	accepted(t, h.AdminClaim(t.Context(), flow.RequestInfo{}, service, g.User.ID))
	u := h.user(g.User.ID)
	if u.Email != "mia@example.org" || u.EmailConfirmedAt.IsZero() || u.PasswordHash != "" ||
		u.Phone != "" || !u.PhoneConfirmedAt.IsZero() ||
		u.NewEmail != "" || u.Factors != nil || fmt.Sprint(providers(u)) != "[email]" ||
		metadata(t, u.UserMetadata)["phone"] != nil {
		t.Error(brief(u))
	}
	if h.trail() != trail+" user_modified" {
		t.Error(h.trail()[len(trail):])
	}
	ended(t, h, g)
	refused(t, must.ErrOf(h.exchange(code, verifier)), noFlow)
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "magiclink", TokenHash: link})), linkExpired)
	refused(t, h.signIn("mia@example.org", "sesame"), "invalid_credentials: Invalid login credentials")
	if n := len(h.messages()); n >= before+1 {
		t.Errorf("%d messages wait, of %d before: what waited for the old links is still sent", n, before)
	}
	got := h.redeem("recovery", h.newest("recovery", "mia@example.org").Hash)
	must.Succeed(t, must.ErrOf(h.update(got, flow.UserUpdate{Password: ptr("open sesame")})))
	accepted(t, h.signIn("mia@example.org", "open sesame"))
}

func TestAdminClaim_refused(t *testing.T) {
	t.Parallel()
	h := open(t)
	none := "user_not_found: User not found"
	refused(t, h.AdminClaim(t.Context(), flow.RequestInfo{}, service, uuid.New()), none)
	guest, err := h.SignUpAnonymous(t.Context(), browser, nil)
	accepted(t, err)
	const unconfirmed = "email_not_confirmed: The user has no confirmed e-mail address to send the recovery to"
	refused(t, h.AdminClaim(t.Context(), flow.RequestInfo{}, service, guest.User.ID), unconfirmed)
	h.signUp("tom@example.org", "sesame", `{}`)
	list, _, err := h.AdminUsers(t.Context(), store.UsersFilter{Aud: "authenticated", Email: "tom@example.org",
		Limit: 1})
	accepted(t, err)
	refused(t, h.AdminClaim(t.Context(), flow.RequestInfo{}, service, list[0].ID), unconfirmed)
	mia := h.confirmed("mia@example.org")
	h.set(func(s *flow.Settings) { s.Email.Configured = false })
	refused(t, h.AdminClaim(t.Context(), flow.RequestInfo{}, service, mia.User.ID),
		"unexpected_failure: Error sending recovery email")
	h.caller(mia)
	h.set(func(s *flow.Settings) { s.Email.Configured = true })
	accepted(t, h.AdminDelete(t.Context(), browser, service, mia.User.ID, true))
	refused(t, h.AdminClaim(t.Context(), flow.RequestInfo{}, service, mia.User.ID), none)
}

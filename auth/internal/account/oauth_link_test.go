package account_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func linking(s *flow.Settings) { s.External.ManualLinking = true }

func (h *house) tryLink(g flow.Grant, p arrival) (flow.Grant, error) {
	h.t.Helper()
	h.pass(time.Second) // identities are sorted by age
	c := h.caller(g)
	p.LinkTo = &c
	return h.arrive(p)
}

// link links an identity, and must succeed.
func (h *house) link(g flow.Grant, p arrival) flow.Grant {
	h.t.Helper()
	out, err := h.tryLink(g, p)
	if err != nil {
		h.t.Fatalf("link %s by %s: %v", p.Subject, p.Provider, err)
	}
	return out
}

func TestLink(t *testing.T) {
	t.Parallel()
	h := open(t, linking, func(s *flow.Settings) { s.Email.Notify.IdentityLinked = true; s.DisableSignup = false })
	mia, tom := h.confirmed("mia@example.org"), h.confirmed("tom@example.org")
	before := h.user(mia.User.ID)
	h.set(func(s *flow.Settings) { s.DisableSignup = true }) // does not keep from linking
	g := h.link(mia, person("github", "17", "!else@example.org"))
	u := h.user(mia.User.ID)
	if fmt.Sprint(providers(u)) != "[email github]" || u.Email != "mia@example.org" ||
		string(u.UserMetadata) != string(before.UserMetadata) {
		t.Error(brief(u))
	}
	if g.User.ID != u.ID || g.Session == mia.Session || h.caller(g).Claims.AMR[0].Method != "oauth" {
		t.Errorf("%+v", g)
	}
	if l := h.newest("identity_linked_notification", "mia@example.org"); l.Vars.Provider != "github" {
		t.Errorf("%+v", l)
	}
	if !strings.HasSuffix(h.trail(), "identity_linked") {
		t.Error(h.trail())
	}
	_, err := h.tryLink(mia, person("github", "17", "!else@example.org"))
	refused(t, err, "identity_already_exists: Identity is already linked")
	_, err = h.tryLink(tom, person("github", "17", "!else@example.org"))
	refused(t, err, "identity_already_exists: Identity is already linked to another user")
	// The identity signs in the same user next time.
	if h.enters(person("github", "17", "!else@example.org")).User.ID != u.ID {
		t.Error("another user")
	}
}

// A linked identity's session keeps the level of the one that it was linked from.
func TestLink_keepsTheLevel(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	h := openOn(t, pool(t, url), linking)
	mia := h.confirmed("mia@example.org")
	raise(t, url, mia.Session)
	mia, err := h.Refresh(t.Context(), browser, mia.RefreshToken)
	must.Succeed(t, err)
	g := h.link(mia, person("github", "17", "!else@example.org"))
	methods := func(g flow.Grant) (list []string) {
		c := h.caller(g)
		for _, m := range c.Claims.AMR {
			list = append(list, m.Method)
		}
		return append(list, c.Claims.AAL)
	}
	if got := fmt.Sprint(methods(g)); got != "[oauth totp password aal2]" {
		t.Error(got)
	}
	p := person("gitlab", "18", "!else@example.org")
	p.Challenge = flow.Challenge{Challenge: s256(verifier).Challenge, Method: "s256"}
	c := h.caller(mia)
	p.LinkTo = &c
	out, err := h.Arrive(t.Context(), browser, p)
	accepted(t, err)
	g, err = h.exchange(out.Code, verifier)
	accepted(t, err)
	if got := fmt.Sprint(methods(g)); got != "[oauth totp password aal2]" {
		t.Error(got)
	}
	// A sign-in begins at aal1 whatever other sessions there are.
	if got := fmt.Sprint(methods(h.enters(person("github", "17", "!else@example.org")))); got != "[oauth aal1]" {
		t.Error(got)
	}
}

// raise lifts a session to aal2, as a verified factor does.
func raise(t *testing.T, url string, session uuid.UUID) {
	t.Helper()
	testdb.Exec(t, url,
		`update sessions set aal = 2, amr = '[{"method": "totp", "timestamp": 2}, {"method": "password", "timestamp": 1}]' where id = $1`, session)
}

// The caller's state at the request is checked again at the callback.
func TestLink_checkedAgain(t *testing.T) {
	t.Parallel()
	h := open(t, linking)
	by := flow.Actor{Role: "service_role"}
	f := func(email string, spoil func(g flow.Grant), want string) {
		t.Helper()
		g := h.confirmed(email)
		c := h.caller(g)
		spoil(g)
		p := person("github", email, "*"+email)
		p.LinkTo = &c
		refused(t, must.ErrOf(h.arrive(p)), want)
	}
	f("out@example.org", func(g flow.Grant) {
		accepted(t, h.SignOut(t.Context(), browser, g.AccessToken, "local", true))
	}, "session_not_found: Session from session_id claim in JWT does not exist")
	f("banned@example.org", func(g flow.Grant) {
		_, err := h.AdminUpdate(t.Context(), browser, by, g.User.ID, flow.Attributes{BanDuration: new("1h")})
		accepted(t, err)
	}, "user_banned: User is banned")
	f("soft@example.org", func(g flow.Grant) {
		accepted(t, h.AdminDelete(t.Context(), browser, by, g.User.ID, true))
	}, "user_not_found: Linking target user not found")
	f("gone@example.org", func(g flow.Grant) {
		accepted(t, h.AdminDelete(t.Context(), browser, by, g.User.ID, false))
	}, "user_not_found: Linking target user not found")
}

// An anonymous user becomes a permanent one by the provider's verified address; an unverified one waits for its mail,
// and belongs to no account until then.
func TestLink_anonymous(t *testing.T) {
	t.Parallel()
	h := open(t, linking)
	guest := func() flow.Grant {
		t.Helper()
		g, err := h.SignUpAnonymous(t.Context(), browser, nil)
		accepted(t, err)
		return g
	}
	g := guest()
	h.link(g, person("github", "17", "*mia@example.org"))
	if u := h.user(g.User.ID); u.IsAnonymous || u.Email != "mia@example.org" ||
		u.EmailConfirmedAt.IsZero() || !strings.Contains(string(u.AppMetadata), "github") {
		t.Error(brief(u))
	}
	_, err := h.tryLink(guest(), person("google", "g", "*mia@example.org"))
	refused(t, err, "email_exists: A user with this email address has already been registered")

	g = guest()
	refused(t, must.ErrOf(h.tryLink(g, person("github", "18", "!tom@example.org"))),
		"email_not_confirmed: Unverified email with github. A confirmation email has been sent to your github email")
	u := h.user(g.User.ID)
	if !u.IsAnonymous || u.Email != "" || u.NewEmail != "tom@example.org" || len(u.Identities) != 1 {
		t.Error(brief(u))
	}
	l := h.newest("email_change", "tom@example.org")
	other := h.enters(person("google", "t", "*tom@example.org")) // it does not block the address
	if other.User.ID == u.ID {
		t.Error("the guest attracted somebody")
	}
	_, err = h.verify(flow.Verify{Type: "email_change", TokenHash: l.Hash})
	refused(t, err, "email_exists: A user with this email address has already been registered")

	g = guest()
	_, err = h.tryLink(g, person("github", "19", "!ann@example.org"))
	if err == nil {
		t.Error("not asked to confirm")
	}
	h.redeem("email_change", h.newest("email_change", "ann@example.org").Hash)
	if u := h.user(g.User.ID); u.IsAnonymous || u.Email != "ann@example.org" {
		t.Error(brief(u))
	}
	// Without any address the identity is the way back.
	g = guest()
	p := person("snapchat", "20")
	p.Optional = true
	h.link(g, p)
	if u := h.user(g.User.ID); u.IsAnonymous || u.Email != "" {
		t.Error(brief(u))
	}
}

func TestLink_atOnce(t *testing.T) {
	t.Parallel()
	h := open(t, linking)
	mia, tom := h.confirmed("mia@example.org"), h.confirmed("tom@example.org")
	var linked atomic.Int32
	callers := []flow.Principal{h.caller(mia), h.caller(tom)}
	await.Together(8, func(i int) {
		p := person("github", "17", "!else@example.org")
		p.LinkTo = &callers[i%2]
		if _, err := h.Arrive(t.Context(), browser, p); err == nil {
			linked.Add(1)
		} else if !strings.HasPrefix(err.Error(), "identity_already_exists") {
			t.Error(err)
		}
	})
	if linked.Load() != 1 {
		t.Errorf("linked %d times", linked.Load())
	}
}

func (h *house) unlink(g flow.Grant, provider string) error {
	h.t.Helper()
	for _, i := range h.user(g.User.ID).Identities {
		if i.Provider == provider {
			return h.UnlinkIdentity(h.t.Context(), browser, h.caller(g), i.ID.String(), "")
		}
	}
	h.t.Fatalf("no identity of %s", provider)
	return nil
}

func TestUnlink(t *testing.T) {
	t.Parallel()
	h := open(t, linking, func(s *flow.Settings) { s.Email.Notify.IdentityUnlinked = true })
	mia, tom := h.confirmed("mia@example.org"), h.confirmed("tom@example.org")
	const single = "single_identity_not_deletable: User must have at least 1 identity after unlinking"
	refused(t, h.unlink(mia, "email"), single)
	h.link(mia, person("github", "17", "+mia@example.org"))
	drop := func(g flow.Grant, id, aud string) error {
		return h.UnlinkIdentity(t.Context(), browser, h.caller(g), id, aud)
	}
	refused(t, drop(mia, "no id", ""), "validation_failed: identity_id must be an UUID")
	refused(t, drop(mia, uuid.NewString(), "other"),
		"unexpected_audience: Token audience doesn't match request audience")
	refused(t, drop(mia, uuid.NewString(), ""), "identity_not_found: Identity doesn't exist")
	h.link(tom, person("github", "18", "+tom@example.org"))
	refused(t, drop(mia, h.user(tom.User.ID).Identities[1].ID.String(), ""),
		"identity_not_found: Identity doesn't exist")

	// The address stays with an identity that has it, and so does the password.
	h.pass(time.Second)
	accepted(t, h.unlink(mia, "email"))
	u := h.user(mia.User.ID)
	if fmt.Sprint(providers(u)) != "[github]" || u.Email != "mia@example.org" ||
		u.EmailConfirmedAt.IsZero() || !strings.Contains(string(u.AppMetadata), `"provider": "github"`) {
		t.Error(brief(u))
	}
	if l := h.newest("identity_unlinked_notification", "mia@example.org"); l.Vars.Provider != "email" {
		t.Errorf("%+v", l)
	}
	if !strings.HasSuffix(h.trail(), "identity_unlinked") {
		t.Error(h.trail())
	}
	h.caller(mia)
	h.set(func(s *flow.Settings) { s.External.ManualLinking = false })
	refused(t, h.unlink(mia, "github"), "manual_linking_disabled: Manual linking is disabled")
}

// A user whose address goes with the identity gets the verified one of another identity, and what was sent to
// the old one is void. An unverified address is never taken over: then the user has none.
func TestUnlink_movesTheAddress(t *testing.T) {
	t.Parallel()
	h := open(t, linking)
	h.confirmed("tom@example.org")
	mia := h.confirmed("mia@example.org")
	h.link(mia, person("github", "17", "!open@example.org"))
	h.link(mia, person("gitlab", "18", "*tom2@example.org"))
	h.link(mia, person("google", "19", "!tom@example.org"))
	accepted(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
	l := h.newest("recovery", "mia@example.org")
	accepted(t, h.unlink(mia, "email"))
	u := h.user(mia.User.ID)
	if u.Email != "tom2@example.org" || u.EmailConfirmedAt.IsZero() || u.PasswordHash != "" ||
		metadata(t, u.UserMetadata)["email_verified"] != true {
		t.Error(brief(u))
	}
	refused(t, must.ErrOf(h.verify(flow.Verify{Type: "recovery", TokenHash: l.Hash})), linkExpired)
	accepted(t, h.unlink(mia, "gitlab"))
	u = h.user(mia.User.ID)
	if m := metadata(t, u.UserMetadata); u.Email != "" || !u.EmailConfirmedAt.IsZero() ||
		m["email_verified"] != false || m["email"] != nil {
		t.Error(brief(u))
	}
	// An unverified address gives no access to the account, and does not block the address.
	victim := h.enters(person("keycloak", "v", "*open@example.org"))
	if got := h.user(victim.User.ID); got.ID == u.ID || fmt.Sprint(providers(got)) != "[keycloak]" {
		t.Errorf("%+v", got)
	}
	h.caller(mia)
	accepted(t, h.unlink(mia, "github"))
	if u := h.user(mia.User.ID); u.Email != "" || fmt.Sprint(providers(u)) != "[google]" {
		t.Error(brief(u))
	}
}

// The verified address of what is left is another account's: the user keeps the own one.
func TestUnlink_conflict(t *testing.T) {
	t.Parallel()
	h := open(t, linking)
	mia := h.confirmed("mia@example.org")
	h.confirmed("tom@example.org")
	h.link(mia, person("github", "17", "*tom@example.org"))
	refused(t, h.unlink(mia, "email"),
		"email_conflict_identity_not_deletable: Unable to unlink identity due to email conflict")
}

// MAILER_AUTOCONFIRM makes no address of a provider a proof.
func TestUnlink_autoconfirm(t *testing.T) {
	t.Parallel()
	h := open(t, linking, func(s *flow.Settings) { s.Email.Autoconfirm = true })
	out, err := h.SignUp(t.Context(), browser, flow.SignUp{Email: "mia@example.org", Password: "sesame"})
	accepted(t, err)
	h.link(*out.Grant, person("github", "17", "!victim@example.org"))
	accepted(t, h.unlink(*out.Grant, "email"))
	if u := h.user(out.Grant.User.ID); u.Email != "" || !u.EmailConfirmedAt.IsZero() {
		t.Error(brief(u))
	}
}

// Of two unlinkings at once one leaves the last identity alone.
func TestUnlink_atOnce(t *testing.T) {
	t.Parallel()
	h := open(t, linking)
	mia := h.confirmed("mia@example.org")
	h.link(mia, person("github", "17", "+mia@example.org"))
	c := h.caller(mia)
	var gone atomic.Int32
	identities := h.user(mia.User.ID).Identities
	await.Together(len(identities), func(i int) {
		if err := h.UnlinkIdentity(t.Context(), browser, c, identities[i].ID.String(), ""); err == nil {
			gone.Add(1)
		} else if !strings.HasPrefix(err.Error(), "single_identity_not_deletable") {
			t.Error(err)
		}
	})
	if gone.Load() != 1 || len(h.user(mia.User.ID).Identities) != 1 {
		t.Errorf("%d went", gone.Load())
	}
}

func TestUnlink_phone(t *testing.T) {
	t.Parallel()
	h := open(t, linking, func(s *flow.Settings) { s.Phone.Autoconfirm = true })
	out, err := h.SignUp(t.Context(), browser, flow.SignUp{Phone: "+491701234567", Password: "sesame"})
	accepted(t, err)
	g := *out.Grant
	h.link(g, person("github", "17", "*mia@example.org"))
	accepted(t, h.unlink(g, "phone"))
	u := h.user(g.User.ID)
	if u.Phone != "" || !u.PhoneConfirmedAt.IsZero() || u.Email != "mia@example.org" ||
		fmt.Sprint(providers(u)) != "[github]" {
		t.Error(brief(u))
	}
	if m := metadata(t, u.UserMetadata); m["phone_verified"] != false || m["phone"] != nil {
		t.Errorf("metadata still speak of the phone: %v", m)
	}
}

package account_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

const confirmationSent = "provider_email_needs_verification: Unverified email with github. A confirmation email has " +
	"been sent to your github email"

// An address that the provider doesn't vouch for makes an account that has to be confirmed by mail.
func TestExternal_unverified(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Email.ConfirmationInterval = time.Minute })
	p := person("github", "17", "!mia@example.org")
	refused(t, must.ErrOf(h.arrive(p)), confirmationSent)
	l := h.newest("confirmation", "mia@example.org")
	if strings.HasPrefix(l.Hash, "pkce_") || !strings.Contains(l.Link, "redirect_to=https://app.example.org/home") {
		t.Errorf("%+v", l)
	}
	if h.trail() != "user_confirmation_requested" {
		t.Error(h.trail())
	}
	_, err := h.arrive(p)
	refused(t, err, "over_email_send_rate_limit: For security purposes, you can only request this after 60 seconds.")
	h.pass(time.Minute)
	refused(t, must.ErrOf(h.arrive(p)), confirmationSent)
	g := h.redeem("signup", l.Hash)
	u := h.user(g.User.ID)
	if fmt.Sprint(providers(u)) != "[github]" || u.EmailConfirmedAt.IsZero() ||
		metadata(t, u.UserMetadata)["sub"] != "17" || metadata(t, u.UserMetadata)["email_verified"] != true {
		t.Error(brief(u))
	}
	if h.enters(p).User.ID != u.ID {
		t.Error("another user")
	}
	// Nothing is made when no mail can be sent, or none may.
	h.set(func(s *flow.Settings) { s.Email.Configured = false })
	_, err = h.arrive(person("github", "18", "!tom@example.org"))
	refused(t, err, "unexpected_failure: Error sending confirmation email")
	h.set(func(s *flow.Settings) {
		s.Email.Configured = true
		s.Email.Sent = flow.Rate{N: 0, Per: time.Hour}
	})
	_, err = h.arrive(person("github", "18", "!tom@example.org"))
	refused(t, err, "over_email_send_rate_limit: email rate limit exceeded")
	h.set(func(s *flow.Settings) { s.Email.Sent = flow.Rate{N: 100, Per: time.Hour} })
	h.enters(person("google", "tom", "*tom@example.org"))
	if all := countUsers(h); all != 2 {
		t.Errorf("%d users", all)
	}
}

func TestExternal_allowUnverified(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.External.AllowUnverified = true })
	g := h.enters(person("github", "17", "!mia@example.org"))
	if u := h.user(g.User.ID); !u.EmailConfirmedAt.IsZero() || u.Email != "mia@example.org" || u.LastSignInAt.IsZero() {
		t.Error(brief(u))
	}
	h.newest("confirmation", "mia@example.org")
	// The sign-in succeeds whether or not another mail may be sent now.
	h.set(func(s *flow.Settings) { s.Email.ConfirmationInterval = time.Hour })
	h.enters(person("github", "17", "!mia@example.org")) // begins the pause
	h.enters(person("github", "17", "!mia@example.org"))
	h.set(func(s *flow.Settings) { s.Email.Configured = false })
	h.enters(person("github", "17", "!mia@example.org"))
	if n := len(h.messages()); n != 2 {
		t.Errorf("%d messages", n)
	}
	h.set(func(s *flow.Settings) { s.Email.Configured = true })
	await.Together(6, func(int) {
		accepted(t, must.ErrOf(h.Arrive(t.Context(), browser, person("github", "18", "!tom@example.org"))))
	})
	if n := len(h.messages()); n != 3 {
		t.Errorf("%d messages after many at once", n)
	}
	// The user signs in and sets a password; a proof of the address by another ends that user's sessions.
	h.pass(time.Second)
	must.Succeed(t, must.ErrOf(h.UpdateUser(t.Context(), browser, h.caller(g),
		flow.UserUpdate{Password: new("another sesame")})))
	victim := h.enters(person("google", "g", "*mia@example.org"))
	if victim.User.ID != g.User.ID {
		t.Fatalf("%+v", victim)
	}
	ended(t, h, g)
	if u := h.user(victim.User.ID); u.PasswordHash != "" || fmt.Sprint(providers(u)) != "[google]" {
		t.Error(brief(u))
	}
}

// An unverified address never reaches the account that has it, nor does it make a second one with
// the same address.
func TestExternal_unverifiedNeverLinks(t *testing.T) {
	t.Parallel()
	h := open(t)
	mia := h.confirmed("mia@example.org")
	const verify = "provider_email_needs_verification: Unverified email with github. Verify the email with github in " +
		"order to sign in"
	for _, autoconfirm := range []bool{false, true} {
		h.set(func(s *flow.Settings) { s.Email.Autoconfirm = autoconfirm })
		refused(t, must.ErrOf(h.arrive(person("github", fmt.Sprint(autoconfirm), "!mia@example.org"))), verify)
	}
	if u := h.user(mia.User.ID); len(u.Identities) != 1 || countUsers(h) != 1 || len(h.messages()) != 1 {
		t.Error(brief(u), countUsers(h), len(h.messages()))
	}
	// Nothing is left of the tries, so that one with an address of the own makes an account.
	g := h.enters(person("github", "false", "*mine@example.org"))
	if u := h.user(g.User.ID); u.ID == mia.User.ID || u.Email != "mine@example.org" || u.EmailConfirmedAt.IsZero() {
		t.Error(brief(u))
	}
	// If no address is required, the sign-in succeeds without one.
	optional := person("github", "true", "!mia@example.org")
	optional.Optional = true
	if u := h.enters(optional).User; u.Email != "" || u.ID == mia.User.ID {
		t.Error(brief(u))
	}
}

// The unverified address of a linked identity attracts no other sign-in and does not block a sign-up with the address;
// the identity is shown all the same.
func TestExternal_unverifiedIdentityAttractsNoSignIn(t *testing.T) {
	t.Parallel()
	h := open(t, linking)
	attacker := h.confirmed("attacker@example.org")
	h.link(attacker, person("github", "17", "!victim@example.org"))
	victim := h.enters(person("google", "g", "*victim@example.org"))
	if victim.User.ID == attacker.User.ID || victim.User.Email != "victim@example.org" {
		t.Fatalf("the victim is %+v", victim.User)
	}
	h.link(attacker, person("gitlab", "18", "!second@example.org"))
	h.confirmed("second@example.org")
	for _, i := range h.user(attacker.User.ID).Identities {
		if i.Provider == "github" && (i.Email != "" || metadata(t, i.Data)["email"] != "victim@example.org") {
			t.Errorf("%+v", i)
		}
	}
}

// Exactly the proven address is confirmed: an account that was created with another person's address is not, when its
// holder proves an address of their own.
func TestExternal_confirmsExactlyTheProvenAddress(t *testing.T) {
	t.Parallel()
	h := open(t)
	refused(t, must.ErrOf(h.arrive(person("github", "17", "!victim@example.org"))), confirmationSent)
	refused(t, must.ErrOf(h.arrive(person("github", "17", "*attacker@example.org"))), confirmationSent)
	victim := h.enters(person("google", "g", "*victim@example.org"))
	if u := h.user(victim.User.ID); fmt.Sprint(providers(u)) != "[google]" || u.Email != "victim@example.org" {
		t.Error(brief(u))
	}
	// The attacker's identity no longer leads to the account: it is a new user's now.
	if u := h.enters(person("github", "17", "*attacker@example.org")).User; u.ID == victim.User.ID ||
		u.Email != "attacker@example.org" {
		t.Error(brief(u))
	}
}

// A sign-up with a password, for an address that a provider asserted but did not verify, gets the account without that
// provider's identity: the link that is used decides.
func TestExternal_mailOfAnotherSignUpDropsTheIdentity(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"password", "magic link", "recovery"} {
		h := open(t, func(s *flow.Settings) { s.External.AllowUnverified = true })
		attacker := h.enters(person("github", "17", "!victim@example.org"))
		attacker = h.verified(attacker, h.app(attacker, "")) // would keep the owner below aal2, and the attacker above
		h.pass(time.Second)
		var l message
		kind := "signup"
		switch by {
		case "password":
			l = h.signUp("victim@example.org", "sesame", `{"nick":"vic"}`)
		case "magic link":
			must.Succeed(t, h.SendOTP(
				t.Context(), browser, flow.OTP{Email: "victim@example.org", CreateUser: true}))
			l = h.newest("confirmation", "victim@example.org")
		default:
			kind = "recovery"
			must.Succeed(t, h.Recover(t.Context(), browser, flow.Recover{Email: "victim@example.org"}))
			l = h.newest("recovery", "victim@example.org")
		}
		g := h.redeem(kind, l.Hash)
		u := h.user(g.User.ID)
		if u.ID != attacker.User.ID || fmt.Sprint(providers(u)) != "[email]" ||
			u.EmailConfirmedAt.IsZero() || strings.Contains(string(u.UserMetadata), "github") || u.Factors != nil {
			t.Error(by, brief(u))
		}
		ended(t, h, attacker)
		h.caller(g)
		if by == "password" {
			accepted(t, h.signIn("victim@example.org", "sesame"))
		}
	}
}

// Another mail for the same sign-in, by /resend or an administrator's link, confirms it all the same.
func TestExternal_anotherMailOfTheSameSignIn(t *testing.T) {
	t.Parallel()
	h := open(t)
	for _, by := range []string{"resend", "link"} {
		email := by + "@example.org"
		refused(t, must.ErrOf(h.arrive(person("github", by, "!"+email))), confirmationSent)
		h.pass(time.Second)
		hash := ""
		if by == "resend" {
			accepted(t, must.ErrOf(h.Resend(t.Context(), browser, flow.Resend{Type: "signup", Email: email})))
			hash = h.newest("confirmation", email).Hash
		} else {
			l, err := h.GenerateLink(t.Context(), browser, flow.Actor{Role: "service_role"},
				flow.LinkRequest{Type: "signup", Email: email})
			accepted(t, err)
			hash = l.HashedToken
		}
		if u := h.user(h.redeem("signup", hash).User.ID); fmt.Sprint(providers(u)) != "[github]" ||
			u.EmailConfirmedAt.IsZero() {
			t.Error(by, brief(u))
		}
	}
}

// A try whose address the provider has not verified yet stores nothing: the next one, with the address verified,
// leads to the owner's account, and linking by hand finds the identity free.
func TestExternal_triedBeforeVerified(t *testing.T) {
	t.Parallel()
	h := open(t, linking)
	mia := h.confirmed("mia@example.org")
	before := h.trail()
	h.set(func(s *flow.Settings) {
		s.Hooks.BeforeCreate = func(context.Context, string, store.User) error {
			t.Error("a hook is asked about a user who is not created")
			return nil
		}
		s.Hooks.AfterCreate = true
	})
	refused(t, must.ErrOf(h.arrive(person("github", "17", "!mia@example.org"))),
		"provider_email_needs_verification: Unverified email with github. Verify the email with github in order to "+
			"sign in")
	if h.trail() != before+" login_failed" || countUsers(h) != 1 || len(h.messages()) != 1 {
		t.Errorf("%d users, %d messages, %s", countUsers(h), len(h.messages()), h.trail())
	}
	if g := h.enters(person("github", "17", "*mia@example.org")); g.User.ID != mia.User.ID {
		t.Error(brief(g.User))
	}
}

// Accounts that such a try has left behind in the database lose their identity to its owner, and go.
func TestExternal_abandoned(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	h := openOn(t, pool(t, url), linking)
	mia, tom := h.confirmed("mia@example.org"), h.confirmed("tom@example.org")
	leave := func(subject, email string, more string) (id uuid.UUID) {
		t.Helper()
		id = uuid.New()
		testdb.Exec(t, url,
			`insert into users (id, aud, role, created_at, updated_at) values ($1, 'authenticated', 'authenticated', now(), now())`, id)
		testdb.Exec(t, url,
			`insert into identities (id, user_id, provider, provider_id, email, identity_data, created_at, updated_at)
			values (gen_random_uuid(), $1, 'github', $2, $3, '{}', now(), now())`, id, subject, email)
		if more != "" {
			testdb.Exec(t, url, more, id)
		}
		return id
	}
	gone := func(id uuid.UUID) {
		t.Helper()
		if _, err := h.db.User(t.Context(), id); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("the abandoned user: %v", err)
		}
	}
	id := leave("17", "", "")
	if g := h.enters(person("github", "17", "*mia@example.org")); g.User.ID != mia.User.ID {
		t.Error(brief(g.User))
	}
	gone(id)
	id = leave("18", "", "")
	h.link(tom, person("github", "18", "!else@example.org"))
	gone(id)
	id = leave("19", "", "")
	if g := h.enters(person("github", "19", "*ann@example.org")); g.User.Email != "ann@example.org" {
		t.Error(brief(g.User))
	}
	gone(id)
	// Its address blocks neither another provider's sign-in nor a sign-up.
	leave("20", "bob@example.org", "")
	if g := h.enters(person("google", "bob", "*bob@example.org")); g.User.Email != "bob@example.org" {
		t.Error(brief(g.User))
	}
	leave("21", "eve@example.org", "")
	if g := h.confirmed("eve@example.org"); g.User.Email != "eve@example.org" {
		t.Error(brief(g.User))
	}
	// An account that has signed in once, or is banned, stays separate.
	const verify = "provider_email_needs_verification: Unverified email with github. Verify the email with github in " +
		"order to sign in"
	for want, more := range map[string]string{
		verify:                        `update users set last_sign_in_at = now() where id = $1`,
		"user_banned: User is banned": `update users set banned_until = '2040-01-01' where id = $1`,
	} {
		id = leave(more, "", more)
		refused(t, must.ErrOf(h.arrive(person("github", more, "*mia@example.org"))), want)
		h.user(id)
	}
}

// Pre-takeover: an attacker signs up with the victim's address and waits.
func TestExternal_preTakeover(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.signUp("victim@example.org", "attacker's", `{"role":"attacker"}`)
	l := h.newest("confirmation", "victim@example.org")
	g := h.enters(person("google", "g", "*victim@example.org"))
	u := h.user(g.User.ID)
	if fmt.Sprint(providers(u)) != "[google]" ||
		u.PasswordHash != "" || strings.Contains(string(u.UserMetadata), "attacker") || countUsers(h) != 1 {
		t.Error(brief(u))
	}
	refused(t, h.signIn("victim@example.org", "attacker's"), "invalid_credentials: Invalid login credentials")
	_, err := h.verify(flow.Verify{Type: "signup", TokenHash: l.Hash})
	refused(t, err, linkExpired)

	// Nothing of an unconfirmed account survives: sessions, phone, password, identities.
	role, email, phone, confirm := "authenticated", "second@example.org", "+491701234567", true
	by := flow.Actor{Role: "service_role"}
	made, err := h.AdminCreate(t.Context(), browser, by,
		flow.Attributes{Role: &role, Email: &email, Phone: &phone, PhoneConfirm: &confirm,
			Password: new("attacker's")})
	must.Succeed(t, err)
	old, err := h.SignInPassword(t.Context(), browser, account.Password{Phone: phone, Password: "attacker's"})
	must.Succeed(t, err)
	old = h.verified(old, h.app(old, ""))
	g = h.enters(person("google", "g2", "*second@example.org"))
	u = h.user(g.User.ID)
	if u.Factors != nil || u.ID != made.ID || u.Phone != "" || !u.PhoneConfirmedAt.IsZero() ||
		u.PasswordHash != "" || fmt.Sprint(providers(u)) != "[google]" {
		t.Error(brief(u))
	}
	ended(t, h, old)
	h.caller(g)
}

// The primary address is not verified, another one is: that one is the account's.
func TestExternal_unverifiedPrimary(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("taken@example.org")
	g := h.enters(person("github", "17", "!taken@example.org", "+mia@example.org"))
	if u := h.user(g.User.ID); u.Email != "mia@example.org" || u.EmailConfirmedAt.IsZero() ||
		u.Identities[0].Email != "mia@example.org" {
		t.Error(brief(u))
	}
}

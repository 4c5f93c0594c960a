package account_test

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
)

// person is whom a provider vouches for. Of addresses: * is primary and verified, ! primary and not
// verified, + verified, - neither.
func person(via, subject string, addresses ...string) account.Arrival {
	p := provider.Profile{Provider: via, Subject: subject, Token: "token of " + subject,
		Data: map[string]any{"iss": "https://" + via + ".example", "sub": subject, "provider_id": subject, "name": "Mia " + via}}
	for _, a := range addresses {
		p.Emails = append(p.Emails, provider.Email{Address: a[1:], Verified: a[0] == '*' || a[0] == '+', Primary: a[0] == '*' || a[0] == '!'})
	}
	return account.Arrival{Profile: p}
}

func (h *house) arrive(p account.Arrival) (account.Grant, error) {
	h.t.Helper()
	out, err := h.Arrive(h.t.Context(), browser, p)
	if out.Grant == nil {
		return account.Grant{}, err
	}
	return *out.Grant, err
}

// enters is an arrival that must succeed.
func (h *house) enters(p account.Arrival) account.Grant {
	h.t.Helper()
	g, err := h.arrive(p)
	if err != nil {
		h.t.Fatalf("%s by %s: %v", p.Subject, p.Provider, err)
	}
	return g
}

// brief is a user as a failure shows him.
func brief(u store.User) string {
	return fmt.Sprintf("%s %q %s confirmed %v phone %q password %t %v anonymous %t\n%s\n%s", u.ID, u.Email, u.Role, u.EmailConfirmedAt, u.Phone,
		u.PasswordHash != "", providers(u), u.IsAnonymous, u.AppMetadata, u.UserMetadata)
}

func providers(u store.User) (list []string) {
	for _, i := range u.Identities {
		list = append(list, i.Provider)
	}
	return list
}

func metadata(t *testing.T, text json.RawMessage) (m map[string]any) {
	t.Helper()
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestExternal_newUser(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.enters(person("github", "17", "-old@example.org", "*mia@example.org"))
	u := h.user(g.User.ID)
	if u.Email != "mia@example.org" || !u.EmailConfirmedAt.Equal(noon) || !u.LastSignInAt.Equal(noon) || u.PasswordHash != "" || u.Role != "authenticated" || u.IsAnonymous {
		t.Error(brief(u))
	}
	if string(u.AppMetadata) != `{"provider": "github", "providers": ["github"]}` {
		t.Errorf("app_metadata %s", u.AppMetadata)
	}
	for _, m := range []map[string]any{metadata(t, u.UserMetadata), metadata(t, u.Identities[0].Data)} {
		if m["sub"] != "17" || m["name"] != "Mia github" || m["email"] != "mia@example.org" || m["email_verified"] != true || m["phone_verified"] != false {
			t.Errorf("%v", m)
		}
	}
	if i := u.Identities[0]; len(u.Identities) != 1 || i.Provider != "github" || i.ProviderID != "17" || i.Email != "mia@example.org" {
		t.Errorf("%+v", u.Identities)
	}
	if g.ProviderToken != "token of 17" || h.caller(g).Claims.AMR[0].Method != "oauth" || h.caller(g).Claims.AAL != "aal1" {
		t.Errorf("%+v", g)
	}
	if h.trail() != "user_signedup" || len(h.letters()) != 0 {
		t.Errorf("%s, %d letters", h.trail(), len(h.letters()))
	}

	// Again: the same user, his data brought up to date, what he added kept.
	h.pass(time.Minute)
	caller := h.caller(g)
	if _, err := h.UpdateUser(t.Context(), browser, caller, account.UserUpdate{Data: json.RawMessage(`{"nick":"mi"}`)}); err != nil {
		t.Fatal(err)
	}
	p := person("github", "17", "*new@example.org")
	p.Data["name"] = "Mia New"
	again := h.enters(p)
	u = h.user(again.User.ID)
	m := metadata(t, u.UserMetadata)
	if u.ID != g.User.ID || u.Email != "mia@example.org" || m["nick"] != "mi" || m["name"] != "Mia New" || len(u.Identities) != 1 {
		t.Error(brief(u))
	}
	if i := u.Identities[0]; !i.LastSignInAt.Equal(noon.Add(time.Minute)) || i.Email != "new@example.org" || metadata(t, i.Data)["name"] != "Mia New" {
		t.Errorf("%+v", i)
	}
	if h.trail() != "user_signedup user_modified login" {
		t.Error(h.trail())
	}
}

func TestExternal_linksByVerifiedAddress(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *account.Settings) { s.DisableSignup = false; s.Email.NotifyIdentityLinked = true })
	old := h.confirmed("mia@example.org")
	h.pass(time.Second)                                                               // identities are sorted by age
	g := h.enters(person("github", "17", "*primary@example.org", "+mia@example.org")) // a secondary one will do
	u := h.user(g.User.ID)
	if u.ID != old.User.ID || fmt.Sprint(providers(u)) != "[email github]" || u.PasswordHash == "" || u.Email != "mia@example.org" {
		t.Error(brief(u))
	}
	if !strings.Contains(string(u.AppMetadata), `"providers": ["email", "github"]`) || !strings.Contains(string(u.AppMetadata), `"provider": "email"`) {
		t.Errorf("%s", u.AppMetadata)
	}
	if l := h.newest("identity_linked_notification", "mia@example.org"); l.Vars.Provider != "github" || l.Vars.Email != "mia@example.org" {
		t.Errorf("%+v", l)
	}
	h.caller(old) // nobody was put out
	rows, _, err := h.db.AuditLog(t.Context(), store.AuditFilter{Action: "identity_linked", Limit: 1})
	if err != nil || len(rows) != 1 || metadata(t, rows[0].Traits)["provider_id"] != "17" || rows[0].Actor != u.ID {
		t.Errorf("%+v, %v", rows, err)
	}
	// By the address of that identity, which only its provider has verified, another one links too.
	h.pass(time.Second)
	u = h.user(h.enters(person("google", "g", "*primary@example.org")).User.ID)
	if u.ID != old.User.ID || fmt.Sprint(providers(u)) != "[email github google]" {
		t.Error(brief(u))
	}
	// DISABLE_SIGNUP keeps newcomers out, and nobody who is known.
	h.set(func(s *account.Settings) { s.DisableSignup = true })
	h.enters(person("google", "g", "*primary@example.org"))
	h.enters(person("gitlab", "l", "*mia@example.org"))
	_, err = h.arrive(person("google", "other", "*tom@example.org"))
	refused(t, err, "signup_disabled: Signups not allowed for this instance")
}

func TestExternal_severalAccounts(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	h.confirmed("tom@example.org")
	_, err := h.arrive(person("github", "17", "*mia@example.org", "+tom@example.org"))
	refused(t, err, "unexpected_failure: Multiple accounts with the same email address in the same linking domain detected: default")
}

const confirmationSent = "provider_email_needs_verification: Unverified email with github. A confirmation email has been sent to your github email"

// An address that the provider doesn't vouch for makes an account that has to be confirmed by mail.
func TestExternal_unverified(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *account.Settings) { s.Email.ConfirmationInterval = time.Minute })
	p := person("github", "17", "!mia@example.org")
	_, err := h.arrive(p)
	refused(t, err, confirmationSent)
	l := h.newest("confirmation", "mia@example.org")
	if strings.HasPrefix(l.Hash, "pkce_") || !strings.Contains(l.Link, "redirect_to=https://app.example.org/home") {
		t.Errorf("%+v", l)
	}
	if h.trail() != "user_confirmation_requested" {
		t.Error(h.trail())
	}
	_, err = h.arrive(p)
	refused(t, err, "over_email_send_rate_limit: For security purposes, you can only request this after 60 seconds.")
	h.pass(time.Minute)
	_, err = h.arrive(p)
	refused(t, err, confirmationSent)
	g := h.redeem("signup", l.Hash)
	u := h.user(g.User.ID)
	if fmt.Sprint(providers(u)) != "[github]" || u.EmailConfirmedAt.IsZero() || metadata(t, u.UserMetadata)["sub"] != "17" || metadata(t, u.UserMetadata)["email_verified"] != true {
		t.Error(brief(u))
	}
	if h.enters(p).User.ID != u.ID {
		t.Error("another user")
	}
	// Nothing is made when no mail can be sent, or none may.
	h.set(func(s *account.Settings) { s.Email.Configured = false })
	_, err = h.arrive(person("github", "18", "!tom@example.org"))
	refused(t, err, "unexpected_failure: Error sending confirmation email")
	h.set(func(s *account.Settings) {
		s.Email.Configured = true
		s.Email.Sent = account.Rate{N: 0, Per: time.Hour}
	})
	_, err = h.arrive(person("github", "18", "!tom@example.org"))
	refused(t, err, "over_email_send_rate_limit: email rate limit exceeded")
	h.set(func(s *account.Settings) { s.Email.Sent = account.Rate{N: 100, Per: time.Hour} })
	h.enters(person("google", "tom", "*tom@example.org"))
	if all := countUsers(h); all != 2 {
		t.Errorf("%d users", all)
	}
}

func countUsers(h *house) int {
	h.t.Helper()
	_, n, err := h.AdminUsers(h.t.Context(), store.UsersFilter{Aud: "authenticated", Limit: 1, Count: true})
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

func TestExternal_allowUnverified(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *account.Settings) { s.External.AllowUnverified = true })
	g := h.enters(person("github", "17", "!mia@example.org"))
	if u := h.user(g.User.ID); !u.EmailConfirmedAt.IsZero() || u.Email != "mia@example.org" || u.LastSignInAt.IsZero() {
		t.Error(brief(u))
	}
	h.newest("confirmation", "mia@example.org")
	// He is let in whether or not another mail may be sent now.
	h.set(func(s *account.Settings) { s.Email.ConfirmationInterval = time.Hour })
	h.enters(person("github", "17", "!mia@example.org")) // begins the pause
	h.enters(person("github", "17", "!mia@example.org"))
	h.set(func(s *account.Settings) { s.Email.Configured = false })
	h.enters(person("github", "17", "!mia@example.org"))
	if n := len(h.letters()); n != 2 {
		t.Errorf("%d letters", n)
	}
	var wg sync.WaitGroup
	h.set(func(s *account.Settings) { s.Email.Configured = true })
	for range 6 {
		wg.Go(func() {
			_, err := h.Arrive(t.Context(), browser, person("github", "18", "!tom@example.org"))
			refused(t, err, "")
		})
	}
	wg.Wait()
	if n := len(h.letters()); n != 3 {
		t.Errorf("%d letters after many at once", n)
	}
	// He is in, and gives himself a password; whoever proves the address puts him out.
	h.pass(time.Second)
	if _, err := h.UpdateUser(t.Context(), browser, h.caller(g), account.UserUpdate{Password: new("another sesame")}); err != nil {
		t.Fatal(err)
	}
	victim := h.enters(person("google", "g", "*mia@example.org"))
	if victim.User.ID != g.User.ID {
		t.Fatalf("%+v", victim)
	}
	ended(t, h, g)
	if u := h.user(victim.User.ID); u.PasswordHash != "" || fmt.Sprint(providers(u)) != "[google]" {
		t.Error(brief(u))
	}
}

func ended(t *testing.T, h *house, g account.Grant) {
	t.Helper()
	_, err := h.Authenticate(t.Context(), g.AccessToken, "", account.Full)
	refused(t, err, "session_not_found: Session from session_id claim in JWT does not exist")
}

// An unverified address never reaches the account that has it (11.1), nor does it make a second one with
// the same address.
func TestExternal_unverifiedNeverLinks(t *testing.T) {
	t.Parallel()
	h := open(t)
	mia := h.confirmed("mia@example.org")
	const verify = "provider_email_needs_verification: Unverified email with github. Verify the email with github in order to sign in"
	for _, autoconfirm := range []bool{false, true} {
		h.set(func(s *account.Settings) { s.Email.Autoconfirm = autoconfirm })
		_, err := h.arrive(person("github", fmt.Sprint(autoconfirm), "!mia@example.org"))
		refused(t, err, verify)
	}
	if u := h.user(mia.User.ID); len(u.Identities) != 1 || countUsers(h) != 3 || len(h.letters()) != 1 {
		t.Error(brief(u), countUsers(h), len(h.letters()))
	}
	// The other account has no address; it gets one that is free as soon as the provider vouches for it.
	g := h.enters(person("github", "false", "*mine@example.org"))
	if u := h.user(g.User.ID); u.ID == mia.User.ID || u.Email != "mine@example.org" || u.EmailConfirmedAt.IsZero() {
		t.Error(brief(u))
	}
	_, err := h.arrive(person("github", "true", "*mia@example.org")) // verified now, but somebody's
	refused(t, err, verify)
	// Where no address is needed, he is let in without.
	optional := person("github", "true", "!mia@example.org")
	optional.Optional = true
	if u := h.enters(optional).User; u.Email != "" || u.ID == mia.User.ID {
		t.Error(brief(u))
	}
}

// The identity of a linked provider whose address nobody has verified attracts no other sign-in (11.1),
// keeps nobody from signing up with the address, and is shown all the same.
func TestExternal_unverifiedIdentityAttractsNobody(t *testing.T) {
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

// Exactly the address that was proven is confirmed (2.6): an account that was made with somebody else's
// is not, when its owner proves one of his own.
func TestExternal_confirmsExactlyTheProvenAddress(t *testing.T) {
	t.Parallel()
	h := open(t)
	_, err := h.arrive(person("github", "17", "!victim@example.org"))
	refused(t, err, confirmationSent)
	_, err = h.arrive(person("github", "17", "*attacker@example.org"))
	refused(t, err, confirmationSent)
	victim := h.enters(person("google", "g", "*victim@example.org"))
	if u := h.user(victim.User.ID); fmt.Sprint(providers(u)) != "[google]" || u.Email != "victim@example.org" {
		t.Error(brief(u))
	}
	// The attacker's door is shut: his identity is a stranger's now.
	if u := h.enters(person("github", "17", "*attacker@example.org")).User; u.ID == victim.User.ID || u.Email != "attacker@example.org" {
		t.Error(brief(u))
	}
}

// Whoever signs up with a password for an address that a provider only told gets the account without that
// provider's identity: the link that is used decides.
func TestExternal_mailOfAnotherSignUpDropsTheIdentity(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"password", "magic link", "recovery"} {
		h := open(t, func(s *account.Settings) { s.External.AllowUnverified = true })
		attacker := h.enters(person("github", "17", "!victim@example.org"))
		attacker = h.verified(attacker, h.app(attacker, "")) // would keep the owner below aal2, and the attacker above
		h.pass(time.Second)
		var l letter
		kind := "signup"
		switch by {
		case "password":
			l = h.signUp("victim@example.org", "sesame", `{"nick":"vic"}`)
		case "magic link":
			if err := h.SendOTP(t.Context(), browser, account.OTP{Email: "victim@example.org", CreateUser: true}); err != nil {
				t.Fatal(err)
			}
			l = h.newest("confirmation", "victim@example.org")
		default:
			kind = "recovery"
			if err := h.Recover(t.Context(), browser, account.Recover{Email: "victim@example.org"}); err != nil {
				t.Fatal(err)
			}
			l = h.newest("recovery", "victim@example.org")
		}
		g := h.redeem(kind, l.Hash)
		u := h.user(g.User.ID)
		if u.ID != attacker.User.ID || fmt.Sprint(providers(u)) != "[email]" || u.EmailConfirmedAt.IsZero() || strings.Contains(string(u.UserMetadata), "github") || u.Factors != nil {
			t.Error(by, brief(u))
		}
		ended(t, h, attacker)
		h.caller(g)
		if by == "password" {
			refused(t, h.signIn("victim@example.org", "sesame"), "")
		}
	}
}

// Another mail for the same sign-in, by /resend or an administrator's link, confirms it all the same.
func TestExternal_anotherMailOfTheSameSignIn(t *testing.T) {
	t.Parallel()
	h := open(t)
	for _, by := range []string{"resend", "link"} {
		email := by + "@example.org"
		_, err := h.arrive(person("github", by, "!"+email))
		refused(t, err, confirmationSent)
		h.pass(time.Second)
		hash := ""
		if by == "resend" {
			_, err := h.Resend(t.Context(), browser, account.Resend{Type: "signup", Email: email})
			refused(t, err, "")
			hash = h.newest("confirmation", email).Hash
		} else {
			l, err := h.GenerateLink(t.Context(), browser, account.Actor{Role: "service_role"}, account.LinkRequest{Type: "signup", Email: email})
			refused(t, err, "")
			hash = l.HashedToken
		}
		if u := h.user(h.redeem("signup", hash).User.ID); fmt.Sprint(providers(u)) != "[github]" || u.EmailConfirmedAt.IsZero() {
			t.Error(by, brief(u))
		}
	}
}

// Pre-takeover (2.6, 11.1): an attacker signs up with the victim's address and waits.
func TestExternal_preTakeover(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.signUp("victim@example.org", "attacker's", `{"role":"attacker"}`)
	l := h.newest("confirmation", "victim@example.org")
	g := h.enters(person("google", "g", "*victim@example.org"))
	u := h.user(g.User.ID)
	if fmt.Sprint(providers(u)) != "[google]" || u.PasswordHash != "" || strings.Contains(string(u.UserMetadata), "attacker") || countUsers(h) != 1 {
		t.Error(brief(u))
	}
	refused(t, h.signIn("victim@example.org", "attacker's"), "invalid_credentials: Invalid login credentials")
	_, err := h.verify(account.Verify{Type: "signup", TokenHash: l.Hash})
	refused(t, err, linkExpired)

	// Nothing of an unconfirmed account survives: sessions, phone, password, identities.
	role, email, phone, confirm := "authenticated", "second@example.org", "+491701234567", true
	by := account.Actor{Role: "service_role"}
	made, err := h.AdminCreate(t.Context(), browser, by, account.Attributes{Role: &role, Email: &email, Phone: &phone, PhoneConfirm: &confirm, Password: new("attacker's")})
	if err != nil {
		t.Fatal(err)
	}
	old, err := h.SignInPassword(t.Context(), browser, account.Password{Phone: phone, Password: "attacker's"})
	if err != nil {
		t.Fatal(err)
	}
	old = h.verified(old, h.app(old, ""))
	g = h.enters(person("google", "g2", "*second@example.org"))
	u = h.user(g.User.ID)
	if u.Factors != nil || u.ID != made.ID || u.Phone != "" || !u.PhoneConfirmedAt.IsZero() || u.PasswordHash != "" || fmt.Sprint(providers(u)) != "[google]" {
		t.Error(brief(u))
	}
	ended(t, h, old)
	h.caller(g)
}

// The primary address is not verified, another one is: that one is the account's (2.5 rule 3).
func TestExternal_unverifiedPrimary(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("taken@example.org")
	g := h.enters(person("github", "17", "!taken@example.org", "+mia@example.org"))
	if u := h.user(g.User.ID); u.Email != "mia@example.org" || u.EmailConfirmedAt.IsZero() || u.Identities[0].Email != "mia@example.org" {
		t.Error(brief(u))
	}
}

func TestExternal_noAddress(t *testing.T) {
	t.Parallel()
	h := open(t)
	const none = "unexpected_failure: Error getting user email from external provider"
	_, err := h.arrive(person("snapchat", "17"))
	refused(t, err, none)
	native := person("apple", "a")
	native.Native = true
	_, err = h.arrive(native) // before anything is made
	refused(t, err, none)
	if countUsers(h) != 0 {
		t.Error("a user was made")
	}
	p := person("snapchat", "17")
	p.Optional = true
	g := h.enters(p)
	if u := h.user(g.User.ID); u.Email != "" || !u.EmailConfirmedAt.IsZero() || countUsers(h) != 1 {
		t.Error(brief(u))
	}
	if h.enters(p).User.ID != g.User.ID {
		t.Error("another user")
	}
	// One who is known may come back by an ID token without address.
	h.enters(person("apple", "a", "*mia@example.org"))
	h.enters(native)
}

func TestExternal_banned(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.enters(person("github", "17", "*mia@example.org"))
	if _, err := h.AdminUpdate(t.Context(), browser, account.Actor{Role: "service_role"}, g.User.ID, account.Attributes{BanDuration: new("1h")}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []account.Arrival{person("github", "17", "*mia@example.org"), person("google", "g", "*mia@example.org")} {
		_, err := h.arrive(p)
		refused(t, err, "user_banned: User is banned")
	}
	if u := h.user(g.User.ID); len(u.Identities) != 1 {
		t.Error("a banned user got another identity")
	}
	h.pass(time.Hour)
	h.enters(person("google", "g", "*mia@example.org"))
}

// Apple tells the name on the first sign-in only.
func TestExternal_namesStay(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.enters(person("apple", "a", "*mia@example.org"))
	p := person("apple", "a", "*mia@example.org")
	delete(p.Data, "name")
	u := h.user(h.enters(p).User.ID)
	if metadata(t, u.Identities[0].Data)["name"] != "Mia apple" || metadata(t, u.UserMetadata)["name"] != "Mia apple" {
		t.Errorf("%s", u.Identities[0].Data)
	}
}

// What PostgreSQL refuses, and what would swell every token, is left out.
func TestExternal_hostileProfile(t *testing.T) {
	t.Parallel()
	h := open(t)
	p := person("keycloak", "17", "*mia@example.org")
	p.Data["nickname"] = "nul\x00"
	p.Data["custom_claims"] = map[string]any{"groups": strings.Repeat("x", 1<<17)}
	p.Data["picture"] = strings.Repeat("y", 5000)
	m := metadata(t, h.user(h.enters(p).User.ID).UserMetadata)
	if m["nickname"] != nil || m["custom_claims"] != nil || m["picture"] != nil || m["name"] != "Mia keycloak" {
		t.Errorf("%v", m)
	}
}

// Identities of before that are stored under a provider's other name are found.
func TestExternal_aliases(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.enters(person("slack_oidc", "17", "*mia@example.org"))
	p := person("slack", "17", "*other@example.org")
	p.Aliases = []string{"slack_oidc"}
	if again := h.enters(p); again.User.ID != g.User.ID || len(h.user(g.User.ID).Identities) != 1 {
		t.Errorf("%+v", again)
	}
}

// What signing in costs: a look, and a transaction that locks the user, looks again and writes.
func TestExternal_trips(t *testing.T) {
	t.Parallel()
	db, trips := storetest.Counting(t)
	h := openOn(t, db)
	for i, want := range []int64{0, 5, 6} { // the first prepares statements
		p := person("github", fmt.Sprint(min(i, 1)), fmt.Sprintf("*u%d@example.org", min(i, 1)))
		if i == 0 {
			h.enters(p)
			h.enters(p)
			continue
		}
		if n := trips.During(func() { h.enters(p) }); n != want {
			t.Errorf("try %d: %d round trips, want %d", i, n, want)
		}
	}
}

// Callbacks at once for the same newcomer, and for the same address by several providers, make one user.
func TestExternal_atOnce(t *testing.T) {
	t.Parallel()
	h := open(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	users := map[uuid.UUID]int{}
	for i := range 16 {
		wg.Go(func() {
			via := []string{"github", "google", "gitlab"}[i%3]
			out, err := h.Arrive(t.Context(), browser, person(via, "17", "*mia@example.org"))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			users[out.User]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(users) != 1 || countUsers(h) != 1 {
		t.Fatalf("%v, %d users", users, countUsers(h))
	}
	for id := range users {
		if u := h.user(id); len(u.Identities) != 3 {
			t.Errorf("%v", providers(u))
		}
	}
	// And beside a sign-up with a password.
	for i := range 8 {
		email := fmt.Sprintf("u%d@example.org", i)
		wg.Go(func() {
			_, err := h.SignUp(t.Context(), browser, account.SignUp{Email: email, Password: "sesame"})
			refused(t, err, "")
		})
		wg.Go(func() {
			_, err := h.Arrive(t.Context(), browser, person("github", email, "*"+email))
			refused(t, err, "")
		})
	}
	wg.Wait()
	if n := countUsers(h); n != 9 {
		t.Errorf("%d users, want 9", n)
	}
}

func TestExternal_invitation(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *account.Settings) { s.DisableSignup = true })
	by := account.Actor{Role: "service_role"}
	invite := func(email string) letter {
		t.Helper()
		if _, err := h.Invite(t.Context(), browser, by, account.Invitation{Email: email, Data: json.RawMessage(`{"team":"red"}`)}); err != nil {
			t.Fatal(err)
		}
		return h.newest("invite", email)
	}
	l := invite("mia@example.org")
	accept := func(p account.Arrival) (account.Grant, error) {
		p.Invite = l.Hash
		return h.arrive(p)
	}
	const mismatch = "validation_failed: Invited email does not match emails from external provider"
	_, err := accept(person("github", "17", "*other@example.org"))
	refused(t, err, mismatch)
	_, err = accept(person("github", "17", "!mia@example.org")) // told, not proven
	refused(t, err, mismatch)
	g, err := accept(person("github", "17", "*other@example.org", "+mia@example.org"))
	refused(t, err, "")
	u := h.user(g.User.ID)
	if fmt.Sprint(providers(u)) != "[github]" || u.EmailConfirmedAt.IsZero() || u.Email != "mia@example.org" || !strings.Contains(string(u.AppMetadata), `"provider": "github"`) {
		t.Error(brief(u))
	}
	if !strings.HasSuffix(h.trail(), "invite_accepted") {
		t.Error(h.trail())
	}
	_, err = accept(person("github", "17", "*mia@example.org"))
	refused(t, err, "invite_not_found: Invite not found")
	// The identity is somebody else's already.
	l = invite("tom@example.org")
	_, err = accept(person("github", "17", "*tom@example.org"))
	refused(t, err, "identity_already_exists: Identity is already linked to another user")
	h.pass(2 * time.Hour)
	_, err = accept(person("github", "18", "*tom@example.org"))
	refused(t, err, "invite_not_found: Invite not found")
}

func TestExternal_pkce(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db, err := store.Open(t.Context(), store.Options{URL: url, MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	h := openOn(t, db)
	p := person("github", "17", "*mia@example.org")
	p.RefreshToken = "refresh"
	p.Challenge = account.Challenge{Challenge: s256(verifier).Challenge, Method: "s256"}
	out, err := h.Arrive(t.Context(), browser, p)
	if err != nil || out.Grant != nil || out.Code == "" {
		t.Fatalf("%+v, %v", out, err)
	}
	if u := h.user(out.User); !u.LastSignInAt.IsZero() {
		t.Errorf("signed in before the code was exchanged: %+v", u)
	}
	rows := dump(t, url, "flows")
	if strings.Contains(rows, "token of 17") || strings.Contains(rows, hex.EncodeToString([]byte("token of 17"))) || !strings.Contains(rows, "github") {
		t.Errorf("the provider's tokens lie open: %s", rows)
	}
	g, err := h.exchange(out.Code, verifier)
	refused(t, err, "")
	if left := dump(t, url, "flows"); left != "" {
		t.Errorf("left: %s", left)
	}
	if g.ProviderToken != "token of 17" || g.ProviderRefreshToken != "refresh" || h.caller(g).Claims.AMR[0].Method != "oauth" {
		t.Errorf("%+v", g)
	}
	_, err = h.exchange(out.Code, verifier)
	refused(t, err, "flow_state_not_found: invalid flow state, no valid flow state found")
	// A code lives 300 s.
	out, err = h.Arrive(t.Context(), browser, p)
	refused(t, err, "")
	h.pass(5*time.Minute + time.Second)
	_, err = h.exchange(out.Code, verifier)
	refused(t, err, "flow_state_expired: invalid flow state, flow state has expired")
}

// dump is a table as text.
func dump(t *testing.T, url, table string) string {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	var text string
	if err := c.QueryRow(t.Context(), `select coalesce(string_agg(x::text, ' '), '') from `+table+` x`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

// An ID token signs in once; one whose sign-in failed may come again.
func TestExternal_idTokenOnce(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.set(func(s *account.Settings) { s.DisableSignup = true })
	p := person("google", "g", "*mia@example.org")
	p.Native, p.Accepted = true, &provider.Accepted{Key: []byte("key"), Until: noon.Add(time.Hour)}
	_, err := h.arrive(p)
	refused(t, err, "signup_disabled: Signups not allowed for this instance")
	h.set(func(s *account.Settings) { s.DisableSignup = false })
	h.enters(p)
	_, err = h.arrive(p)
	if oauth, ok := errors.AsType[*account.OAuthError](err); !ok || oauth.Code != "invalid request" || oauth.Description != "Bad ID token" {
		t.Errorf("%v", err)
	}
}

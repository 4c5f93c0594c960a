package account_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/must"
)

func TestSignInPassword(t *testing.T) {
	t.Parallel()
	h := open(t)
	mia := h.confirmed("mia@example.org").User
	f := func(p account.Password, want string) {
		t.Helper()
		refused(t, must.ErrOf(h.SignInPassword(t.Context(), browser, p)), want)
	}
	const wrong = "invalid_credentials: Invalid login credentials"
	f(account.Password{Email: "mia@example.org", Phone: "1", Password: "sesame"},
		"validation_failed: Only an email address or phone number should be provided on login.")
	f(account.Password{Password: "sesame"}, "validation_failed: missing email or phone")
	f(account.Password{Email: "nobody@example.org", Password: "sesame"}, wrong)
	f(account.Password{Email: "no address", Password: "sesame"}, wrong)
	f(account.Password{Phone: "no number", Password: "sesame"}, wrong)
	f(account.Password{Email: "mia@example.org", Password: "wrong"}, wrong)
	f(account.Password{Email: "mia@example.org"}, wrong)
	f(account.Password{Email: "mia@example.org", Password: strings.Repeat("sesame", 20)}, wrong)
	f(account.Password{Email: "nobody@example.org", Password: strings.Repeat("\x00", 200)}, wrong)
	f(account.Password{Email: "mia@example.org\x00", Password: "sesame"}, wrong)
	f(account.Password{Email: "mia\xff@example.org", Password: "sesame"}, wrong)
	_, err := h.SignInPassword(t.Context(), flow.RequestInfo{Aud: "other"},
		account.Password{Email: "mia@example.org", Password: "sesame"})
	refused(t, err, wrong)

	h.pass(time.Minute)
	g, err := h.SignInPassword(t.Context(), browser, account.Password{Email: "MIA@example.org", Password: "sesame"})
	must.Succeed(t, err)
	if g.User.ID != mia.ID || g.User.LastSignInAt != h.now || len(g.User.Identities) != 1 ||
		g.ExpiresIn != 3600 || g.ExpiresAt != h.now.Add(time.Hour).Truncate(time.Second) || g.Weak != nil {
		t.Errorf("%+v", g)
	}
	c := h.caller(g)
	if c.Session.UserAgent != "browser" || c.Session.IP != browser.IP || c.Claims.AAL != "aal1" ||
		c.Claims.Role != "authenticated" || c.Claims.Issuer != h.s.Issuer || c.Claims.ID == "" {
		t.Errorf("%+v", c)
	}

	// Why an account cannot sign in is revealed to the owner of its password only.
	h.ban(mia, "1h")
	f(account.Password{Email: "mia@example.org", Password: "sesame"}, "user_banned: User is banned")
	f(account.Password{Email: "mia@example.org", Password: "wrong"}, wrong)
	h.ban(mia, "none")
	accepted(t, must.ErrOf(h.SignUp(t.Context(), browser, flow.SignUp{Email: "tom@example.org", Password: "sesame"})))
	f(account.Password{Email: "tom@example.org", Password: "sesame"}, "email_not_confirmed: Email not confirmed")
	f(account.Password{Email: "tom@example.org", Password: "wrong"}, wrong)
	accepted(t, must.ErrOf(h.SignUp(t.Context(), browser, flow.SignUp{Phone: "+49 151 1", Password: "sesame"})))
	f(account.Password{Phone: "+491511", Password: "sesame"}, "phone_not_confirmed: Phone not confirmed")

	h.set(func(s *flow.Settings) { s.Passwords.Policy = password.NewPolicy(10, "", false) })
	g, err = h.SignInPassword(t.Context(), browser, account.Password{Email: "mia@example.org", Password: "sesame"})
	if err != nil || g.Weak == nil || g.Weak.Reasons[0] != "length" {
		t.Errorf("%+v, %v", g.Weak, err)
	}
	h.set(func(s *flow.Settings) { s.Email.Enabled, s.Phone.Enabled = false, false })
	f(account.Password{Email: "mia@example.org", Password: "sesame"},
		"email_provider_disabled: Email logins are disabled")
	f(account.Password{Phone: "1", Password: "sesame"}, "phone_provider_disabled: Phone logins are disabled")
}

// cheaperHash is a hash of other costs than the accounts' own: bcrypt with cost 5.
func cheaperHash(t *testing.T, text string) string {
	t.Helper()
	params, _ := password.ParseParams("bcrypt:5")
	other := password.NewWorkers(password.Options{Workers: 1, Params: params})
	defer other.Close()
	hash, err := other.Hash(t.Context(), text)
	must.Succeed(t, err)
	return hash
}

// An imported hash, or one of other costs, is replaced at the next sign-in.
func TestSignInPassword_rehash(t *testing.T) {
	t.Parallel()
	h := open(t)
	hash := cheaperHash(t, "sesame")
	u := h.create(flow.Attributes{Email: ptr("mia@example.org"), PasswordHash: &hash, EmailConfirm: ptr(true)})
	refused(t, h.signIn("mia@example.org", "wrong"), "invalid_credentials: Invalid login credentials")
	if h.user(u.ID).PasswordHash != hash {
		t.Error("a wrong password replaced the hash")
	}
	accepted(t, h.signIn("mia@example.org", "sesame"))
	if got := h.user(u.ID).PasswordHash; got == hash || got[:7] != "$2a$04$" {
		t.Errorf("the hash is %s", got)
	}
	accepted(t, h.signIn("mia@example.org", "sesame"))
}

// Twenty wrong ones, then one each minute, whether or not there is such an account; the log is not flooded.
func TestSignInPassword_tries(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.confirmed("mia@example.org")
	for _, email := range []string{"mia@example.org", "nobody@example.org"} {
		for range 20 {
			refused(t, h.signIn(email, "wrong"), "invalid_credentials: Invalid login credentials")
		}
		err := h.signIn(email, "sesame")
		refused(t, err,
			"over_request_rate_limit: Too many wrong passwords for this address. Wait, or sign in with a link or a "+
				"code.")
		if r := err.(*refusal.Refusal); r.RetryAfter != time.Minute || r.Kind != refusal.KindLimited {
			t.Errorf("%+v", r)
		}
	}
	if want := "user_confirmation_requested user_signedup login_failed login_failed"; h.trail() != want {
		t.Errorf("trail %s", h.trail())
	}
	h.pass(time.Minute)
	accepted(t, h.signIn("mia@example.org", "sesame"))
	refused(t, h.signIn("mia@example.org", "wrong"), "invalid_credentials: Invalid login credentials")
	refused(t, h.signIn("mia@example.org", "sesame"),
		"over_request_rate_limit: Too many wrong passwords for this address. Wait, or sign in with a link or a code.")
	h.set(func(s *flow.Settings) { s.Passwords.TriesPerAccount = 0 })
	accepted(t, h.signIn("mia@example.org", "sesame"))
}

func TestSignInPassword_Statements(t *testing.T) {
	db, trips := storetest.Counting(t)
	h := openOn(t, db)
	mia := h.confirmed("mia@example.org").User
	accepted(t, must.ErrOf(h.SignUp(t.Context(), browser, flow.SignUp{Email: "tom@example.org", Password: "sesame"})))
	try := func(email, pass string) func() { return func() { h.signIn(email, pass) } }
	f := func(email, pass string) {
		t.Helper()
		try(email, pass)()
		if n := trips.During(try(email, pass)); n != 2 {
			t.Errorf("%s with %q takes %d round trips, want 2", email, pass, n)
		}
	}
	f("mia@example.org", "sesame")
	f("mia@example.org", "wrong")
	f("nobody@example.org", "sesame")
	f("tom@example.org", "sesame")
	f("tom@example.org", "wrong")
	h.ban(mia, "1h")
	f("mia@example.org", "sesame")
}

// ban bans a user, or lifts the ban.
func (h *house) ban(u store.User, duration string) {
	h.t.Helper()
	must.Succeed(h.t, must.ErrOf(h.AdminUpdate(h.t.Context(), browser, service, u.ID,
		flow.Attributes{BanDuration: &duration})))
}

// service is an administrator that is a service.
var service = flow.Actor{Role: "service_role"}

func (h *house) create(p flow.Attributes) store.User {
	h.t.Helper()
	u, err := h.AdminCreate(h.t.Context(), browser, service, p)
	must.Succeed(h.t, err)
	return u
}

func ptr[T any](v T) *T { return &v }

// With HideUnconfirmed a sign-up followed by a sign-in with the same password does not reveal whether the address was
// free: the same answers, the same rows, and the same number of tries.
func TestSignInPassword_hideUnconfirmed(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.HideUnconfirmed, s.Passwords.TriesPerAccount = true, 5 })
	h.confirmed("taken@example.org")
	h.create(flow.Attributes{Phone: ptr("491511"), PhoneConfirm: ptr(true), Password: ptr("something else")})
	f := func(who account.Password) (answers []string) {
		t.Helper()
		accepted(t, must.ErrOf(h.SignUp(t.Context(), browser,
			flow.SignUp{Email: who.Email, Phone: who.Phone, Password: "another"})))
		who.Password = "another"
		for range 7 {
			_, err := h.SignInPassword(t.Context(), browser, who)
			answers = append(answers, err.Error())
		}
		if !strings.HasPrefix(answers[4], "invalid_credentials") ||
			!strings.HasPrefix(answers[5], "over_request_rate_limit") {
			t.Errorf("%+v: %q", who, answers)
		}
		return answers
	}
	for _, pair := range [][2]account.Password{
		{{Email: "taken@example.org"}, {Email: "free@example.org"}}, {{Phone: "491511"}, {Phone: "491512"}},
	} {
		if taken, free := f(pair[0]), f(pair[1]); !slices.Equal(taken, free) {
			t.Errorf("%q\n%q", taken, free)
		}
	}
	if n := strings.Count(h.trail(), "login_failed"); n != 4 {
		t.Errorf("%d failed sign-ins are noted, want one for each address: %s", n, h.trail())
	}
	h.pass(5 * time.Minute)
	h.redeem("signup", h.newest("confirmation", "free@example.org").Hash)
	accepted(t, h.signIn("free@example.org", "another"))
	// A sign-in with the right password is answered with the ban.
	h.ban(h.confirmedAgain("free@example.org", "another").User, "1h")
	refused(t, h.signIn("free@example.org", "another"), "user_banned: User is banned")
}

// A caller with the right password and an unconfirmed address cannot fill the log either.
func TestSignInPassword_refusedAuditRate(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.signUp("mia@example.org", "sesame", "")
	for range 5 {
		refused(t, h.signIn("mia@example.org", "sesame"), "email_not_confirmed: Email not confirmed")
	}
	if n := strings.Count(h.trail(), "login_failed"); n != 1 {
		t.Errorf("%d rows", n)
	}
}

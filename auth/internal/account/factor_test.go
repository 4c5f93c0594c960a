package account_test

import (
	"bytes"
	"encoding/base32"
	"fmt"
	"strings"
	"testing"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/token"
	"gatehouse/auth/internal/totp"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// Mails report a factor's first proof and the end of a verified one, if they are enabled and the user has an address
// (9).
func TestFactors_notifications(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) {
		s.Email.Notify.FactorEnrolled, s.Email.Notify.FactorUnenrolled = true, true
	})
	count := func() string {
		n := map[string]int{}
		for _, l := range h.messages() {
			if strings.HasPrefix(l.Kind, "mfa_") && l.To == "mia@example.org" &&
				l.Vars.Email == l.To && l.Vars.FactorType == "totp" {
				n[l.Kind]++
			} else if strings.HasPrefix(l.Kind, "mfa_") {
				t.Errorf("%+v", l)
			}
		}
		return fmt.Sprint(n["mfa_factor_enrolled_notification"], n["mfa_factor_unenrolled_notification"])
	}
	want := func(what, n string) {
		t.Helper()
		if got := count(); got != n {
			t.Errorf("%s: %s enrolled and unenrolled, want %s", what, got, n)
		}
	}
	g := h.confirmed("mia@example.org")
	e := h.app(g, "one")
	want("enrolled", "0 0")
	g = h.verified(g, e)
	want("verified", "1 0")
	g = h.verified(g, e)
	want("verified again", "1 0")
	left := h.app(g, "two")
	accepted(t, h.UnenrollFactor(t.Context(), browser, h.caller(g), left.Factor.ID))
	want("an unverified one goes", "1 0")
	accepted(t, h.UnenrollFactor(t.Context(), browser, h.caller(g), e.Factor.ID))
	want("the verified one goes", "1 1")
	e = h.app(g, "three")
	g = h.verified(g, e)
	by := flow.Actor{Role: "service_role"}
	if _, err := h.AdminDeleteFactor(t.Context(), browser, by, g.User.ID, e.Factor.ID); err != nil {
		t.Error(err)
	}
	want("an administrator takes it", "2 2")
	h.set(func(s *flow.Settings) {
		s.Email.Notify.FactorEnrolled, s.Email.Notify.FactorUnenrolled = false, false
	})
	e = h.app(g, "four")
	g = h.verified(g, e)
	accepted(t, h.UnenrollFactor(t.Context(), browser, h.caller(g), e.Factor.ID))
	want("off", "2 2")
	// Out of budget: the factor counts all the same.
	h.set(func(s *flow.Settings) { s.Email.Notify.FactorEnrolled = true; s.Email.Sent.N = 0 })
	e = h.app(g, "five")
	if g = h.verified(g, e); h.level(g) != "aal2 totp otp" {
		t.Error(h.level(g))
	}
	want("out of budget", "2 2")
	// No address to notify.
	h.set(func(s *flow.Settings) { s.Email.Sent.N = 1000 })
	number := "4915112345678"
	must.Succeed(t, must.ErrOf(h.AdminCreate(t.Context(), browser, by,
		flow.Attributes{Phone: &number, PhoneConfirm: new(true), Password: new("sesame")})))
	p, err := h.SignInPassword(t.Context(), browser, account.Password{Phone: number, Password: "sesame"})
	accepted(t, err)
	e = h.app(p, "")
	if !strings.Contains(e.URI, ":"+number+"?") {
		t.Error(e.URI)
	}
	h.verified(p, e)
	want("no address", "2 2")
}

// What the database holds is of no use without the root key; what an earlier root key sealed is sealed again when it is
// used.
func TestFactors_atRest(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db, err := store.Open(t.Context(), store.Options{URL: url, Settings: store.Settings{MaxConns: 8}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	h := openOn(t, db)
	g := h.confirmed("mia@example.org")
	e := h.app(g, "app")
	p := h.phone(g, "4915112345678")
	h.challenge(g, p)
	code := h.newest("mfa", "4915112345678").Code
	key, err := base32.StdEncoding.DecodeString(e.Secret)
	must.Succeed(t, err)
	c := testdb.Connect(t, url)
	var rows, sealed []byte
	const all = `select convert_to(coalesce(string_agg(f::text, ' '), '') || coalesce((select string_agg(c::text, ' ') from challenges c), ''), 'UTF8') from factors f`
	must.Succeed(t, c.QueryRow(t.Context(), all).Scan(&rows))
	for name, text := range map[string]string{"key": e.Secret, "key in hex": fmt.Sprintf("%x", key), "code": code} {
		if bytes.Contains(rows, []byte(text)) {
			t.Errorf("the %s lies in the database", name)
		}
	}
	// Another root key, then without the one of before.
	for _, root := range []*secret.Root{secret.NewRoot("a newer one", "root key"), secret.NewRoot("a newer one")} {
		h.use(flow.New(flow.Options{
			DB: db, Keys: h.keys, Refresh: token.NewRefreshCodec(root.Keys(secret.Refresh)), Root: root,
			Passwords: workers(),
			Now:       h.clock,
		}, h.s))
		g = h.verified(g, e)
	}
	// A key is bound to its factor.
	h.pass(totp.Period)
	must.Succeed(t, c.QueryRow(
		t.Context(), "select secret from factors where id = $1", e.Factor.ID).Scan(&sealed))
	other := h.app(g, "other")
	must.Succeed(t, must.ErrOf(c.Exec(t.Context(), "update factors set secret = $2 where id = $1", other.Factor.ID,
		sealed)))
	_, err = h.answer(g, other, h.challenge(g, other), h.code(e)) // a key moved from row to row
	refused(t, err, "unexpected_failure: The key of this factor cannot be read")
}

// A new password voids the codes that were sent, whether the user or an administrator sets it.
func TestFactors_newPassword(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	p := h.phone(g, "4915112345678")
	const gone = "mfa_factor_not_found: MFA factor with the provided challenge ID not found"
	challenge := h.challenge(g, p)
	code := h.newest("mfa", "4915112345678").Code
	must.Succeed(t, must.ErrOf(h.UpdateUser(t.Context(), browser, h.caller(g),
		flow.UserUpdate{Password: new("sesame 2")})))
	refused(t, must.ErrOf(h.answer(g, p, challenge, code)), gone)
	challenge = h.challenge(g, p)
	code = h.newest("mfa", "4915112345678").Code
	must.Succeed(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, flow.Actor{Role: "service_role"}, g.User.ID,
		flow.Attributes{Password: new("sesame")})))
	g = h.signedIn("mia@example.org")
	refused(t, must.ErrOf(h.answer(g, p, challenge, code)), gone)
}

// A session that goes on in another one, by linking, and a code that waits lose the level with the factor too.
func TestFactors_linkedSessions(t *testing.T) {
	t.Parallel()
	h := open(t, linking, func(s *flow.Settings) { s.External.LinkingAAL2 = true })
	g := h.confirmed("mia@example.org")
	e := h.app(g, "")
	g = h.verified(g, e)
	linked := h.link(g, person("github", "17", "!else@example.org"))
	if got := h.level(linked); got != "aal2 oauth totp otp" {
		t.Error(got)
	}
	p := person("gitlab", "18", "!else@example.org")
	p.Challenge = flow.Challenge{Challenge: s256(verifier).Challenge, Method: "s256"}
	c := h.caller(g)
	p.LinkTo = &c
	out, err := h.Arrive(t.Context(), browser, p)
	accepted(t, err)
	accepted(t, h.UnenrollFactor(t.Context(), browser, h.caller(linked), e.Factor.ID))
	again, err := h.Refresh(t.Context(), browser, linked.RefreshToken)
	if accepted(t, err); h.level(again) != "aal1 oauth otp" {
		t.Error(h.level(again))
	}
	waited, err := h.exchange(out.Code, verifier)
	if accepted(t, err); h.level(waited) != "aal1 oauth" {
		t.Error(h.level(waited))
	}
	// The caller's state at the start of the OAuth flow is checked again at the callback.
	low := h.signedIn("mia@example.org")
	caller := h.caller(low)
	e = h.app(again, "next")
	h.verified(again, e)
	p = person("gitlab", "19", "!else@example.org")
	p.LinkTo = &caller
	refused(t, must.ErrOf(h.arrive(p)), "session_not_found: Session from session_id claim in JWT does not exist")
	low = h.signedIn("mia@example.org")
	caller = h.caller(low)
	p.LinkTo = &caller
	_, err = h.arrive(p)
	refused(t, err, "insufficient_aal: AAL2 session is required to link or unlink an identity when MFA is enabled.")
	h.set(func(s *flow.Settings) { s.External.LinkingAAL2 = false })
	accepted(t, must.ErrOf(h.arrive(p)))
}

// A caller whose session ended during the call changes nothing.
func TestFactors_sessionEndedMeanwhile(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	e := h.app(g, "")
	challenge, caller, code := h.challenge(g, e), h.caller(g), h.code(e)
	accepted(t, h.SignOut(t.Context(), browser, g.AccessToken, "global", true))
	const gone = "session_not_found: Session from session_id claim in JWT does not exist"
	refused(t, must.ErrOf(h.VerifyFactor(t.Context(), browser, caller,
		flow.FactorAnswer{Factor: e.Factor.ID, Challenge: challenge, Code: code})), gone)
	_, err := h.EnrollFactor(t.Context(), browser, caller, factor.Enrolment{Kind: "totp", FriendlyName: "x"})
	refused(t, err, gone)
	refused(t, h.UnenrollFactor(t.Context(), browser, caller, e.Factor.ID), gone)
	g = h.signedIn("mia@example.org")
	caller = h.caller(g)
	by := flow.Actor{Role: "service_role"}
	must.Succeed(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, by, g.User.ID,
		flow.Attributes{BanDuration: new("1h")})))
	refused(t, must.ErrOf(h.VerifyFactor(t.Context(), browser, caller,
		flow.FactorAnswer{Factor: e.Factor.ID, Challenge: challenge, Code: code})), "user_banned: User is banned")
	must.Succeed(t, must.ErrOf(h.AdminUpdate(t.Context(), browser, by, g.User.ID,
		flow.Attributes{BanDuration: new("none")})))
	// The factor went.
	must.Succeed(t, must.ErrOf(h.AdminDeleteFactor(t.Context(), browser, by, g.User.ID, e.Factor.ID)))
	const noFactor = "mfa_factor_not_found: Factor not found"
	_, err = h.VerifyFactor(t.Context(), browser, caller,
		flow.FactorAnswer{Factor: e.Factor.ID, Challenge: challenge, Code: code})
	refused(t, err, "mfa_factor_not_found: Factor not found")
	_, _, err = h.ChallengeFactor(t.Context(), browser, caller, e.Factor.ID, "")
	refused(t, err, noFactor)
	if trail := h.trail(); !strings.HasSuffix(trail, "factor_deleted") {
		t.Errorf("a challenge that was refused left %s", trail)
	}
	refused(t, h.UnenrollFactor(t.Context(), browser, caller, e.Factor.ID), noFactor)
	// The user went.
	must.Succeed(t, h.AdminDelete(t.Context(), browser, by, g.User.ID, false))
	_, err = h.EnrollFactor(t.Context(), browser, caller, factor.Enrolment{Kind: "totp"})
	refused(t, err, "user_not_found: User from sub claim in JWT does not exist")
}

// A recovery is a first factor, no more.
func TestFactors_recovery(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	h.verified(g, h.app(g, ""))
	must.Succeed(t, h.Recover(t.Context(), browser, flow.Recover{Email: "mia@example.org"}))
	g = h.redeem("recovery", h.newest("recovery", "mia@example.org").Hash)
	if got := h.level(g); got != "aal1 otp" || len(g.User.Factors) != 1 {
		t.Error(got, g.User.Factors)
	}
	_, err := h.UpdateUser(t.Context(), browser, h.caller(g), flow.UserUpdate{Password: new("sesame 2")})
	refused(t, err, "insufficient_aal: AAL2 session is required to update email or password when MFA is enabled.")
}

// Of many concurrent enrolments as many succeed as the limit allows, and one for each name.
func TestEnrollFactor_atOnce(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Factors.MaxEnrolled = 3 })
	caller := h.caller(h.confirmed("mia@example.org"))
	await.Together(16, func(i int) {
		_, err := h.EnrollFactor(t.Context(), browser, caller,
			factor.Enrolment{Kind: "totp", FriendlyName: fmt.Sprint(i % 8)})
		if err != nil && kindOf(err) != refusal.KindUnprocessable {
			t.Error(err)
		}
	})
	names := map[string]bool{}
	for _, f := range h.user(caller.User.ID).Factors {
		names[f.FriendlyName] = true
	}
	if n := len(h.user(caller.User.ID).Factors); n != 3 || len(names) != 3 {
		t.Errorf("%d factors, %v", n, names)
	}
}

package account_test

import (
	"bytes"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/token"
	"gatehouse/auth/internal/totp"
)

func (h *house) enroll(g account.Grant, p account.Enrolment) account.Enrolled {
	h.t.Helper()
	h.pass(time.Second)
	e, err := h.EnrollFactor(h.t.Context(), browser, h.caller(g), p)
	if err != nil {
		h.t.Fatal(err)
	}
	return e
}

func (h *house) app(g account.Grant, name string) account.Enrolled {
	h.t.Helper()
	return h.enroll(g, account.Enrolment{Kind: "totp", FriendlyName: name})
}

func (h *house) phone(g account.Grant, number string) account.Enrolled {
	h.t.Helper()
	return h.enroll(g, account.Enrolment{Kind: "phone", FriendlyName: number, Phone: number})
}

func (h *house) challenge(g account.Grant, e account.Enrolled) uuid.UUID {
	h.t.Helper()
	h.pass(time.Second)
	ch, _, err := h.ChallengeFactor(h.t.Context(), browser, h.caller(g), e.Factor.ID, "")
	if err != nil {
		h.t.Fatal(err)
	}
	return ch.ID
}

// code is what the app shows now.
func (h *house) code(e account.Enrolled) string {
	h.t.Helper()
	key, err := base32.StdEncoding.DecodeString(e.Secret)
	if err != nil {
		h.t.Fatal(err)
	}
	return totp.Code(key, totp.Step(h.clock()))
}

func (h *house) answer(g account.Grant, e account.Enrolled, challenge uuid.UUID, code string) (account.Grant, error) {
	h.t.Helper()
	return h.VerifyFactor(h.t.Context(), browser, h.caller(g), e.Factor.ID, challenge, code)
}

// verified answers a new challenge with the right code.
func (h *house) verified(g account.Grant, e account.Enrolled) account.Grant {
	h.t.Helper()
	h.pass(totp.Period) // another code
	challenge := h.challenge(g, e)
	code := ""
	if e.Factor.Kind == store.FactorTOTP {
		code = h.code(e)
	} else {
		code = h.newest("mfa", e.Factor.Phone).Code
	}
	up, err := h.answer(g, e, challenge, code)
	if err != nil {
		h.t.Fatal(err)
	}
	return up
}

func (h *house) signedIn(email string) account.Grant {
	h.t.Helper()
	g, err := h.SignInPassword(h.t.Context(), browser, account.Password{Email: email, Password: "sesame"})
	if err != nil {
		h.t.Fatal(err)
	}
	return g
}

// level are a grant's aal and amr methods, newest first.
func (h *house) level(g account.Grant) string {
	h.t.Helper()
	c := h.caller(g).Claims
	list := []string{c.AAL}
	for _, m := range c.AMR {
		list = append(list, m.Method)
	}
	return strings.Join(list, " ")
}

const wrongTOTP = "mfa_verification_failed: Invalid TOTP code entered"

// Wrong answers that come at once make no more tries than those that come one by one (11.5).
func TestVerifyFactor_manyGuesses(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	e := h.app(g, "")
	challenges := []uuid.UUID{h.challenge(g, e), h.challenge(g, e), h.challenge(g, e)}
	guess, caller := wrong(h.code(e)), h.caller(g)
	var mu sync.Mutex
	var wg sync.WaitGroup
	got := map[string]int{}
	byChallenge := map[uuid.UUID]int{}
	for range 10 {
		for _, ch := range challenges {
			wg.Go(func() {
				_, err := h.VerifyFactor(t.Context(), browser, caller, e.Factor.ID, ch, guess)
				r, ok := err.(*account.Refusal)
				mu.Lock()
				defer mu.Unlock()
				if !ok {
					t.Error(err)
					return
				}
				if got[r.Code]++; r.Code == "mfa_verification_failed" {
					byChallenge[ch]++
				}
			})
		}
	}
	wg.Wait()
	if got["mfa_verification_failed"] != 10 || got["mfa_verification_failed"]+got["mfa_challenge_expired"]+got["over_request_rate_limit"] != 30 {
		t.Error(got)
	}
	for ch, n := range byChallenge {
		if n > 5 {
			t.Errorf("%d tries of %s", n, ch)
		}
	}
}

// A code that is right for several challenges at once counts once (11.5, 11.8).
func TestVerifyFactor_atOnce(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	e := h.app(g, "")
	var challenges []uuid.UUID
	for range 8 {
		challenges = append(challenges, h.challenge(g, e))
	}
	code, caller := h.code(e), h.caller(g)
	var mu sync.Mutex
	var wg sync.WaitGroup
	var grants []account.Grant
	for _, ch := range challenges {
		wg.Go(func() {
			got, err := h.VerifyFactor(t.Context(), browser, caller, e.Factor.ID, ch, code)
			if err == nil {
				mu.Lock()
				grants = append(grants, got)
				mu.Unlock()
				return
			}
			refused(t, err, wrongTOTP)
		})
	}
	wg.Wait()
	if len(grants) != 1 || h.level(grants[0]) != "aal2 totp otp" {
		t.Fatalf("%d grants", len(grants))
	}
	if _, err := h.Refresh(t.Context(), browser, grants[0].RefreshToken); err != nil {
		t.Error(err)
	}
}

// 2025-12: a refresh token of before the verification must yield no session of aal2; also not inside the reuse
// interval, and not when it is used at the same moment.
func TestVerifyFactor_oldRefreshTokens(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *account.Settings) { s.Sessions.ReuseInterval = time.Hour })
	g := h.confirmed("mia@example.org")
	e := h.app(g, "")
	const unknown = "refresh_token_not_found: Invalid Refresh Token: Refresh Token Not Found"
	for range 5 {
		h.pass(totp.Period)
		g = h.signedIn("mia@example.org")
		first, err := h.Refresh(t.Context(), browser, g.RefreshToken)
		refused(t, err, "")
		challenge, code, caller := h.challenge(first, e), h.code(e), h.caller(first)
		var wg sync.WaitGroup
		var up account.Grant
		var upErr error
		wg.Go(func() { up, upErr = h.VerifyFactor(t.Context(), browser, caller, e.Factor.ID, challenge, code) })
		var late account.Grant
		wg.Go(func() { late, _ = h.Refresh(t.Context(), browser, first.RefreshToken) })
		wg.Wait()
		refused(t, upErr, "")
		for _, old := range []string{g.RefreshToken, first.RefreshToken, late.RefreshToken} {
			if old == "" {
				continue
			}
			_, err := h.Refresh(t.Context(), browser, old)
			refused(t, err, unknown)
		}
		if late.AccessToken != "" {
			var c token.Claims
			if _, err := h.keys.Load().Verify(&c, late.AccessToken, h.clock()); err != nil || c.AAL != "aal1" {
				t.Error(c.AAL, err)
			}
		}
		if up, err = h.Refresh(t.Context(), browser, up.RefreshToken); err != nil || h.level(up) != "aal2 totp password" {
			t.Error(err)
		}
	}
}

// SESSIONS_ALLOW_LOW_AAL bounds sessions below the user's level, in the token itself too (5.2, 11.6).
func TestAllowLowAAL(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *account.Settings) { s.Sessions.AllowLowAAL = 10 * time.Minute })
	g := h.confirmed("mia@example.org")
	if g.ExpiresIn != 3600 {
		t.Error(g.ExpiresIn)
	}
	h.pass(time.Hour / 2)
	e := h.app(g, "")
	h.caller(g)
	up := h.verified(g, e)
	if up.ExpiresIn != 3600 {
		t.Errorf("aal2 for %d s", up.ExpiresIn)
	}
	low := h.signedIn("mia@example.org")
	if low.ExpiresIn != 600 {
		t.Errorf("aal1 for %d s", low.ExpiresIn)
	}
	h.pass(4 * time.Minute)
	low, err := h.Refresh(t.Context(), browser, low.RefreshToken)
	refused(t, err, "")
	if low.ExpiresIn != 360 {
		t.Errorf("aal1 for %d s after 4 min", low.ExpiresIn)
	}
	h.pass(6*time.Minute + time.Second)
	_, err = h.Refresh(t.Context(), browser, low.RefreshToken)
	refused(t, err, "session_expired: Invalid Refresh Token: Session Expired (Low AAL: User Needs MFA Verification)")
	// A token that was made before the setting lasts no longer here.
	h.set(func(s *account.Settings) { s.Sessions.AllowLowAAL = 0 })
	loose := h.signedIn("mia@example.org")
	h.set(func(s *account.Settings) { s.Sessions.AllowLowAAL = 10 * time.Minute })
	h.caller(loose)
	h.pass(10*time.Minute + time.Second)
	_, err = h.Authenticate(t.Context(), loose.AccessToken, "", account.ReadUser)
	refused(t, err, "session_expired: Session is no longer valid")
	if _, err = h.Refresh(t.Context(), browser, up.RefreshToken); err != nil {
		t.Error(err)
	}
}

// Mails tell of a factor's first proof and of a verified one's end, if they are on and there is an address (9).
func TestFactors_notices(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *account.Settings) { s.Email.NotifyFactorEnrolled, s.Email.NotifyFactorUnenrolled = true, true })
	count := func() string {
		n := map[string]int{}
		for _, l := range h.letters() {
			if strings.HasPrefix(l.Kind, "mfa_") && l.To == "mia@example.org" && l.Vars.Email == l.To && l.Vars.FactorType == "totp" {
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
	refused(t, h.UnenrollFactor(t.Context(), browser, h.caller(g), left.Factor.ID), "")
	want("an unverified one goes", "1 0")
	refused(t, h.UnenrollFactor(t.Context(), browser, h.caller(g), e.Factor.ID), "")
	want("the verified one goes", "1 1")
	e = h.app(g, "three")
	g = h.verified(g, e)
	by := account.Actor{Role: "service_role"}
	if _, err := h.AdminDeleteFactor(t.Context(), browser, by, g.User.ID, e.Factor.ID); err != nil {
		t.Error(err)
	}
	want("an administrator takes it", "2 2")
	h.set(func(s *account.Settings) { s.Email.NotifyFactorEnrolled, s.Email.NotifyFactorUnenrolled = false, false })
	e = h.app(g, "four")
	g = h.verified(g, e)
	refused(t, h.UnenrollFactor(t.Context(), browser, h.caller(g), e.Factor.ID), "")
	want("off", "2 2")
	// Out of budget: the factor counts all the same.
	h.set(func(s *account.Settings) { s.Email.NotifyFactorEnrolled = true; s.Email.Sent.N = 0 })
	e = h.app(g, "five")
	if g = h.verified(g, e); h.level(g) != "aal2 totp otp" {
		t.Error(h.level(g))
	}
	want("out of budget", "2 2")
	// Nobody to tell.
	h.set(func(s *account.Settings) { s.Email.Sent.N = 1000 })
	number := "4915112345678"
	if _, err := h.AdminCreate(t.Context(), browser, by, account.Attributes{Phone: &number, PhoneConfirm: new(true), Password: new("sesame")}); err != nil {
		t.Fatal(err)
	}
	p, err := h.SignInPassword(t.Context(), browser, account.Password{Phone: number, Password: "sesame"})
	refused(t, err, "")
	e = h.app(p, "")
	if !strings.Contains(e.URI, ":"+number+"?") {
		t.Error(e.URI)
	}
	h.verified(p, e)
	want("no address", "2 2")
}

// What the database holds is of no use without the root key; what an earlier root key sealed is sealed anew
// when it is used.
func TestFactors_atRest(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	db, err := store.Open(t.Context(), store.Options{URL: url, MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	h := openOn(t, db)
	g := h.confirmed("mia@example.org")
	e := h.app(g, "app")
	p := h.phone(g, "4915112345678")
	h.challenge(g, p)
	code := h.newest("mfa", "4915112345678").Code
	key, err := base32.StdEncoding.DecodeString(e.Secret)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	var rows, sealed []byte
	const all = `select convert_to(coalesce(string_agg(f::text, ' '), '') || coalesce((select string_agg(c::text, ' ') from challenges c), ''), 'UTF8') from factors f`
	if err := c.QueryRow(t.Context(), all).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"key": e.Secret, "key in hex": fmt.Sprintf("%x", key), "code": code} {
		if bytes.Contains(rows, []byte(text)) {
			t.Errorf("the %s lies in the database", name)
		}
	}
	// Another root key, then without the one of before.
	for _, root := range []*secret.Root{secret.NewRoot("a newer one", "root key"), secret.NewRoot("a newer one")} {
		h.Accounts = account.New(account.Options{
			DB: db, Keys: h.keys, Refresh: token.NewRefreshCodec(root.Keys(secret.Refresh)), Root: root, Passwords: workers(), Now: h.clock,
		}, h.s)
		g = h.verified(g, e)
	}
	// A key is bound to its factor.
	h.pass(totp.Period)
	if err := c.QueryRow(t.Context(), "select secret from factors where id = $1", e.Factor.ID).Scan(&sealed); err != nil {
		t.Fatal(err)
	}
	other := h.app(g, "other")
	if _, err := c.Exec(t.Context(), "update factors set secret = $2 where id = $1", other.Factor.ID, sealed); err != nil {
		t.Fatal(err)
	}
	_, err = h.answer(g, other, h.challenge(g, other), h.code(e)) // a key moved from row to row
	refused(t, err, "unexpected_failure: The key of this factor cannot be read")
}

// A new password voids the codes that were sent, whoever sets it (11.5).
func TestFactors_newPassword(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	p := h.phone(g, "4915112345678")
	const gone = "mfa_factor_not_found: MFA factor with the provided challenge ID not found"
	challenge := h.challenge(g, p)
	code := h.newest("mfa", "4915112345678").Code
	if _, err := h.UpdateUser(t.Context(), browser, h.caller(g), account.UserUpdate{Password: new("sesame 2")}); err != nil {
		t.Fatal(err)
	}
	_, err := h.answer(g, p, challenge, code)
	refused(t, err, gone)
	challenge = h.challenge(g, p)
	code = h.newest("mfa", "4915112345678").Code
	if _, err := h.AdminUpdate(t.Context(), browser, account.Actor{Role: "service_role"}, g.User.ID, account.Attributes{Password: new("sesame")}); err != nil {
		t.Fatal(err)
	}
	g = h.signedIn("mia@example.org")
	_, err = h.answer(g, p, challenge, code)
	refused(t, err, gone)
}

// A session that goes on in another one, by linking, and a code that waits lose the level with the factor too.
func TestFactors_linkedSessions(t *testing.T) {
	t.Parallel()
	h := open(t, linking, func(s *account.Settings) { s.External.LinkingAAL2 = true })
	g := h.confirmed("mia@example.org")
	e := h.app(g, "")
	g = h.verified(g, e)
	linked := h.link(g, person("github", "17", "!else@example.org"))
	if got := h.level(linked); got != "aal2 oauth totp otp" {
		t.Error(got)
	}
	p := person("gitlab", "18", "!else@example.org")
	p.Challenge = account.Challenge{Challenge: s256(verifier).Challenge, Method: "s256"}
	c := h.caller(g)
	p.LinkTo = &c
	out, err := h.Arrive(t.Context(), browser, p)
	refused(t, err, "")
	refused(t, h.UnenrollFactor(t.Context(), browser, h.caller(linked), e.Factor.ID), "")
	again, err := h.Refresh(t.Context(), browser, linked.RefreshToken)
	if refused(t, err, ""); h.level(again) != "aal1 oauth otp" {
		t.Error(h.level(again))
	}
	waited, err := h.exchange(out.Code, verifier)
	if refused(t, err, ""); h.level(waited) != "aal1 oauth" {
		t.Error(h.level(waited))
	}
	// What the caller was when he set out for the provider is looked at again when he is back.
	low := h.signedIn("mia@example.org")
	caller := h.caller(low)
	e = h.app(again, "next")
	h.verified(again, e)
	p = person("gitlab", "19", "!else@example.org")
	p.LinkTo = &caller
	_, err = h.arrive(p)
	refused(t, err, "session_not_found: Session from session_id claim in JWT does not exist")
	low = h.signedIn("mia@example.org")
	caller = h.caller(low)
	p.LinkTo = &caller
	_, err = h.arrive(p)
	refused(t, err, "insufficient_aal: AAL2 session is required to link or unlink an identity when MFA is enabled.")
	h.set(func(s *account.Settings) { s.External.LinkingAAL2 = false })
	_, err = h.arrive(p)
	refused(t, err, "")
}

// An entry of a session's methods keeps all that stands in it: a session that a change of address opened does
// not become one that a mail opened.
func TestVerifyFactor_keepsTheMark(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *account.Settings) {
		s.Email.SecureChange, s.Passwords.RequireCurrent = false, true
	})
	g := h.confirmed("mia@example.org")
	if _, err := h.UpdateUser(t.Context(), browser, h.caller(g), account.UserUpdate{Email: "new@example.org"}); err != nil {
		t.Fatal(err)
	}
	g = h.redeem("email_change", h.newest("email_change", "new@example.org").Hash)
	mark := func(g account.Grant) string {
		t.Helper()
		var list []token.AMR
		if err := json.Unmarshal(h.caller(g).Session.AMR, &list); err != nil {
			t.Fatal(err)
		}
		return list[len(list)-1].Method + " " + list[len(list)-1].Provider
	}
	want := mark(g)
	if want == "otp " {
		t.Fatal("no mark")
	}
	e := h.app(g, "")
	g = h.verified(g, e)
	g = h.verified(g, e)
	if got := mark(g); got != want || h.level(g) != "aal2 totp otp" {
		t.Errorf("%q, want %q; %s", got, want, h.level(g))
	}
	_, err := h.UpdateUser(t.Context(), browser, h.caller(g), account.UserUpdate{Password: new("sesame 2")})
	refused(t, err, "current_password_required: Current password required when setting new password.")
	refused(t, h.UnenrollFactor(t.Context(), browser, h.caller(g), e.Factor.ID), "")
	if got := mark(g); got != want {
		t.Errorf("%q after the factor went, want %q", got, want)
	}
}

// Whoever was let in and put out meanwhile changes nothing.
func TestFactors_putOut(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	e := h.app(g, "")
	challenge, caller, code := h.challenge(g, e), h.caller(g), h.code(e)
	refused(t, h.SignOut(t.Context(), browser, g.AccessToken, "global", true), "")
	const gone = "session_not_found: Session from session_id claim in JWT does not exist"
	_, err := h.VerifyFactor(t.Context(), browser, caller, e.Factor.ID, challenge, code)
	refused(t, err, gone)
	_, err = h.EnrollFactor(t.Context(), browser, caller, account.Enrolment{Kind: "totp", FriendlyName: "x"})
	refused(t, err, gone)
	refused(t, h.UnenrollFactor(t.Context(), browser, caller, e.Factor.ID), gone)
	g = h.signedIn("mia@example.org")
	caller = h.caller(g)
	by := account.Actor{Role: "service_role"}
	if _, err := h.AdminUpdate(t.Context(), browser, by, g.User.ID, account.Attributes{BanDuration: new("1h")}); err != nil {
		t.Fatal(err)
	}
	_, err = h.VerifyFactor(t.Context(), browser, caller, e.Factor.ID, challenge, code)
	refused(t, err, "user_banned: User is banned")
	if _, err := h.AdminUpdate(t.Context(), browser, by, g.User.ID, account.Attributes{BanDuration: new("none")}); err != nil {
		t.Fatal(err)
	}
	// The factor went.
	if _, err := h.AdminDeleteFactor(t.Context(), browser, by, g.User.ID, e.Factor.ID); err != nil {
		t.Fatal(err)
	}
	const noFactor = "mfa_factor_not_found: Factor not found"
	_, err = h.VerifyFactor(t.Context(), browser, caller, e.Factor.ID, challenge, code)
	refused(t, err, "mfa_factor_not_found: Factor not found")
	_, _, err = h.ChallengeFactor(t.Context(), browser, caller, e.Factor.ID, "")
	refused(t, err, noFactor)
	refused(t, h.UnenrollFactor(t.Context(), browser, caller, e.Factor.ID), noFactor)
	// The user went.
	if err := h.AdminDelete(t.Context(), browser, by, g.User.ID, false); err != nil {
		t.Fatal(err)
	}
	_, err = h.EnrollFactor(t.Context(), browser, caller, account.Enrolment{Kind: "totp"})
	refused(t, err, "user_not_found: User from sub claim in JWT does not exist")
}

// A recovery is a first factor, no more (5.10).
func TestFactors_recovery(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	h.verified(g, h.app(g, ""))
	if err := h.Recover(t.Context(), browser, account.Recover{Email: "mia@example.org"}); err != nil {
		t.Fatal(err)
	}
	g = h.redeem("recovery", h.newest("recovery", "mia@example.org").Hash)
	if got := h.level(g); got != "aal1 otp" || len(g.User.Factors) != 1 {
		t.Error(got, g.User.Factors)
	}
	_, err := h.UpdateUser(t.Context(), browser, h.caller(g), account.UserUpdate{Password: new("sesame 2")})
	refused(t, err, "insufficient_aal: AAL2 session is required to update email or password when MFA is enabled.")
}

// Of many enrolments at once as many get through as there is room for, and one for each name.
func TestEnrollFactor_atOnce(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *account.Settings) { s.Factors.MaxEnrolled = 3 })
	caller := h.caller(h.confirmed("mia@example.org"))
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			_, err := h.EnrollFactor(t.Context(), browser, caller, account.Enrolment{Kind: "totp", FriendlyName: fmt.Sprint(i % 8)})
			if err != nil && kindOf(err) != account.Unprocessable {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	names := map[string]bool{}
	for _, f := range h.user(caller.User.ID).Factors {
		names[f.FriendlyName] = true
	}
	if n := len(h.user(caller.User.ID).Factors); n != 3 || len(names) != 3 {
		t.Errorf("%d factors, %v", n, names)
	}
}

package account_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

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
)

const (
	wrongRecovery = "mfa_verification_failed: Invalid recovery code entered"
	lockedOut     = "mfa_recovery_codes_locked: Too many failed verification attempts, try again later"
	noCodes       = "mfa_factor_not_found: The user has not enrolled recovery codes"
	soleFactor    = "mfa_recovery_codes_sole_factor: Recovery codes cannot be the only verified factor. Please enroll " +
		"another factor before unenrolling this one or delete your recovery codes."
	needsOther = "mfa_recovery_codes_sole_factor: At least one other verified factor is required to generate recovery codes"
)

func recoveryCodes(s *flow.Settings) {
	s.Factors.RecoveryCodes = flow.FactorSwitches{Enroll: true, Verify: true}
}

// generated gives a user at aal2 recovery codes.
func (h *house) generated(g flow.Grant) factor.RecoveryCodes {
	h.t.Helper()
	codes, err := h.GenerateRecoveryCodes(h.t.Context(), browser, h.caller(g), "")
	must.Succeed(h.t, err)
	return codes
}

func (h *house) recover(g flow.Grant, code string) (flow.Grant, error) {
	h.t.Helper()
	return h.VerifyRecoveryCode(h.t.Context(), browser, h.caller(g), code)
}

func (h *house) remaining(g flow.Grant) int {
	h.t.Helper()
	left, err := h.RecoveryCodes(h.t.Context(), h.caller(g))
	must.Succeed(h.t, err)
	return left.Remaining
}

// From the first codes over others in their place to none: what each raises, ends, counts, mails and leaves in the log.
func TestRecoveryCodes_life(t *testing.T) {
	t.Parallel()
	h := open(t, recoveryCodes, func(s *flow.Settings) {
		s.Email.Notify.FactorEnrolled, s.Email.Notify.FactorUnenrolled = true, true
	})
	ctx, low := t.Context(), h.confirmed("mia@example.org")
	refused(t, must.ErrOf(h.RecoveryCodes(ctx, h.caller(low))), noCodes)
	_, err := h.GenerateRecoveryCodes(ctx, browser, h.caller(low), "")
	refused(t, err, "insufficient_aal: AAL2 required to generate recovery codes")
	_, err = h.RegenerateRecoveryCodes(ctx, browser, h.caller(low))
	refused(t, err, "insufficient_aal: AAL2 required to regenerate recovery codes")
	_, err = h.DeleteRecoveryCodes(ctx, browser, h.caller(low))
	refused(t, err, "insufficient_aal: AAL2 required to delete recovery codes")
	app := h.app(low, "app")
	g := h.verified(low, app)
	refused(t, must.ErrOf(h.RegenerateRecoveryCodes(ctx, browser, h.caller(g))), noCodes)
	refused(t, must.ErrOf(h.DeleteRecoveryCodes(ctx, browser, h.caller(g))), noCodes)
	_, err = h.GenerateRecoveryCodes(ctx, browser, h.caller(g), "app")
	refused(t, err, `mfa_factor_name_conflict: A factor with the friendly name "app" for this user already exists`)
	codes := h.generated(g)
	distinct := map[string]bool{}
	for _, code := range codes.Codes {
		if distinct[code] = true; !regexp.MustCompile(`^[0-9a-hjkmnp-tv-z]{16}$`).MatchString(code) {
			t.Errorf("code %q", code)
		}
	}
	if len(distinct) != 10 || codes.Total != 10 || codes.Factor.FriendlyName != "Recovery codes" {
		t.Errorf("%+v", codes)
	}
	if f := h.user(g.User.ID).Factors; len(f) != 2 || f[1].Kind != "recovery_code" || !f[1].Verified() {
		t.Errorf("%+v", f)
	}
	_, err = h.GenerateRecoveryCodes(ctx, browser, h.caller(g), "other")
	refused(t, err, "mfa_verified_factor_exists: Recovery codes are already enrolled for this user, use regenerate to "+
		"rotate them")

	// A code opens aal2 however it is typed, once, and ends what is below.
	low, other := h.signedIn("mia@example.org"), h.signedIn("mia@example.org")
	spelled := " " + strings.NewReplacer("1", "l", "0", "O").Replace(strings.ToUpper(codes.Codes[0][:4])) + " -" +
		strings.NewReplacer("1", "I", "0", "o").Replace(codes.Codes[0][4:]) + "\t"
	refused(t, must.ErrOf(h.recover(low, " - ")), "validation_failed: Code needs to be non-empty")
	refused(t, must.ErrOf(h.recover(low, codes.Codes[0][:15])), wrongRecovery)
	up, err := h.recover(low, spelled)
	if accepted(t, err); h.level(up) != "aal2 mfa/recovery_code password" || h.remaining(up) != 9 {
		t.Errorf("%s, %d left", h.level(up), h.remaining(up))
	}
	_, err = h.Authenticate(ctx, other.AccessToken, "", flow.Full)
	refused(t, err, "session_not_found: Session from session_id claim in JWT does not exist")
	low = h.signedIn("mia@example.org")
	refused(t, must.ErrOf(h.recover(low, codes.Codes[0])), wrongRecovery)

	// Others take their place, with id and name.
	fresh, err := h.RegenerateRecoveryCodes(ctx, browser, h.caller(up))
	if accepted(t, err); fresh.Factor.ID != codes.Factor.ID || fresh.Factor.FriendlyName != "Recovery codes" ||
		len(fresh.Codes) != 10 || h.remaining(up) != 10 {
		t.Errorf("%+v", fresh)
	}
	low = h.signedIn("mia@example.org")
	refused(t, must.ErrOf(h.recover(low, codes.Codes[1])), wrongRecovery)

	// Their sessions lose the level with them.
	accepted(t, must.ErrOf(h.DeleteRecoveryCodes(ctx, browser, h.caller(g))))
	again, err := h.Refresh(ctx, browser, up.RefreshToken)
	if accepted(t, err); h.level(again) != "aal1 password" {
		t.Error(h.level(again))
	}
	refused(t, must.ErrOf(h.recover(low, fresh.Codes[0])), wrongRecovery)
	want := "recovery_codes_generated login login verification_failed recovery_codes_verified login verification_failed " +
		"recovery_codes_regenerated login verification_failed recovery_codes_deleted verification_failed"
	if got := h.trail(); !strings.HasSuffix(strings.ReplaceAll(got, " token_refreshed", ""), want) {
		t.Errorf("%s\nwant at its end %s", got, want)
	}
	mails := map[string]int{} // by kind
	for _, m := range h.messages() {
		if m.Vars.FactorType == "recovery_code" {
			mails[m.Kind]++
		}
	}
	if len(mails) != 2 || mails["mfa_factor_enrolled_notification"] != 1 || mails["mfa_factor_unenrolled_notification"] != 1 {
		t.Error(mails)
	}
}

// A code counts once however often it comes at a time, and so do the tries: also on two replicas.
func TestRecoveryCodes_atOnce(t *testing.T) {
	t.Parallel()
	h := open(t, recoveryCodes)
	g := h.confirmed("mia@example.org")
	codes := h.generated(h.verified(g, h.app(g, "")))
	second := openOn(t, h.db, recoveryCodes)
	second.pass(h.clock().Sub(second.clock()))
	callers := make([]flow.Principal, 10)
	for i := range callers {
		callers[i] = h.caller(h.signedIn("mia@example.org"))
	}
	// all has each of n tries answered, and counts the answers.
	all := func(n int, code string) map[string]int {
		got := map[string]int{}
		var mu sync.Mutex
		await.Together(n, func(i int) {
			_, err := []*house{h, second}[i%2].VerifyRecoveryCode(t.Context(), browser, callers[i%len(callers)], code)
			result := "raised"
			if r, ok := errors.AsType[*refusal.Refusal](err); ok {
				result = r.Code
			} else if err != nil {
				result = err.Error()
			}
			mu.Lock()
			defer mu.Unlock()
			got[result]++
		})
		return got
	}
	if got := all(60, "0000000000000000"); got["mfa_verification_failed"] != 5 || got["mfa_recovery_codes_locked"] != 55 {
		t.Errorf("wrong codes: %v", got)
	}
	_, err := h.VerifyRecoveryCode(t.Context(), browser, callers[0], codes.Codes[0])
	refused(t, err, lockedOut)
	var r *refusal.Refusal
	if !errors.As(err, &r) || r.RetryAfter != 3*time.Minute {
		t.Errorf("wait %v", r.RetryAfter)
	}
	h.pass(15 * time.Minute)
	second.pass(15 * time.Minute)
	got := all(100, codes.Codes[0])
	if got["raised"] != 1 || got["raised"]+got["mfa_verification_failed"]+got["session_not_found"]+
		got["mfa_recovery_codes_locked"] != 100 {
		t.Errorf("one code: %v", got)
	}
	sessions, err := h.DB.Sessions(t.Context(), g.User.ID)
	raised := 0
	for _, v := range sessions {
		if !v.Ended() && v.AAL == 2 && strings.Contains(string(v.AMR), "recovery") {
			raised++
		}
	}
	if accepted(t, err); raised != 1 {
		t.Errorf("%d sessions raised by a code", raised)
	}
}

// Recovery codes are never what alone opens aal2, unless the operator switches the other kinds off.
func TestRecoveryCodes_soleFactor(t *testing.T) {
	t.Parallel()
	h := open(t, recoveryCodes)
	ctx, by, low := t.Context(), flow.Actor{Role: "service_role"}, h.confirmed("mia@example.org")
	app := h.app(low, "app")
	g := h.verified(low, app)
	h.set(func(s *flow.Settings) { s.Factors.TOTP.Verify = false })
	refused(t, must.ErrOf(h.GenerateRecoveryCodes(ctx, browser, h.caller(g), "")), needsOther)
	h.set(func(s *flow.Settings) { s.Factors.TOTP.Verify = true })
	codes := h.generated(g)
	refused(t, h.UnenrollFactor(ctx, browser, h.caller(g), app.Factor.ID), soleFactor)
	refused(t, h.UnenrollFactor(ctx, browser, h.caller(g), codes.Factor.ID),
		"validation_failed: Recovery codes cannot be unenrolled with this endpoint, use DELETE /factors/recovery-codes")
	_, _, err := h.ChallengeFactor(ctx, browser, h.caller(g), codes.Factor.ID, "")
	refused(t, err, "validation_failed: factor_type needs to be totp, phone, or webauthn")
	_, err = h.VerifyFactor(ctx, browser, h.caller(g), flow.FactorAnswer{Factor: codes.Factor.ID, Code: codes.Codes[0]})
	refused(t, err, "validation_failed: factor_type needs to be totp, phone, or webauthn")

	// A second factor makes the first one free to go, unless its kind is switched off.
	second := h.app(g, "second")
	refused(t, h.UnenrollFactor(ctx, browser, h.caller(g), app.Factor.ID), soleFactor) // it is not verified
	g = h.verified(g, second)
	p := h.phone(g, "4915112345678")
	g = h.verified(g, p)
	accepted(t, h.UnenrollFactor(ctx, browser, h.caller(g), second.Factor.ID))
	h.set(func(s *flow.Settings) { s.Factors.Phone.Verify = false })
	refused(t, h.UnenrollFactor(ctx, browser, h.caller(g), app.Factor.ID), soleFactor)
	accepted(t, h.UnenrollFactor(ctx, browser, h.caller(g), p.Factor.ID))
	if n := len(h.user(g.User.ID).Factors); n != 2 {
		t.Errorf("%d factors", n)
	}
	// An administrator who takes the last one takes the codes too, and may take them alone.
	accepted(t, must.ErrOf(h.AdminDeleteFactor(ctx, browser, by, g.User.ID, app.Factor.ID)))
	if f := h.user(g.User.ID).Factors; len(f) != 0 {
		t.Errorf("left %+v", f)
	}
	g = h.signedIn("mia@example.org")
	g = h.verified(g, h.app(g, ""))
	codes = h.generated(g)
	accepted(t, must.ErrOf(h.AdminDeleteFactor(ctx, browser, by, g.User.ID, codes.Factor.ID)))
	if f := h.user(g.User.ID).Factors; len(f) != 1 || f[0].Kind != store.FactorTOTP {
		t.Errorf("left %+v", f)
	}
	h.generated(g)
	accepted(t, h.AdminClaim(ctx, browser, by, g.User.ID))
	if f := h.user(g.User.ID).Factors; len(f) != 0 {
		t.Errorf("a claim leaves %+v", f)
	}
	storetest.Exec(t, h.db, "select 1 / (case when exists (select from recovery_codes) then 0 else 1 end)")
}

// An access token from before its session was raised changes nothing of the codes.
func TestRecoveryCodes_lowToken(t *testing.T) {
	t.Parallel()
	h := open(t, recoveryCodes)
	low := h.confirmed("mia@example.org")
	caller := h.caller(low)
	app := h.app(low, "")
	g := h.verified(low, app)
	ctx := t.Context()
	_, err := h.GenerateRecoveryCodes(ctx, browser, h.caller(low), "")
	refused(t, err, "insufficient_aal: AAL2 required to generate recovery codes")
	codes := h.generated(g)
	_, err = h.RegenerateRecoveryCodes(ctx, browser, h.caller(low))
	refused(t, err, "insufficient_aal: AAL2 required to regenerate recovery codes")
	_, err = h.DeleteRecoveryCodes(ctx, browser, h.caller(low))
	refused(t, err, "insufficient_aal: AAL2 required to delete recovery codes")
	// Nor does a session that lost the level since the request began.
	raised := h.caller(g)
	accepted(t, must.ErrOf(h.AdminDeleteFactor(ctx, browser, flow.Actor{Role: "service_role"}, g.User.ID, app.Factor.ID)))
	_, err = h.RegenerateRecoveryCodes(ctx, browser, raised)
	refused(t, err, "insufficient_aal: AAL2 required to regenerate recovery codes")
	refused(t, must.ErrOf(h.VerifyRecoveryCode(ctx, browser, caller, codes.Codes[0])), wrongRecovery)
}

// The hook learns of each code that was judged, and its no ends the sessions: the code is used up then.
func TestRecoveryCodes_hook(t *testing.T) {
	t.Parallel()
	var asked []flow.FactorAttempt
	h := open(t, recoveryCodes)
	g := h.confirmed("mia@example.org")
	g = h.verified(g, h.app(g, ""))
	codes := h.generated(g)
	h.set(func(s *flow.Settings) {
		s.Factors.Attempt = func(_ context.Context, a flow.FactorAttempt) (flow.Verdict, error) {
			asked = append(asked, a)
			return flow.Verdict{Reject: a.Valid, Message: "not today"}, nil
		}
	})
	low := h.signedIn("mia@example.org")
	refused(t, must.ErrOf(h.recover(low, "0")), wrongRecovery)
	refused(t, must.ErrOf(h.recover(low, codes.Codes[0])), "mfa_verification_rejected: not today")
	if len(asked) != 2 || asked[0].Valid || !asked[1].Valid || asked[1].Kind != "recovery_code" ||
		asked[1].Factor != codes.Factor.ID {
		t.Errorf("%+v", asked)
	}
	h.set(func(s *flow.Settings) { s.Factors.Attempt = nil })
	low = h.signedIn("mia@example.org")
	refused(t, must.ErrOf(h.recover(low, codes.Codes[0])), wrongRecovery)

	// Codes that are removed while the hook runs raise no session.
	h.set(func(s *flow.Settings) {
		s.Factors.Attempt = func(context.Context, flow.FactorAttempt) (flow.Verdict, error) {
			storetest.Exec(t, h.db, "delete from factors where id = $1", codes.Factor.ID)
			return flow.Verdict{}, nil
		}
	})
	low = h.signedIn("mia@example.org")
	refused(t, must.ErrOf(h.recover(low, codes.Codes[1])), wrongRecovery)
	if s := h.caller(low).Session; s.AAL != 1 {
		t.Errorf("codes that were removed meanwhile raise a session to aal%d", s.AAL)
	}
}

// Codes hold as long as the root key of their time is known; the database alone does not show them.
func TestRecoveryCodes_rootKey(t *testing.T) {
	t.Parallel()
	h := open(t, recoveryCodes)
	g := h.confirmed("mia@example.org")
	g = h.verified(g, h.app(g, ""))
	codes := h.generated(g)
	storetest.Exec(t, h.db, `select 1 / (case when exists (
		select from recovery_codes where position(convert_to($1, 'UTF8') in mac) > 0) then 0 else 1 end)`,
		codes.Codes[0])
	under := func(root *secret.Root) {
		h.root = root
		h.use(flow.New(flow.Options{DB: h.db, Keys: h.keys, Root: root, Passwords: workers(), Now: h.clock,
			Refresh: token.NewRefreshCodec(root.Keys(secret.Refresh))}, h.s))
	}
	under(secret.NewRoot("a newer one", "root key"))
	low := h.signedIn("mia@example.org")
	_, err := h.recover(low, codes.Codes[0])
	accepted(t, err)
	fresh, err := h.RegenerateRecoveryCodes(t.Context(), browser, h.caller(g))
	accepted(t, err)
	under(secret.NewRoot("a newer one"))
	accepted(t, must.ErrOf(h.recover(h.signedIn("mia@example.org"), fresh.Codes[0])))
	under(secret.NewRoot("another"))
	refused(t, must.ErrOf(h.recover(h.signedIn("mia@example.org"), fresh.Codes[1])), wrongRecovery)
}

// What a right code and a wrong one cost.
func TestRecoveryCodes_roundTrips(t *testing.T) {
	t.Parallel()
	db, trips := storetest.Counting(t)
	h := openOn(t, db, recoveryCodes)
	g := h.confirmed("mia@example.org")
	e := h.app(g, "")
	codes := h.generated(h.verified(g, e))
	low := h.caller(h.signedIn("mia@example.org"))
	verify := func(code string) int64 {
		return trips.During(func() { h.VerifyRecoveryCode(t.Context(), browser, low, code) })
	}
	verify("0") // prepares
	if n := verify("0"); n != 7 {
		t.Errorf("a wrong code takes %d round trips, want 7", n)
	}
	verify(codes.Codes[0]) // prepares
	h.pass(totp.Period)
	low = h.caller(h.signedIn("mia@example.org"))
	if n := verify(codes.Codes[1]); n != 7 {
		t.Errorf("a right code takes %d round trips, want 7", n)
	}
}

package account_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/token"
	"gatehouse/auth/internal/totp"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
)

const wrongTOTP = "mfa_verification_failed: Invalid TOTP code entered"

// Wrong answers that come at once make no more tries than those that come one by one.
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
				_, err := h.VerifyFactor(t.Context(), browser, caller,
					flow.FactorAnswer{Factor: e.Factor.ID, Challenge: ch, Code: guess})
				r, ok := err.(*refusal.Refusal)
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
	if got["mfa_verification_failed"] != 10 || got["mfa_verification_failed"]+
		got["mfa_challenge_expired"]+got["over_request_rate_limit"] != 30 {
		t.Error(got)
	}
	for ch, n := range byChallenge {
		if n > 5 {
			t.Errorf("%d tries of %s", n, ch)
		}
	}
}

// A code that is right for several challenges at once counts once.
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
	var grants []flow.Grant
	await.Together(len(challenges), func(i int) {
		got, err := h.VerifyFactor(t.Context(), browser, caller,
			flow.FactorAnswer{Factor: e.Factor.ID, Challenge: challenges[i], Code: code})
		if err == nil {
			mu.Lock()
			grants = append(grants, got)
			mu.Unlock()
			return
		}
		refused(t, err, wrongTOTP)
	})
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
	h := open(t, func(s *flow.Settings) { s.Sessions.ReuseInterval = time.Hour })
	g := h.confirmed("mia@example.org")
	e := h.app(g, "")
	const unknown = "refresh_token_not_found: Invalid Refresh Token: Refresh Token Not Found"
	for range 5 {
		h.pass(totp.Period)
		g = h.signedIn("mia@example.org")
		first, err := h.Refresh(t.Context(), browser, g.RefreshToken)
		accepted(t, err)
		challenge, code, caller := h.challenge(first, e), h.code(e), h.caller(first)
		var wg sync.WaitGroup
		var up flow.Grant
		var upErr error
		wg.Go(func() {
			up, upErr = h.VerifyFactor(t.Context(), browser, caller,
				flow.FactorAnswer{Factor: e.Factor.ID, Challenge: challenge, Code: code})
		})
		var late flow.Grant
		wg.Go(func() { late, _ = h.Refresh(t.Context(), browser, first.RefreshToken) })
		wg.Wait()
		accepted(t, upErr)
		for _, old := range []string{g.RefreshToken, first.RefreshToken, late.RefreshToken} {
			if old == "" {
				continue
			}
			refused(t, must.ErrOf(h.Refresh(t.Context(), browser, old)), unknown)
		}
		if late.AccessToken != "" {
			var c token.Claims
			if _, err := h.keys.Load().Verify(&c, late.AccessToken, h.clock()); err != nil || c.AAL != "aal1" {
				t.Error(c.AAL, err)
			}
		}
		if up, err = h.Refresh(t.Context(), browser, up.RefreshToken); err != nil ||
			h.level(up) != "aal2 totp password" {
			t.Error(err)
		}
	}
}

// SESSIONS_ALLOW_LOW_AAL bounds sessions below the user's level, in the token itself too.
func TestAllowLowAAL(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) { s.Sessions.AllowLowAAL = 10 * time.Minute })
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
	accepted(t, err)
	if low.ExpiresIn != 360 {
		t.Errorf("aal1 for %d s after 4 min", low.ExpiresIn)
	}
	h.pass(6*time.Minute + time.Second)
	_, err = h.Refresh(t.Context(), browser, low.RefreshToken)
	refused(t, err, "session_expired: Invalid Refresh Token: Session Expired (Low AAL: User Needs MFA Verification)")
	// A token that was made before the setting lasts no longer here.
	h.set(func(s *flow.Settings) { s.Sessions.AllowLowAAL = 0 })
	loose := h.signedIn("mia@example.org")
	h.set(func(s *flow.Settings) { s.Sessions.AllowLowAAL = 10 * time.Minute })
	h.caller(loose)
	h.pass(10*time.Minute + time.Second)
	_, err = h.Authenticate(t.Context(), loose.AccessToken, "", flow.ReadUser)
	refused(t, err, "session_expired: Session is no longer valid")
	if _, err = h.Refresh(t.Context(), browser, up.RefreshToken); err != nil {
		t.Error(err)
	}
}

// An entry of a session's methods keeps all that stands in it: a session that a change of address opened does
// not become one that a mail opened.
func TestVerifyFactor_keepsTheMark(t *testing.T) {
	t.Parallel()
	h := open(t, func(s *flow.Settings) {
		s.Email.SecureChange, s.Passwords.RequireCurrent = false, true
	})
	g := h.confirmed("mia@example.org")
	must.Succeed(t, must.ErrOf(h.UpdateUser(t.Context(), browser, h.caller(g),
		flow.UserUpdate{Email: "new@example.org"})))
	g = h.redeem("email_change", h.newest("email_change", "new@example.org").Hash)
	mark := func(g flow.Grant) string {
		t.Helper()
		var list []token.AMR
		must.Succeed(t, json.Unmarshal(h.caller(g).Session.AMR, &list))
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
	_, err := h.UpdateUser(t.Context(), browser, h.caller(g), flow.UserUpdate{Password: new("sesame 2")})
	refused(t, err, "current_password_required: Current password required when setting new password.")
	accepted(t, h.UnenrollFactor(t.Context(), browser, h.caller(g), e.Factor.ID))
	if got := mark(g); got != want {
		t.Errorf("%q after the factor went, want %q", got, want)
	}
}

// A factor that is verified while the hook runs bounds the other one as if it had been verified before.
func TestVerifyFactor_anotherMeanwhile(t *testing.T) {
	t.Parallel()
	h := open(t)
	g := h.confirmed("mia@example.org")
	app, phone := h.app(g, "app"), h.phone(g, "+15550001111")
	caller, challenge, code, asked := h.caller(g), h.challenge(g, app), h.code(app), 0
	h.set(func(s *flow.Settings) {
		s.Factors.Attempt = func(context.Context, flow.FactorAttempt) (flow.Verdict, error) {
			if asked++; asked == 1 {
				h.verified(g, phone)
			}
			return flow.Verdict{}, nil
		}
	})
	_, err := h.VerifyFactor(t.Context(), browser, caller, flow.FactorAnswer{Factor: app.Factor.ID, Challenge: challenge,
		Code: code})
	refused(t, err, "insufficient_aal: AAL2 required to enroll a new factor")
	for _, f := range h.user(g.User.ID).Factors {
		if f.Verified() != (f.ID == phone.Factor.ID) {
			t.Errorf("verified %v: %s", f.Verified(), f.FriendlyName)
		}
	}
}

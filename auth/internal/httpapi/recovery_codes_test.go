package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"gatehouse/auth/internal/account/flow"
)

// recoveryJSON is what the routes of recovery codes answer.
type recoveryJSON struct {
	ID, Type         string
	FriendlyName     string `json:"friendly_name"`
	Total, Remaining int
	Codes            []string
}

// While they are switched off, recovery codes are neither made nor taken, whatever the body says; those that there are
// may be counted and deleted.
func TestRecoveryCodes_switches(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	const at = "/factors/recovery-codes"
	const enroll, verify = "mfa_recovery_codes_enroll_not_enabled", "mfa_recovery_codes_verify_not_enabled"
	off := func(me header) {
		t.Helper()
		for _, body := range []any{"{", map[string]any{"friendly_name": "x", "code": ""}} {
			a.do("POST "+at, body, me).refused(422, enroll, "MFA enroll is disabled for recovery codes")
			a.do("POST "+at+"/regenerate", body, me).refused(422, enroll, "MFA enroll is disabled for recovery codes")
			a.do("POST "+at+"/verify", body, me).refused(422, verify, "MFA verification is disabled for recovery codes")
		}
	}
	me := bearer(g.AccessToken)
	off(me)
	a.do("GET "+at, nil, me).refused(404, "mfa_factor_not_found", "The user has not enrolled recovery codes")
	a.do("DELETE "+at, nil, me).refused(403, "insufficient_aal", "AAL2 required to delete recovery codes")
	a.do("GET "+at, nil).refused(401, "no_authorization", "*")

	a.apply(func(s *flow.Settings, _ *Settings) {
		s.Factors.RecoveryCodes = flow.FactorSwitches{Enroll: true, Verify: true}
	})
	a.do("POST "+at, "{", me).refused(400, "bad_json", "*")
	a.do("POST "+at+"/verify", "{", me).refused(400, "bad_json", "*")
	a.do("POST "+at+"/verify", map[string]any{"code": " - "}, me).refused(400, "validation_failed",
		"Code needs to be non-empty")
	a.do("POST "+at+"/verify", map[string]any{"code": "0"}, me).refused(422, "mfa_verification_failed",
		"Invalid recovery code entered")
	g = a.verify(g, a.enroll(g, ""))
	me = bearer(g.AccessToken)
	a.do("POST "+at, map[string]any{"friendly_name": strings.Repeat("x", 256)}, me).refused(400, "validation_failed",
		"friendly_name cannot be longer than 255 characters")
	var made recoveryJSON
	a.do("POST "+at, nil, me).json(&made)
	a.apply(func(s *flow.Settings, _ *Settings) { s.Factors.RecoveryCodes = flow.FactorSwitches{} })
	off(me)
	var left recoveryJSON
	a.do("GET "+at, nil, me).json(&left)
	if left.ID != made.ID || left.Type != "recovery_code" || left.Total != 10 || left.Remaining != 10 {
		t.Errorf("%+v", left)
	}
	if got := a.do("DELETE "+at, nil, me); got.body != `{"id":"`+made.ID+`"}` {
		t.Error(got.body)
	}
}

// The whole answers of recovery codes, and the factor that a user and an administrator see.
func TestRecoveryCodes_answers(t *testing.T) {
	a := open(t)
	a.apply(func(s *flow.Settings, _ *Settings) {
		s.Factors.RecoveryCodes = flow.FactorSwitches{Enroll: true, Verify: true}
		s.Factors.MaxVerified = 2
	})
	g := a.member("mia@example.org")
	app := a.enroll(g, "app")
	g = a.verify(g, app)
	me := bearer(g.AccessToken)
	var made recoveryJSON
	first := a.do("POST /factors/recovery-codes", map[string]any{"friendly_name": "printed"}, me)
	first.json(&made)
	list, err := json.Marshal(made.Codes)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`{"id":%q,"type":"recovery_code","friendly_name":"printed","total":10,"codes":%s}`, made.ID, list)
	if first.body != want {
		t.Errorf("%s\nwant %s", first.body, want)
	}
	a.do("POST /factors", map[string]any{"factor_type": "totp", "friendly_name": "more"}, me).refused(422,
		"too_many_enrolled_mfa_factors", "*") // the codes are one of the two
	a.do("POST /factors", map[string]any{"factor_type": "recovery_code"}, me).refused(400, "validation_failed",
		"factor_type needs to be totp, phone, or webauthn")
	for _, f := range a.user(g).Factors {
		if f.ID == made.ID && (f.FactorType != "recovery_code" || f.Status != "verified" || f.FriendlyName != "printed") {
			t.Errorf("%+v", f)
		}
	}
	var all []factorJSON
	a.do("GET /admin/users/"+g.User.ID+"/factors", nil, a.service()).json(&all)
	if len(all) != 2 || all[1].FactorType != "recovery_code" {
		t.Errorf("%+v", all)
	}
	low := a.signIn("mia@example.org")
	var up grantJSON
	a.do("POST /factors/recovery-codes/verify", map[string]any{"code": made.Codes[3]}, bearer(low.AccessToken)).json(&up)
	if got := amrOf(t, up); got != "aal2 mfa/recovery_code password" {
		t.Error(got)
	}
	a.do("GET /factors/recovery-codes", nil, bearer(up.AccessToken)).json(&made)
	if made.Total != 10 || made.Remaining != 9 {
		t.Errorf("%+v", made)
	}
	low = a.signIn("mia@example.org")
	for range 5 {
		a.do("POST /factors/recovery-codes/verify", map[string]any{"code": "0"}, bearer(low.AccessToken)).refused(422,
			"mfa_verification_failed", "Invalid recovery code entered")
	}
	locked := a.do("POST /factors/recovery-codes/verify", map[string]any{"code": made.Codes[4]}, bearer(low.AccessToken))
	locked.refused(429, "mfa_recovery_codes_locked", "Too many failed verification attempts, try again later")
	if got := locked.Header.Get("Retry-After"); got != "180" {
		t.Errorf("Retry-After %q", got)
	}
	a.do("DELETE /factors/"+app.ID, nil, bearer(up.AccessToken)).refused(422, "mfa_recovery_codes_sole_factor", "*")
	a.do("DELETE /factors/"+made.ID, nil, bearer(up.AccessToken)).refused(422, "validation_failed",
		"Recovery codes cannot be unenrolled with this endpoint, use DELETE /factors/recovery-codes")
	a.do("POST /factors/"+made.ID+"/challenge", nil, bearer(up.AccessToken)).refused(400, "validation_failed",
		"factor_type needs to be totp, phone, or webauthn")
	a.answerTo(up, made.ID, made.ID, "0").refused(400, "validation_failed",
		"factor_type needs to be totp, phone, or webauthn")
	a.do("DELETE /admin/users/"+g.User.ID+"/factors/"+made.ID, nil, a.service()).json(new(factorJSON))
	a.do("GET /factors/recovery-codes", nil, bearer(up.AccessToken)).refused(404, "mfa_factor_not_found", "*")
}

// What stands in the way of recovery codes, in the words of their routes.
func TestRecoveryCodes_refusals(t *testing.T) {
	a := open(t, func(s *flow.Settings, _ *Settings) {
		s.Factors.RecoveryCodes = flow.FactorSwitches{Enroll: true, Verify: true}
	})
	const at = "/factors/recovery-codes"
	g := a.member("mia@example.org")
	a.do("POST "+at, nil, bearer(g.AccessToken)).refused(403, "insufficient_aal",
		"AAL2 required to generate recovery codes")
	up := a.verify(g, a.enroll(g, "app"))
	me, low := bearer(up.AccessToken), bearer(a.signIn("mia@example.org").AccessToken)
	a.do("POST "+at+"/regenerate", nil, me).refused(404, "mfa_factor_not_found",
		"The user has not enrolled recovery codes")
	a.do("DELETE "+at, nil, me).refused(404, "mfa_factor_not_found", "The user has not enrolled recovery codes")
	a.do("POST "+at, map[string]any{"friendly_name": "app"}, me).refused(422, "mfa_factor_name_conflict", "*")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Factors.TOTP.Verify = false })
	a.do("POST "+at, nil, me).refused(422, "mfa_recovery_codes_sole_factor",
		"At least one other verified factor is required to generate recovery codes")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Factors.TOTP.Verify, s.Factors.MaxVerified = true, 1 })
	a.do("POST "+at, nil, me).refused(422, "too_many_enrolled_mfa_factors", "*")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Factors.MaxVerified = 10 })
	var made recoveryJSON
	a.do("POST "+at, nil, me).json(&made)
	a.do("POST "+at, nil, me).refused(422, "mfa_verified_factor_exists",
		"Recovery codes are already enrolled for this user, use regenerate to rotate them")
	a.do("POST "+at+"/regenerate", nil, low).refused(403, "insufficient_aal",
		"AAL2 required to regenerate recovery codes")
	a.apply(func(s *flow.Settings, _ *Settings) {
		s.Factors.Attempt = func(context.Context, flow.FactorAttempt) (flow.Verdict, error) {
			return flow.Verdict{Reject: true, Message: "no more"}, nil
		}
	})
	a.do("POST "+at+"/verify", map[string]any{"code": made.Codes[0]}, low).refused(403, "mfa_verification_rejected",
		"no more")
}

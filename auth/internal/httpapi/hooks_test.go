package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/hook"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/totp"
	"gatehouse/auth/internal/webauthn/webauthntest"
)

// TestHooks_failures: a hook's refusal, or the failure of its call, is the answer of the request that called it, and
// nothing is created.
func TestHooks_failures(t *testing.T) {
	var answer *refusal.Refusal
	a := open(t, passkeysOn, func(s *flow.Settings, _ *Settings) {
		s.Factors.RecoveryCodes = flow.FactorSwitches{Enroll: true, Verify: true}
		s.Hooks.BeforeCreate = func(context.Context, string, store.User) error {
			if answer != nil {
				return answer
			}
			return nil
		}
		s.Hooks.Claims = func(_ context.Context, q flow.ClaimsQuestion) (json.RawMessage, error) {
			if answer != nil {
				return nil, answer
			}
			return q.Claims, nil
		}
	})
	mia := a.member("mia@example.org")
	factor := a.enrolled(mia)
	rhea := a.member("rhea@example.org")
	rhea = a.verify(rhea, a.enroll(rhea, ""))
	var printed recoveryJSON
	a.do("POST /factors/recovery-codes", nil, bearer(rhea.AccessToken)).json(&printed)
	device := &webauthntest.Authenticator{}
	a.register(a.member("eve@example.org"), device)
	for n, r := range []*refusal.Refusal{
		{Status: 400, Code: hook.CodeContentType}, {Status: 400, Code: hook.CodeRefused, ByHook: true},
		{Status: 422, Code: hook.CodeRefused, ByHook: true}, {Status: 422, Code: hook.CodeTimeout},
		{Status: 422, Code: hook.CodeTimeoutAfterRetry}, {Status: 422, Code: hook.CodeOverSize},
	} {
		r.Kind, r.Msg = refusal.KindFailed, "said the hook"
		address := func(what string) string { return fmt.Sprintf("%s%d@example.org", what, n) }
		newcomer := address("waits")
		a.do("POST /signup", map[string]any{"email": newcomer, "password": sesame}).is(200, "*")
		g := a.signIn("mia@example.org")
		challenge, code := a.challenge(g, factor.ID).ID, a.code(factor, 0)
		low := a.signIn("rhea@example.org")

		begun := a.request()
		answer = r
		f := func(route string, body map[string]any) {
			t.Helper()
			a.do(route, body).refused(r.Status, r.Code, "said the hook")
		}
		f("POST /signup", map[string]any{"email": address("signup"), "password": sesame})
		f("POST /otp", map[string]any{"email": address("otp")})
		f("POST /magiclink", map[string]any{"email": address("magiclink")})
		f("POST /passkeys/authentication/verify", answerOf(begun.ChallengeID, newAssertion(t, device, begun.Options)))
		f("POST /verify", map[string]any{"type": "signup", "email": newcomer, "token": a.newest(newcomer).Code})
		a.answerTo(g, factor.ID, challenge, code).refused(r.Status, r.Code, "said the hook")
		a.do("POST /factors/recovery-codes/verify", map[string]any{"code": printed.Codes[n]}, bearer(low.AccessToken)).
			refused(r.Status, r.Code, "said the hook")
		answer = nil
		a.pass(time.Hour + totp.Period)

		for _, what := range []string{"signup", "otp", "magiclink"} {
			if a.known(address(what)) {
				t.Errorf("%s: an account was made", address(what))
			}
		}
	}
}

// known says whether there is an account of that address.
func (a *api) known(email string) bool {
	a.t.Helper()
	var list struct{ Users []userJSON }
	a.do("GET /admin/users?email="+email, nil, a.service()).json(&list)
	return len(list.Users) > 0
}

package httpapi

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
	"gatehouse/auth/internal/totp"
	"gatehouse/shared/fakeidp"
	"gatehouse/shared/must"
)

// Every refusal of an enrolment, and what is judged before what.
func TestFactors_enrollRefused(t *testing.T) {
	a := open(t, func(s *flow.Settings, _ *Settings) { s.Factors.MaxEnrolled, s.Factors.MaxVerified = 3, 2 })
	g := a.member("mia@example.org")
	f := func(body any, status int, code, msg string) {
		t.Helper()
		a.do("POST /factors", body, bearer(g.AccessToken)).refused(status, code, msg)
	}
	type m = map[string]any
	f("[", 400, "bad_json", "*")
	f(m{}, 400, "validation_failed", "factor_type needs to be totp, phone, or webauthn")
	f(m{"factor_type": "TOTP"}, 400, "validation_failed", "factor_type needs to be totp, phone, or webauthn")
	f(m{"factor_type": "webauthn"}, 422, "mfa_webauthn_enroll_not_enabled", "MFA enroll is disabled for WebAuthn")
	long := strings.Repeat("x", 256)
	f(m{"factor_type": "totp", "friendly_name": long}, 400, "validation_failed",
		"friendly_name cannot be longer than 255 characters")
	f(m{"factor_type": "totp", "issuer": long}, 400, "validation_failed", "issuer cannot be longer than 255 characters")
	f(m{"factor_type": "totp", "issuer": strings.Repeat("\u20ac", 255)}, 400, "validation_failed",
		"issuer is too long for a QR code")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Factors.TOTP.Enroll, s.Factors.Phone.Enroll = false, false })
	f(m{"factor_type": "totp"}, 422, "mfa_totp_enroll_not_enabled", "MFA enroll is disabled for TOTP")
	f(m{"factor_type": "phone"}, 422, "mfa_phone_enroll_not_enabled", "MFA enroll is disabled for Phone")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Factors.TOTP.Enroll, s.Factors.Phone.Enroll = true, true })

	first := a.enroll(g, "")
	f(m{"factor_type": "totp"}, 422, "mfa_factor_name_conflict",
		`A factor with the friendly name "" for this user already exists`)
	// An unfinished one gives its name up, but not one that was challenged.
	a.pass(5*time.Minute + time.Second)
	first = a.enroll(g, "")
	if list := a.user(g).Factors; len(list) != 1 || list[0].ID != first.ID {
		t.Errorf("%+v", list)
	}
	ch := a.challenge(g, first.ID)
	a.pass(5*time.Minute + time.Second)
	f(m{"factor_type": "totp"}, 422, "mfa_factor_name_conflict", "*")
	a.answerTo(g, first.ID, ch.ID, "123456").refused(422, "mfa_challenge_expired",
		"MFA challenge "+ch.ID+" has expired, verify against another challenge or create a new challenge.")
	a.answerTo(g, first.ID, ch.ID, "123456").refused(422, "mfa_factor_not_found", "*")
	a.enroll(g, "two")
	a.enroll(g, "three")
	f(m{"factor_type": "totp", "friendly_name": "four"}, 422, "too_many_enrolled_mfa_factors",
		"Maximum number of verified factors reached, unenroll to continue")
	g = a.verify(g, first) // removes the other two
	if list := a.user(g).Factors; len(list) != 1 {
		t.Errorf("%+v", list)
	}
	second := a.enroll(g, "second")
	third := a.enrollPhone(g, "third", "4915112345678") // another kind: it stays when the second is verified
	g = a.verify(g, second)
	f(m{"factor_type": "totp", "friendly_name": "x"}, 422, "too_many_enrolled_mfa_factors", "*")
	a.answerTo(g, third.ID, a.challenge(g, third.ID).ID, a.newest("4915112345678").Code).refused(422,
		"too_many_enrolled_mfa_factors", "*")

	// Without a session nothing is enrolled, and nothing verified.
	var claims token.Claims
	must.Succeed(t, must.ErrOf(a.keys.Load().Verify(&claims, g.AccessToken, a.clock())))
	claims.SessionID = ""
	text, err := a.keys.Load().Sign(nil, &claims)
	must.Succeed(t, err)
	loose := grantJSON{AccessToken: string(text)}
	a.do("POST /factors", m{"factor_type": "totp"}, bearer(loose.AccessToken)).refused(500, "unexpected_failure",
		"A valid session and a registered user are required to enroll a factor")
	a.answerTo(loose, first.ID, uuid.NewString(), "123456").refused(403, "session_not_found", "*")
}

// Every refusal of a challenge and of an answer.
func TestFactors_verifyRefused(t *testing.T) {
	a := open(t, func(s *flow.Settings, _ *Settings) {
		s.Phone.TestCodes = map[string]string{"4915100000009": "123456"}
	})
	g := a.member("mia@example.org")
	e := a.enroll(g, "app")
	p := a.enrollPhone(g, "phone", "4915112345678")
	type m = map[string]any
	at := "POST /factors/" + e.ID
	me := bearer(g.AccessToken)
	a.do("POST /factors/x/challenge", nil, me).refused(404, "validation_failed", "factor_id must be an UUID")
	a.do("POST /factors/x/verify", m{}, me).refused(404, "validation_failed", "factor_id must be an UUID")
	a.do("DELETE /factors/x", nil, me).refused(404, "validation_failed", "factor_id must be an UUID")
	a.do("POST /factors/"+uuid.NewString()+"/challenge", nil, me).refused(404, "mfa_factor_not_found",
		"Factor not found")
	a.do("POST /factors/"+uuid.NewString()+"/verify", m{"code": "1"}, me).refused(404, "mfa_factor_not_found",
		"Factor not found")
	a.do(at+"/challenge", "[", me).refused(400, "bad_json", "*")
	a.do(at+"/verify", "[", me).refused(400, "bad_json", "*")
	a.do(at+"/challenge", m{"webauthn": m{"rpId": "x"}}, me).refused(422, "mfa_webauthn_verify_not_enabled",
		"MFA verification is disabled for WebAuthn")
	a.do(at+"/verify", m{"webauthn": m{"type": "create"}}, me).refused(422, "mfa_webauthn_verify_not_enabled",
		"MFA verification is disabled for WebAuthn")
	a.do(at+"/verify", m{"challenge_id": uuid.NewString()}, me).refused(400, "validation_failed",
		"Code needs to be non-empty")
	a.do(at+"/verify", m{"challenge_id": "x", "code": "1"}, me).refused(400, "validation_failed",
		"challenge_id must be an UUID")
	a.do(at+"/verify", m{"code": "123456"}, me).refused(422, "mfa_factor_not_found",
		"MFA factor with the provided challenge ID not found")
	a.answerTo(g, e.ID, uuid.NewString(), "123456").refused(422, "mfa_factor_not_found",
		"MFA factor with the provided challenge ID not found")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Factors.TOTP.Verify, s.Factors.Phone.Verify = false, false })
	a.do(at+"/challenge", nil, me).refused(422, "mfa_totp_verify_not_enabled", "MFA verification is disabled for TOTP")
	a.do(at+"/verify", m{"code": "1"}, me).refused(422, "mfa_totp_verify_not_enabled",
		"MFA verification is disabled for TOTP")
	a.do("POST /factors/"+p.ID+"/challenge", nil, me).refused(422, "mfa_phone_verify_not_enabled",
		"MFA verification is disabled for Phone")
	a.do("POST /factors/"+p.ID+"/verify", m{"code": "1"}, me).refused(422, "mfa_phone_verify_not_enabled",
		"MFA verification is disabled for Phone")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Factors.TOTP.Verify, s.Factors.Phone.Verify = true, true })

	// A challenge is found by itself and its factor.
	a.answerTo(g, e.ID, a.challenge(g, p.ID).ID, a.code(e, 0)).refused(422, "mfa_factor_not_found", "*")
	// A code two steps off or of another length is wrong; so is one that was right before.
	ch := a.challenge(g, e.ID)
	for _, code := range []string{a.code(e, 2), a.code(e, -2), a.code(e, 0)[:5], a.code(e, 0) + "0"} {
		a.answerTo(g, e.ID, ch.ID, code).refused(422, "mfa_verification_failed", "Invalid TOTP code entered")
	}
	var up grantJSON
	a.answerTo(g, e.ID, ch.ID, a.code(e, 1)).json(&up)
	a.answerTo(up, e.ID, ch.ID, a.code(e, 1)).refused(422, "mfa_ip_address_mismatch",
		"Challenge and verify IP addresses mismatch.")

	// The number of a test has a fixed code, no SMS and no count of tries.
	q := a.enrollPhone(up, "test", "+4915100000009")
	ch = a.challenge(up, q.ID)
	for range 12 {
		a.answerTo(up, q.ID, ch.ID, "000000").refused(422, "mfa_verification_failed", "Invalid MFA Phone code entered")
	}
	a.answerTo(up, q.ID, ch.ID, "123456").is(200, "*")
}

// Each secret that can be guessed has its own counter, independent of address and headers: 5 wrong
// answers for a challenge, 10 for a factor in an hour.
func TestFactors_attemptsAreCounted(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	e := a.enroll(g, "")
	p := a.enrollPhone(g, "p", "4915112345678")
	miss := func(factor, challenge, code string, status int, want string) {
		t.Helper()
		a.answerTo(g, factor, challenge, code).refused(status, want, "*")
	}
	ch := a.challenge(g, e.ID)
	for range 5 {
		miss(e.ID, ch.ID, wrong(a.code(e, 0)), 422, "mfa_verification_failed")
	}
	miss(e.ID, ch.ID, a.code(e, 0), 422, "mfa_challenge_expired") // dead, though the code is right
	ch = a.challenge(g, e.ID)
	for range 5 {
		miss(e.ID, ch.ID, wrong(a.code(e, 0)), 422, "mfa_verification_failed")
	}
	ch = a.challenge(g, e.ID)
	late := a.answerTo(g, e.ID, ch.ID, a.code(e, 0)).refused(429, "over_request_rate_limit",
		"Request rate limit reached")
	if after := late.Header.Get("Retry-After"); after != "360" {
		t.Errorf("Retry-After %q", after)
	}
	// Another factor is another matter.
	chp := a.challenge(g, p.ID)
	miss(p.ID, chp.ID, wrong(a.newest("4915112345678").Code), 422, "mfa_verification_failed")
	// One try comes back every six minutes.
	a.pass(6 * time.Minute)
	ch = a.challenge(g, e.ID)
	a.answerTo(g, e.ID, ch.ID, a.code(e, 0)).is(200, "*")
}

// Per-address limits of challenges and answers have separate counts, where an address is known.
func TestFactors_limits(t *testing.T) {
	a := open(t, func(_ *flow.Settings, s *Settings) { s.LimitHeader, s.Limits.Factors = "X-Real-Ip", 2 })
	g := a.member("mia@example.org")
	me, from := bearer(g.AccessToken), header{"X-Real-Ip", "192.0.2.1"}
	path := "POST /factors/" + uuid.NewString()
	for _, what := range []string{"/challenge", "/verify"} {
		for range 30 {
			a.do(path+what, map[string]any{"code": "1"}, me, from).refused(404, "mfa_factor_not_found", "*")
		}
		got := a.do(path+what, map[string]any{"code": "1"}, me, from).refused(429, "over_request_rate_limit",
			"Request rate limit reached")
		if after := got.Header.Get("Retry-After"); after != "30" {
			t.Errorf("%s: Retry-After %q", what, after)
		}
		a.do(path+what, map[string]any{"code": "1"}, me, header{"X-Real-Ip", "192.0.2.2"}).refused(404,
			"mfa_factor_not_found", "*")
		a.do(path+what, map[string]any{"code": "1"}, me).refused(404, "mfa_factor_not_found", "*")
	}
	a.apply(func(_ *flow.Settings, s *Settings) { s.Limits.Factors = 0 })
	for _, route := range []string{path + "/challenge", "POST /factors/recovery-codes/verify"} {
		a.do(route, nil, me, header{"X-Real-Ip", "192.0.2.3"}).refused(429, "over_request_rate_limit", "*")
	}
}

// Challenge and answer come from one address, where a trusted proxy reports both; headers that any client can write
// count for nothing.
func TestFactors_addresses(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	e := a.enroll(g, "")
	here, there := header{"X-Forwarded-For", "192.0.2.1"}, header{"X-Forwarded-For", "192.0.2.2"}
	ch := a.challenge(g, e.ID, here)
	a.answerTo(g, e.ID, ch.ID, "0", there).refused(422, "mfa_verification_failed", "*")
	a.apply(func(_ *flow.Settings, s *Settings) {
		s.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	})
	a.answerTo(g, e.ID, ch.ID, "0", there).refused(422, "mfa_verification_failed", "*") // the challenge knows none
	ch = a.challenge(g, e.ID, here)
	a.answerTo(g, e.ID, ch.ID, a.code(e, 0), there).refused(422, "mfa_ip_address_mismatch",
		"Challenge and verify IP addresses mismatch.")
	a.answerTo(g, e.ID, ch.ID, a.code(e, 0), here).is(200, "*")
}

// The last accepted TOTP step is remembered; it and older ones are refused.
func TestFactors_replayIsRefused(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	e := a.enroll(g, "")
	code, older := a.code(e, 0), a.code(e, -1)
	a.answerTo(g, e.ID, a.challenge(g, e.ID).ID, code).json(&g)
	for _, again := range []string{code, older} {
		a.answerTo(g, e.ID, a.challenge(g, e.ID).ID, again).refused(422, "mfa_verification_failed",
			"Invalid TOTP code entered")
	}
	a.answerTo(g, e.ID, a.challenge(g, e.ID).ID, a.code(e, 1)).is(200, "*")
}

// A factor is loaded by owner and id, with one answer for "unknown" and "not yours".
func TestFactors_othersAreUnknown(t *testing.T) {
	a := open(t)
	mia, eve := a.member("mia@example.org"), a.member("eve@example.org")
	e := a.enroll(mia, "")
	ch := a.challenge(mia, e.ID)
	a.do("POST /factors/"+e.ID+"/challenge", nil, bearer(eve.AccessToken)).refused(404, "mfa_factor_not_found",
		"Factor not found")
	a.answerTo(eve, e.ID, ch.ID, a.code(e, 0)).refused(404, "mfa_factor_not_found", "Factor not found")
	a.do("DELETE /factors/"+e.ID, nil, bearer(eve.AccessToken)).refused(404, "mfa_factor_not_found", "Factor not found")
	for _, method := range []string{"PUT", "DELETE"} {
		a.do(method+" /admin/users/"+eve.User.ID+"/factors/"+e.ID, map[string]any{},
			a.service()).refused(404, "mfa_factor_not_found", "Factor not found")
	}
	// A challenge of one's own factor doesn't open another user's.
	own := a.enroll(eve, "")
	a.answerTo(eve, own.ID, ch.ID, a.code(own, 0)).refused(422, "mfa_factor_not_found", "*")
}

// A factor left unverified by a holder of the password alone opens nothing once another guards the account: enrolling
// a further factor needs aal2 once one is verified.
func TestFactors_unverifiedLeft(t *testing.T) {
	a := open(t)
	eve := a.member("mia@example.org") // knows the password
	left := a.enrollPhone(eve, "left", "4915166666666")
	early := a.challenge(eve, left.ID)
	code := a.newest("4915166666666").Code
	mia := a.signIn("mia@example.org")
	e := a.enrolled(mia)
	eve = a.signIn("mia@example.org")
	a.do("POST /factors/"+left.ID+"/challenge", nil, bearer(eve.AccessToken)).refused(403, "insufficient_aal",
		"AAL2 required to enroll a new factor")
	a.answerTo(eve, left.ID, early.ID, code).refused(403, "insufficient_aal", "AAL2 required to enroll a new factor")
	a.do("POST /factors", map[string]any{"factor_type": "totp", "friendly_name": "x"},
		bearer(eve.AccessToken)).refused(403, "insufficient_aal", "AAL2 required to enroll a new factor")
	a.do("DELETE /factors/"+left.ID, nil, bearer(eve.AccessToken)).is(200, "*") // an unverified one may go
	a.verify(eve, e)                                                            // she has the app after all
}

// PUT /user and linking require the second factor of a user that has one.
func TestFactors_insufficientAAL(t *testing.T) {
	a := open(t)
	a.apply(func(s *flow.Settings, _ *Settings) {
		s.External = flow.ExternalSettings{Providers: githubAlone(t), ManualLinking: true, LinkingAAL2: true}
	})
	mia := a.member("mia@example.org")
	e := a.enroll(mia, "")
	type m = map[string]any
	put := func(g grantJSON, body m) answer { t.Helper(); return a.do("PUT /user", body, bearer(g.AccessToken)) }
	put(mia, m{"email": "new@example.org"}).is(200, "*") // an unverified factor guards nothing
	high := a.verify(mia, e)
	low := a.signIn("mia@example.org")
	const msg = "AAL2 session is required to update email or password when MFA is enabled."
	for _, body := range []m{{"email": "x@example.org"}, {"phone": "4915112345678"}, {"password": "another 1"}} {
		put(low, body).refused(401, "insufficient_aal", msg)
		put(high, body).is(200, "*")
	}
	low = a.signInWith("mia@example.org", "another 1")
	put(low, m{"data": m{"a": 1}, "email": "mia@example.org"}).is(200, "*") // nothing that matters
	const linking = "AAL2 session is required to link or unlink an identity when MFA is enabled."
	identity := a.user(low).Identities[0]["identity_id"].(string)
	a.do("GET /user/identities/authorize?provider=github&skip_http_redirect=true", nil,
		bearer(low.AccessToken)).refused(403, "insufficient_aal", linking)
	a.do("DELETE /user/identities/"+identity, nil, bearer(low.AccessToken)).refused(403, "insufficient_aal", linking)
	a.do("POST /token?grant_type=id_token", m{"provider": "google", "id_token": "x", "link_identity": true},
		bearer(low.AccessToken)).refused(403, "insufficient_aal", linking)
	a.do("GET /user/identities/authorize?provider=github&skip_http_redirect=true", nil,
		bearer(high.AccessToken)).is(200, "*")
	a.do("DELETE /user/identities/"+identity, nil, bearer(high.AccessToken)).refused(422,
		"single_identity_not_deletable", "*")
	a.apply(func(s *flow.Settings, _ *Settings) { s.External.LinkingAAL2 = false })
	a.do("GET /user/identities/authorize?provider=github&skip_http_redirect=true", nil,
		bearer(low.AccessToken)).is(200, "*")
}

// A verdict to reject signs the user out everywhere; one that lets pass changes nothing.
func TestFactors_verdict(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	other := a.signIn("mia@example.org")
	e := a.enroll(g, "")
	var asked []flow.FactorAttempt
	var verdict flow.Verdict
	a.apply(func(s *flow.Settings, _ *Settings) {
		s.Factors.Attempt = func(_ context.Context, at flow.FactorAttempt) (flow.Verdict, error) {
			asked = append(asked, at)
			return verdict, nil
		}
	})
	a.answerTo(g, e.ID, uuid.NewString(), "123456").refused(422, "mfa_factor_not_found", "*") // nothing to verify
	ch := a.challenge(g, e.ID)
	a.answerTo(g, e.ID, ch.ID, wrong(a.code(e, 0))).refused(422, "mfa_verification_failed", "*")
	a.answerTo(g, e.ID, ch.ID, a.code(e, 0)).json(&g)
	if got := amrOf(t, g); got != "aal2 totp otp" {
		t.Error(got)
	}
	if len(asked) != 2 || asked[0].Valid || !asked[1].Valid || asked[1].Factor.String() != e.ID ||
		asked[1].User.String() != g.User.ID || asked[1].Kind != store.FactorTOTP {
		t.Errorf("%+v", asked)
	}
	a.refresh(other).refused(400, "refresh_token_not_found", "*")
	a.pass(totp.Period)
	// Right or wrong: a rejected user is signed out.
	verdict = flow.Verdict{Reject: true, Message: "no more"}
	low := a.signIn("mia@example.org")
	ch = a.challenge(low, e.ID)
	a.answerTo(low, e.ID, ch.ID, a.code(e, 0)).refused(403, "mfa_verification_rejected", "no more")
	for _, g := range []grantJSON{low, g} {
		a.do("GET /user", nil, bearer(g.AccessToken)).refused(403, "session_not_found", "*")
		a.refresh(g).refused(400, "refresh_token_not_found", "*")
	}
	verdict.Message = ""
	low = a.signIn("mia@example.org")
	a.answerTo(low, e.ID, a.challenge(low, e.ID).ID, "0").refused(403, "mfa_verification_rejected",
		"Further MFA verification attempts will be rejected.")
}

// A session that lost its level while its browser was at a provider links nothing.
func TestFactors_levelLostMeanwhile(t *testing.T) {
	a := openAbroad(t, func(s *flow.Settings, _ *Settings) { s.External.LinkingAAL2 = true })
	a.idp.SetUser(person("1", "else@example.org"))
	mia := a.member("mia@example.org")
	e := a.enroll(mia, "app")
	mia = a.verify(mia, e)
	other := a.verify(a.api.signIn("mia@example.org"), e)
	p := a.enrollPhone(other, "phone", "4915112345678")
	a.answerTo(other, p.ID, a.challenge(other, p.ID).ID, a.newest("4915112345678").Code).json(&other)
	github, apple := a.visit(a.linkURL(mia, "provider=github")), a.visit(a.linkURL(mia, "provider=apple"))
	a.do("DELETE /factors/"+e.ID, nil, bearer(other.AccessToken)).is(200, "*")
	for _, back := range []fakeidp.Callback{github, apple} { // by GET and by POST
		a.callback(back).out("access_denied", "insufficient_aal",
			"AAL2 session is required to link or unlink an identity when MFA is enabled.")
	}
	if n := len(a.api.user(mia).Identities); n != 1 {
		t.Errorf("%d identities", n)
	}
}

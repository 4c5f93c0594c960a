package httpapi

import (
	"encoding/base32"
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/totp"
)

// factorJSON, enrolledJSON and challengeJSON are answers as a client reads them.
type factorJSON struct {
	ID, Status, Phone string
	FriendlyName      string `json:"friendly_name"`
	FactorType        string `json:"factor_type"`
	LastChallengedAt  string `json:"last_challenged_at"`
}

type enrolledJSON struct {
	ID, Type, Phone string
	FriendlyName    string `json:"friendly_name"`
	TOTP            struct {
		QRCode      string `json:"qr_code"`
		Secret, URI string
	}
}

type challengeJSON struct {
	ID, Type  string
	ExpiresAt int64 `json:"expires_at"`
}

func (a *api) signIn(email string) grantJSON {
	a.t.Helper()
	return a.signInWith(email, sesame)
}

func (a *api) signInWith(email, password string) (g grantJSON) {
	a.t.Helper()
	a.do("POST /token?grant_type=password", map[string]any{"email": email, "password": password}).json(&g)
	return g
}

func (a *api) user(g grantJSON) (u userJSON) {
	a.t.Helper()
	a.do("GET /user", nil, bearer(g.AccessToken)).json(&u)
	return u
}

// enroll enrolls a TOTP factor.
func (a *api) enroll(g grantJSON, name string) (e enrolledJSON) {
	a.t.Helper()
	a.do("POST /factors", map[string]any{"factor_type": "totp", "friendly_name": name}, bearer(g.AccessToken)).json(&e)
	return e
}

func (a *api) enrollPhone(g grantJSON, name, phone string) (e enrolledJSON) {
	a.t.Helper()
	a.do("POST /factors", map[string]any{"factor_type": "phone", "friendly_name": name, "phone": phone},
		bearer(g.AccessToken)).json(&e)
	return e
}

func (a *api) challenge(g grantJSON, factor string, headers ...header) (ch challengeJSON) {
	a.t.Helper()
	a.do("POST /factors/"+factor+"/challenge", nil, append(headers, bearer(g.AccessToken))...).json(&ch)
	return ch
}

// code is what the app shows for that key, so many steps from now.
func (a *api) code(e enrolledJSON, steps int64) string {
	a.t.Helper()
	key, err := base32.StdEncoding.DecodeString(e.TOTP.Secret)
	if err != nil {
		a.t.Fatal(err)
	}
	return totp.Code(key, totp.Step(a.clock())+steps)
}

func (a *api) answerTo(g grantJSON, factor, challenge, code string, headers ...header) answer {
	a.t.Helper()
	return a.do("POST /factors/"+factor+"/verify", map[string]any{"challenge_id": challenge, "code": code},
		append(headers, bearer(g.AccessToken))...)
}

// verify answers a new challenge of a TOTP factor.
func (a *api) verify(g grantJSON, e enrolledJSON) (up grantJSON) {
	a.t.Helper()
	a.answerTo(g, e.ID, a.challenge(g, e.ID).ID, a.code(e, 0)).json(&up)
	a.pass(totp.Period) // the next one wants another code
	return up
}

// enrolled gives a user a verified TOTP factor.
func (a *api) enrolled(g grantJSON) enrolledJSON {
	a.t.Helper()
	e := a.enroll(g, "")
	a.verify(g, e)
	return e
}

func (a *api) refresh(g grantJSON) answer {
	a.t.Helper()
	return a.do("POST /token?grant_type=refresh_token", map[string]any{"refresh_token": g.RefreshToken})
}

// amrOf are the methods of a token, newest first.
func amrOf(t testing.TB, g grantJSON) string {
	t.Helper()
	claims := claimsOf(t, g.AccessToken)
	var methods []string
	for _, e := range claims["amr"].([]any) {
		methods = append(methods, e.(map[string]any)["method"].(string))
	}
	return fmt.Sprint(claims["aal"], " ", strings.Join(methods, " "))
}

// wrong is a code that is not that one.
func wrong(code string) string {
	last := code[len(code)-1]
	return code[:len(code)-1] + string('0'+(last-'0'+5)%10)
}

// Enroll, challenge, verify, sign in again, unenroll: the whole life of a TOTP factor.
func TestFactors_totp(t *testing.T) {
	a := open(t)
	g := a.member("mia@example.org")
	other := a.signIn("mia@example.org")
	if got := amrOf(t, g); got != "aal1 otp" {
		t.Error(got)
	}
	e := a.enroll(g, "phone")
	uri := "otpauth://totp/app.example.org:mia@example.org?algorithm=SHA1&digits=6&issuer=app.example.org&period=30&secret=" + e.TOTP.Secret
	if e.Type != "totp" || e.FriendlyName != "phone" || e.TOTP.URI != uri || !strings.Contains(e.TOTP.QRCode, "<svg ") {
		t.Errorf("%+v", e)
	}
	if f := a.user(g).Factors; len(f) != 1 || f[0].ID != e.ID || f[0].Status != "unverified" ||
		f[0].FactorType != "totp" || f[0].FriendlyName != "phone" || f[0].LastChallengedAt != "" {
		t.Errorf("%+v", f)
	}
	ch := a.challenge(g, e.ID)
	if ch.Type != "totp" || ch.ExpiresAt != a.clock().Add(5*time.Minute).Unix() {
		t.Errorf("%+v", ch)
	}
	a.answerTo(g, e.ID, ch.ID, wrong(a.code(e, 0))).refused(422, "mfa_verification_failed", "Invalid TOTP code entered")
	var up grantJSON
	a.answerTo(g, e.ID, ch.ID, " "+a.code(e, 0)+" ").json(&up)
	if amrOf(t, up) != "aal2 totp otp" || up.TokenType != "bearer" || len(up.User.Factors) != 1 ||
		up.User.Factors[0].Status != "verified" || up.User.Factors[0].LastChallengedAt == "" {
		t.Errorf("%s %+v", amrOf(t, up), up)
	}
	if sessionOf(t, up.AccessToken) != sessionOf(t, g.AccessToken) {
		t.Error("another session")
	}
	// The refresh token of before is no way into the session that is aal2 now; the session goes on.
	a.refresh(g).refused(400, "refresh_token_not_found", "Invalid Refresh Token: Refresh Token Not Found")
	var next grantJSON
	a.refresh(up).json(&next)
	if got := amrOf(t, next); got != "aal2 totp otp" || len(next.User.Factors) != 1 {
		t.Error(got, next.User.Factors)
	}
	// Sessions below are gone.
	a.refresh(other).refused(400, "refresh_token_not_found", "*")
	a.do("GET /user", nil, bearer(other.AccessToken)).refused(403, "session_not_found", "*")
	// A new sign-in is aal1, and knows of the factor; it rises too and leaves the other alone.
	low := a.signIn("mia@example.org")
	if got := amrOf(t, low); got != "aal1 password" || len(low.User.Factors) != 1 {
		t.Error(got, low.User.Factors)
	}
	a.pass(totp.Period)
	high := a.verify(low, e)
	if got := amrOf(t, high); got != "aal2 totp password" {
		t.Error(got)
	}
	a.do("GET /user", nil, bearer(next.AccessToken)).is(200, "*")
	// Verifying again moves the method's time and adds none.
	again := a.verify(high, e)
	if got := amrOf(t, again); got != "aal2 totp password" {
		t.Error(got)
	}
	// Without the factor all of them are aal1 again.
	low = a.signIn("mia@example.org")
	a.do("DELETE /factors/"+e.ID, nil, bearer(low.AccessToken)).refused(422, "insufficient_aal",
		"AAL2 required to unenroll verified factor")
	a.do("DELETE /factors/"+e.ID, nil, bearer(again.AccessToken)).is(200, `{"id":"`+e.ID+`"}`)
	for _, g := range []grantJSON{again, next} {
		var back grantJSON
		a.refresh(g).json(&back)
		if got := amrOf(t, back); strings.Contains(got, "totp") || !strings.HasPrefix(got, "aal1 ") ||
			back.User.Factors != nil {
			t.Error(got, back.User.Factors)
		}
	}
	a.do("DELETE /factors/"+e.ID, nil, bearer(again.AccessToken)).refused(404, "mfa_factor_not_found",
		"Factor not found")
	var trail []map[string]any
	a.do("GET /admin/audit", nil, a.service()).json(&trail)
	var seen []string
	for _, row := range trail {
		if p := row["payload"].(map[string]any); p["log_type"] == "factor" {
			seen = append([]string{p["action"].(string)}, seen...)
		}
	}
	want := "factor_in_progress challenge_created verification_attempted challenge_created verification_attempted " +
		"challenge_created verification_attempted factor_unenrolled"
	if got := strings.Join(seen, " "); got != want {
		t.Errorf("audit\n%s, want\n%s", got, want)
	}
}

// A code is sent, and works only for the factor that it was sent for.
func TestFactors_phone(t *testing.T) {
	a := open(t, func(s *flow.Settings, _ *Settings) {
		s.Factors.PhoneInterval, s.Factors.OTPLength = time.Minute, 8
		s.Factors.Text = func(code string) string { return "Factor " + code }
	})
	g := a.member("mia@example.org")
	f := func(body map[string]any, status int, code, msg string) {
		t.Helper()
		body["factor_type"] = "phone"
		a.do("POST /factors", body, bearer(g.AccessToken)).refused(status, code, msg)
	}
	f(map[string]any{}, 400, "validation_failed", "Phone number required to enroll Phone factor")
	f(map[string]any{"phone": "12ab"}, 400, "validation_failed", "Invalid phone number format (E.164 required)")
	e := a.enrollPhone(g, "mine", "+49 151 12345678")
	if e.Type != "phone" || e.Phone != "+49 151 12345678" || e.TOTP.Secret != "" {
		t.Errorf("%+v", e)
	}
	// The same number again takes the place of the unverified one, name and all.
	e = a.enrollPhone(g, "mine", "4915112345678")
	if f := a.user(g).Factors; len(f) != 1 || f[0].ID != e.ID || f[0].Phone != "4915112345678" ||
		f[0].FactorType != "phone" {
		t.Errorf("%+v", f)
	}
	path := "POST /factors/" + e.ID + "/challenge"
	a.do(path, map[string]any{"channel": "pigeon"}, bearer(g.AccessToken)).refused(400, "validation_failed",
		"Invalid channel, supported values are 'sms' or 'whatsapp'. 'whatsapp' is only supported if Twilio or Twilio "+
			"Verify is used as the provider.")
	ch := a.challenge(g, e.ID)
	sms := a.newest("4915112345678")
	if sms.Kind != "mfa" || len(sms.Code) != 8 {
		t.Errorf("%+v", sms)
	}
	a.do(path, map[string]any{"channel": "sms"}, bearer(g.AccessToken)).refused(429, "over_sms_send_rate_limit",
		"For security purposes, you can only request this after 60 seconds.")
	a.answerTo(g, e.ID, ch.ID, wrong(sms.Code)).refused(422, "mfa_verification_failed",
		"Invalid MFA Phone code entered")
	var up grantJSON
	a.answerTo(g, e.ID, ch.ID, sms.Code).json(&up)
	if got := amrOf(t, up); got != "aal2 mfa/phone otp" {
		t.Error(got)
	}
	a.do("POST /factors", map[string]any{"factor_type": "phone", "phone": "+4915112345678"}, bearer(up.AccessToken)).
		refused(422, "mfa_verified_factor_exists",
			"A verified phone factor already exists, unenroll the existing factor to continue")

	// The code of one challenge is none of another.
	a.pass(time.Minute)
	first := a.challenge(up, e.ID)
	code := a.newest("4915112345678").Code
	a.pass(time.Minute)
	second := a.challenge(up, e.ID)
	a.answerTo(up, e.ID, second.ID, code).refused(422, "mfa_verification_failed", "*")
	a.answerTo(up, e.ID, first.ID, code).is(200, "*")

	// The caps of all SMS hold here too.
	a.pass(time.Minute)
	a.apply(func(s *flow.Settings, _ *Settings) { s.Phone.Sent.N = 0 })
	a.do(path, nil, bearer(up.AccessToken)).refused(429, "over_sms_send_rate_limit", "SMS rate limit exceeded")
	a.apply(func(s *flow.Settings, _ *Settings) {
		s.Phone.Sent.N, s.Phone.PerNumber = 1000, flow.Rate{N: 1, Per: time.Hour}
	})
	a.do(path, nil, bearer(up.AccessToken)).is(200, "*")
	a.pass(time.Minute)
	a.do(path, nil, bearer(up.AccessToken)).refused(429, "over_sms_send_rate_limit", "SMS rate limit exceeded")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Phone.Configured = false })
	a.do(path, nil, bearer(up.AccessToken)).refused(422, "sms_send_failed", "*")
}

package httpapi

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
)

// The limits on mails and SMS hold at every endpoint that sends.
func TestSending_limits(t *testing.T) {
	a := open(t)
	type m = map[string]any
	g := a.member("mia@example.org")
	me := bearer(g.AccessToken)
	a.do("POST /signup", m{"email": "pending@example.org", "password": sesame}).is(200, "*")
	a.do("POST /signup", m{"phone": "4915112345678", "password": sesame}).is(200, "*")
	a.pass(30 * time.Minute)
	mails := func(status int, code, msg string) {
		t.Helper()
		a.do("POST /signup", m{"email": "new@example.org", "password": sesame}).refused(status, code, msg)
		a.do("POST /otp", m{"email": "mia@example.org"}).refused(status, code, msg)
		a.do("POST /otp", m{"email": "new@example.org"}).refused(status, code, msg)
		a.do("POST /magiclink", m{"email": "mia@example.org"}).refused(status, code, msg)
		a.do("POST /recover", m{"email": "mia@example.org"}).refused(status, code, msg)
		a.do("POST /resend", m{"type": "signup", "email": "pending@example.org"}).refused(status, code, msg)
		a.do("POST /invite", m{"email": "new@example.org"}, a.service()).refused(status, code, msg)
		a.do("PUT /user", m{"email": "new@example.org"}, me).refused(status, code, msg)
		a.do("GET /reauthenticate", nil, me).refused(status, code, msg)
	}
	a.apply(func(s *flow.Settings, _ *Settings) { s.Email.Sent.N = 0 })
	mails(429, "over_email_send_rate_limit", "email rate limit exceeded")
	a.apply(func(s *flow.Settings, _ *Settings) {
		s.Email.Sent.N, s.Email.Authorized = 1000, []string{"boss@example.org"}
	})
	mails(400, "email_address_not_authorized", `Email address "*" cannot be used as it is not authorized`)
	var list struct{ Users []userJSON }
	if a.do("GET /admin/users?email=new@example.org", nil, a.service()).json(&list); len(list.Users) != 0 {
		t.Error("a refused mail leaves a user behind")
	}

	a.do("POST /admin/users", m{"phone": "4915100000002", "phone_confirm": true, "password": sesame},
		a.service()).is(200, "*")
	var byPhone grantJSON
	a.do("POST /token?grant_type=password", m{"phone": "4915100000002", "password": sesame}).json(&byPhone)
	sms := func(status int, code, msg string) {
		t.Helper()
		a.do("GET /reauthenticate", nil, bearer(byPhone.AccessToken)).refused(status, code, msg)
		a.do("POST /signup", m{"phone": "4915187654321", "password": sesame}).refused(status, code, msg)
		a.do("POST /otp", m{"phone": "4915187654321"}).refused(status, code, msg)
		a.do("PUT /user", m{"phone": "4915187654321"}, me).refused(status, code, msg)
	}
	a.apply(func(s *flow.Settings, _ *Settings) { s.Phone.Sent.N = 0 })
	sms(429, "over_sms_send_rate_limit", "SMS rate limit exceeded")
	a.do("POST /resend", m{"type": "sms", "phone": "4915112345678"}).refused(429, "over_sms_send_rate_limit",
		"SMS rate limit exceeded")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Phone.Configured = false })
	sms(422, "sms_send_failed", "Error sending *")
}

// A token is judged claim by claim, in this order, at every endpoint of users and administrators.
func TestTokens_claims(t *testing.T) {
	a := open(t, passkeysOn)
	g := a.member("mia@example.org")
	claims := func(f func(*token.Claims)) header {
		t.Helper()
		var c token.Claims
		must.Succeed(t, must.ErrOf(a.keys.Load().Verify(&c, g.AccessToken, a.clock())))
		f(&c)
		text, err := a.keys.Load().Sign(nil, &c)
		must.Succeed(t, err)
		return bearer(string(text))
	}
	users := []string{"GET /user", "PUT /user", "GET /reauthenticate", "GET /user/sessions",
		"DELETE /user/sessions/" + uuid.NewString(),
		"GET /user/identities/authorize", "DELETE /user/identities/" + uuid.NewString(),
		"POST /factors", "POST /factors/" + uuid.NewString() + "/challenge",
		"POST /factors/" + uuid.NewString() + "/verify", "DELETE /factors/" + uuid.NewString(),
		"POST /passkeys/registration/options", "POST /passkeys/registration/verify", "GET /passkeys",
		"PATCH /passkeys/" + uuid.NewString(), "DELETE /passkeys/" + uuid.NewString(),
		"GET /factors/recovery-codes", "POST /factors/recovery-codes", "DELETE /factors/recovery-codes",
		"POST /factors/recovery-codes/verify", "POST /factors/recovery-codes/regenerate"}
	id := uuid.NewString()
	admins := []string{"POST /invite", "POST /admin/generate_link", "GET /admin/audit", "GET /admin/users",
		"POST /admin/users", "GET /admin/users/" + id,
		"POST /admin/users/" + id, "PUT /admin/users/" + id, "DELETE /admin/users/" + id,
		"GET /admin/users/" + id + "/sessions",
		"GET /admin/users/" + id + "/passkeys", "DELETE /admin/users/" + id + "/passkeys/" + id,
		"GET /admin/users/" + id + "/factors", "PUT /admin/users/" + id + "/factors/" + id,
		"DELETE /admin/users/" + id + "/factors/" + id,
		"DELETE /admin/users/" + id + "/sessions", "DELETE /admin/users/" + id + "/sessions/" + id,
		"GET /admin/outbox", "POST /admin/outbox/1/resend"}
	f := func(routes []string, status int, code, msg string, change func(*token.Claims)) {
		t.Helper()
		for _, route := range routes {
			a.do(route, nil, claims(change)).refused(status, code, msg)
		}
	}
	boss := func(c *token.Claims) { c.Role = "service_role" }
	both := func(f, g func(*token.Claims)) func(*token.Claims) { return func(c *token.Claims) { f(c); g(c) } }
	noSub := func(c *token.Claims) { c.Subject = "" }
	badSub := func(c *token.Claims) { c.Subject = "mia" }
	stranger := func(c *token.Claims) { c.Subject = uuid.NewString() }
	badSession := func(c *token.Claims) { c.SessionID = "x" }
	lostSession := func(c *token.Claims) { c.SessionID = uuid.NewString() }
	f(users, 403, "bad_jwt", "invalid claim: missing sub claim", noSub)
	f(users, 400, "bad_jwt", "invalid claim: sub claim must be a UUID", badSub)
	f(users, 403, "user_not_found", "User from sub claim in JWT does not exist", stranger)
	f(users, 403, "bad_jwt", "invalid claim: session_id claim must be a UUID", badSession)
	f(users, 403, "session_not_found", "Session from session_id claim in JWT does not exist", lostSession)
	f(admins, 400, "bad_jwt", "invalid claim: sub claim must be a UUID", both(boss, badSub))
	f(admins, 403, "user_not_found", "User from sub claim in JWT does not exist", both(boss, stranger))
	f(admins, 403, "bad_jwt", "invalid claim: session_id claim must be a UUID", both(boss, badSession))
	f(admins, 403, "session_not_found", "*", both(boss, lostSession))
	f([]string{"POST /logout"}, 400, "bad_jwt", "invalid claim: sub claim must be a UUID", badSub)
	f([]string{"POST /logout"}, 403, "bad_jwt", "invalid claim: missing sub claim", noSub)
	a.do("POST /logout", nil, claims(stranger)).is(204, "")
	a.do("POST /logout", nil, claims(lostSession)).is(204, "")

	for _, change := range []func(*flow.SessionSettings){
		func(s *flow.SessionSettings) { s.Timebox = time.Minute },
		func(s *flow.SessionSettings) { s.Inactivity = time.Minute },
	} {
		a.pass(2 * time.Minute)
		a.apply(func(s *flow.Settings, _ *Settings) { s.Sessions = flow.SessionSettings{}; change(&s.Sessions) })
		f(users, 403, "session_expired", "Session is no longer valid", func(*token.Claims) {})
		f(admins, 403, "session_expired", "Session is no longer valid", boss)
	}
}

func TestRefusals_others(t *testing.T) {
	a := open(t)
	admin := a.service()
	type m = map[string]any
	g := a.member("mia@example.org")
	me := bearer(g.AccessToken)

	// A number that another user has, or takes before the proof.
	a.do("POST /admin/users", m{"phone": "4915112345678", "phone_confirm": true}, admin).is(200, "*")
	a.do("PUT /user", m{"phone": "4915112345678"}, me).refused(422, "phone_exists",
		"A user with this phone number has already been registered")
	a.do("PUT /user", m{"phone": "4915187654321"}, me).is(200, "*")
	code := a.newest("4915187654321").Code
	a.do("POST /admin/users", m{"phone": "4915187654321", "phone_confirm": true}, admin).is(200, "*")
	a.do("POST /verify", m{"type": "phone_change", "phone": "4915187654321", "token": code}).refused(422,
		"phone_exists", "*")

	// Reauthentication wants a confirmed address.
	var anon grantJSON
	a.do("POST /signup", m{}).json(&anon)
	a.do("PUT /admin/users/"+anon.User.ID, m{"email": "anon@example.org"}, admin).is(200, "*")
	a.do("GET /reauthenticate", nil, bearer(anon.AccessToken)).refused(422, "email_not_confirmed",
		"Please verify your email first.")
	a.do("POST /signup", m{}).json(&anon)
	a.do("PUT /admin/users/"+anon.User.ID, m{"phone": "4915100000001"}, admin).is(200, "*")
	a.do("GET /reauthenticate", nil, bearer(anon.AccessToken)).refused(422, "phone_not_confirmed",
		"Please verify your phone first.")

	a.do("POST /admin/generate_link", m{"type": "signup", "email": "new@example.org", "password": "x"},
		admin).refused(422, "weak_password", "*")
	a.apply(func(s *flow.Settings, _ *Settings) { s.DisableSignup = true })
	a.do("POST /magiclink", m{"email": "new@example.org"}).refused(422, "signup_disabled", "*")

	id := uuid.NewString()
	path := "POST /admin/users/" + id
	a.do(path, m{}).refused(401, "no_authorization", "*")
	a.do(path, m{}, admin).refused(400, "validation_failed", "Cannot create a user without either an email or phone")
	a.do(path, m{"email": "mia@example.org"}, admin).refused(422, "email_exists", "*")
	a.do(path, m{"phone": "4915112345678"}, admin).refused(422, "phone_exists", "*")
	a.do(path, m{"email": "x@example.org", "password": "x"}, admin).refused(422, "weak_password", "*")
	for _, route := range []string{"POST /invite", "POST /admin/generate_link", "POST /admin/users", path} {
		a.do(route, "[", admin).refused(400, "bad_json", "*")
	}
}

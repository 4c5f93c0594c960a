package httpapi

import (
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/account/flow"
)

func TestOTP(t *testing.T) {
	a := open(t)
	a.member("mia@example.org")
	a.pass(time.Hour)
	f := func(status int, code, msg string, in map[string]any) {
		t.Helper()
		a.do("POST /otp", in).refused(status, code, msg)
	}
	type m = map[string]any
	a.do("POST /otp", m{"email": "mia@example.org", "data": m{}, "create_user": true, "gotrue_meta_security": m{},
		"code_challenge": nil, "code_challenge_method": nil}).is(200, "{}")
	l := a.newest("mia@example.org")
	if l.Kind != "magic_link" && l.Kind != "magiclink" {
		t.Errorf("kind %q", l.Kind)
	}
	var g grantJSON
	a.do("POST /verify", m{"type": "email", "email": "mia@example.org", "token": l.Code}).json(&g)
	if g.Type != "magiclink" {
		t.Errorf("type %q", g.Type)
	}
	a.do("POST /otp", m{"email": "new@example.org", "data": m{"nick": "n"}}).is(200, "{}")
	a.do("POST /verify", m{"type": "email", "email": "new@example.org",
		"token": a.newest("new@example.org").Code}).json(&g)
	if g.Type != "signup" || g.User.UserMetadata["nick"] != "n" {
		t.Errorf("session %+v", g)
	}
	a.do("POST /otp", m{"phone": "4915112345678"}).is(200, "{}")
	a.do("POST /verify", m{"type": "sms", "phone": "4915112345678", "token": a.newest("4915112345678").Code}).json(&g)

	f(400, "validation_failed", "Only an email address or phone number should be provided",
		m{"email": "a@b", "phone": "4915112345678"})
	f(400, "validation_failed", "Channel should only be specified with Phone OTP", m{"email": "a@b", "channel": "sms"})
	f(400, "validation_failed", "One of email or phone must be set", m{})
	f(400, "validation_failed", "PKCE flow requires code_challenge_method and code_challenge",
		m{"email": "a@b", "code_challenge": "x"})
	f(422, "otp_disabled", "Signups not allowed for otp", m{"email": "nobody@example.org", "create_user": false})
	f(422, "otp_disabled", "Signups not allowed for otp", m{"phone": "4915187654321", "create_user": false})
	f(400, "validation_failed", "Unable to validate email address: invalid format",
		m{"email": "x", "create_user": false})
	f(400, "validation_failed", "Invalid phone number format (E.164 required)", m{"phone": "x", "create_user": false})
	f(400, "validation_failed", "Invalid channel*", m{"phone": "4915187654321", "channel": "pigeon"})
	a.do("POST /otp", m{"email": "x@example.org"}, header{"X-JWT-AUD", "mine"}).refused(400, "validation_failed",
		"*audience*")
	a.apply(func(s *flow.Settings, _ *Settings) { s.HideUnknownOnOTP = true })
	a.do("POST /otp", m{"email": "nobody@example.org", "create_user": false}).is(200, "{}")
	a.apply(func(s *flow.Settings, _ *Settings) { s.DisableSignup = true })
	f(422, "signup_disabled", "Signups not allowed for this instance", m{"email": "nobody@example.org"})
	a.apply(func(s *flow.Settings, _ *Settings) { s.Phone.Enabled, s.Email.Enabled = false, false })
	f(400, "phone_provider_disabled", "Unsupported phone provider", m{"phone": "4915112345678"})
	f(422, "email_provider_disabled", "Email logins are disabled", m{"email": "mia@example.org"})
}

func TestMagicLink(t *testing.T) {
	a := open(t)
	a.member("mia@example.org")
	a.pass(time.Hour)
	a.do("POST /magiclink", map[string]any{"email": "mia@example.org"}).is(200, "{}")
	if l := a.newest("mia@example.org"); !strings.Contains(l.Link, "&type=magiclink&") {
		t.Errorf("link %s", l.Link)
	}
	a.do("POST /magiclink", map[string]any{"email": "new@example.org"}).is(200, "{}")
	if l := a.newest("new@example.org"); !strings.Contains(l.Link, "&type=signup&") {
		t.Errorf("link %s", l.Link)
	}
	a.do("POST /magiclink", map[string]any{}).refused(422, "validation_failed", "*")
	a.do("POST /magiclink", "{").refused(400, "bad_json", "Could not read verification params: *")
	a.do("POST /magiclink", map[string]any{"email": "x"}).refused(400, "validation_failed", "*")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Email.MagicLink = false })
	off := func(msg string) { // whatever the body is
		t.Helper()
		for _, in := range []any{map[string]any{"email": "mia@example.org"}, "{"} {
			a.do("POST /magiclink", in).refused(422, "email_provider_disabled", msg)
		}
	}
	off("Login with magic link is disabled")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Email.Enabled = false })
	off("Email logins are disabled")
}

func TestRecover(t *testing.T) {
	a := open(t, func(s *flow.Settings, _ *Settings) { s.Email.Interval = time.Minute })
	a.member("mia@example.org")
	a.pass(time.Hour)
	// Known or not: the same answers, also about the pause.
	for _, email := range []string{"mia@example.org", "nobody@example.org"} {
		a.do("POST /recover", map[string]any{"email": email}).is(200, "{}")
		got := a.do("POST /recover", map[string]any{"email": email}).refused(429, "over_email_send_rate_limit",
			"For security purposes, you can only request this after 60 seconds.")
		if got.Header.Get("Retry-After") != "60" {
			t.Errorf("Retry-After %q", got.Header.Get("Retry-After"))
		}
	}
	if l := a.newest("mia@example.org"); !strings.Contains(l.Link, "&type=recovery&") {
		t.Errorf("link %s", l.Link)
	}
	a.do("POST /recover", map[string]any{}).refused(400, "validation_failed", "Password recovery requires an email")
	a.do("POST /recover", map[string]any{"email": "x"}).refused(400, "validation_failed", "*invalid format")
	a.do("POST /recover", "{").refused(400, "bad_json", "*")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Email.Sent = flow.Rate{N: 0, Per: time.Hour} })
	a.pass(time.Hour)
	for _, email := range []string{"mia@example.org", "nobody@example.org"} {
		a.do("POST /recover", map[string]any{"email": email}).refused(429, "over_email_send_rate_limit",
			"email rate limit exceeded")
	}
	a.apply(func(s *flow.Settings, _ *Settings) { s.Email.Enabled = false })
	for _, in := range []any{map[string]any{"email": "mia@example.org"}, "{"} {
		a.do("POST /recover", in).refused(400, "email_provider_disabled", "Email logins are disabled")
	}
}

func TestResend(t *testing.T) {
	a := open(t)
	type m = map[string]any
	a.do("POST /signup", m{"email": "mia@example.org", "password": sesame}).is(200, "*")
	first := a.newest("mia@example.org")
	a.pass(time.Hour / 2)
	uuidForm := `{"message_id":"????????-????-4???-????-????????????"}`
	f := func(in m) {
		t.Helper()
		got := a.do("POST /resend", in)
		if got.StatusCode != 200 || len(got.body) != len(uuidForm) {
			t.Errorf("%v: %d %s", in, got.StatusCode, got.body)
		}
	}
	f(m{"type": "signup", "email": "mia@example.org", "gotrue_meta_security": m{}})
	if l := a.newest("mia@example.org"); l.Hash == first.Hash || l.Code == "" {
		t.Error("nothing new was sent")
	}
	f(m{"type": "signup", "email": "nobody@example.org"})
	f(m{"type": "email_change", "email": "mia@example.org"})
	f(m{"type": "sms", "phone": "4915112345678"})
	f(m{"type": "phone_change", "phone": "4915112345678"})
	r := func(code, msg string, in m) {
		t.Helper()
		a.do("POST /resend", in).refused(400, code, msg)
	}
	r("validation_failed", "Missing one of these types: signup, email_change, sms, phone_change",
		m{"type": "recovery", "email": "a@b"})
	r("validation_failed", "Type provided requires an email address", m{"type": "signup", "phone": "4915112345678"})
	r("validation_failed", "Type provided requires a phone number", m{"type": "sms", "email": "a@b"})
	r("validation_failed", "Only an email address or phone number should be provided.",
		m{"type": "signup", "email": "a@b", "phone": "4915112345678"})
	r("validation_failed", "*invalid format", m{"type": "signup", "email": "x"})
	r("validation_failed", "Invalid phone number format (E.164 required)", m{"type": "sms", "phone": "x"})
	a.apply(func(s *flow.Settings, _ *Settings) { s.Email.Enabled, s.Phone.Enabled = false, false })
	r("email_provider_disabled", "Email logins are disabled", m{"type": "signup", "email": "a@b"})
	r("phone_provider_disabled", "Phone logins are disabled", m{"type": "sms", "phone": "4915112345678"})
}

// Without anything that sends, the answer is the same for all addresses, known or not.
func TestSending_unconfigured(t *testing.T) {
	a := open(t, func(s *flow.Settings, _ *Settings) { s.Email.Configured, s.Phone.Configured = false, false })
	a.do("POST /signup", map[string]any{"email": "mia@example.org", "password": sesame}).refused(500,
		"unexpected_failure", "Error sending confirmation email")
	a.do("POST /recover", map[string]any{"email": "mia@example.org"}).refused(500, "unexpected_failure",
		"Error sending recovery email")
	a.do("POST /signup", map[string]any{"phone": "4915112345678", "password": sesame}).refused(422,
		"sms_send_failed", "*")
	// /resend is the exception: the client library reads a message_id, whether anything waits for the number or not.
	a.apply(func(s *flow.Settings, _ *Settings) { s.Phone.Configured = true })
	a.do("POST /signup", map[string]any{"phone": "4915112345678", "password": sesame}).is(200, "*")
	a.apply(func(s *flow.Settings, _ *Settings) { s.Phone.Configured = false })
	for _, typ := range []string{"sms", "phone_change"} {
		for _, number := range []string{"4915112345678", "4915112345679"} {
			a.do("POST /resend", map[string]any{"type": typ, "phone": number}).is(200, `{"message_id":"*"}`)
		}
	}
}

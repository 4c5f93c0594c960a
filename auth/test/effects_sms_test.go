package test

import (
	"slices"
	"strings"
	"testing"

	"gatehouse/auth/internal/captcha/captchatest"
	"gatehouse/auth/internal/sms/smstest"
	"gatehouse/shared/await"
	"gatehouse/shared/testdb"
)

// The whole way of a number: no gateway, one by SIGHUP, a code that comes and signs in, another gateway, and
// captchas before all of it.
func TestSMSGateway(t *testing.T) {
	t.Parallel()
	gateway, captchas := smstest.Start(t), captchatest.Start(t)
	dir := t.TempDir()
	writeSettings(t, dir, "AUTH_SMS_PROVIDER=twilio")
	env := environment(testdb.Postgres(t), "AUTH_DEV_MAILBOX=false", "AUTH_MAILER_AUTOCONFIRM=true",
		"AUTH_EXTERNAL_PHONE_ENABLED=true",
		"AUTH_SMS_MAX_FREQUENCY=0", "AUTH_RATE_LIMIT_SMS_PER_NUMBER=0", "AUTH_SMS_TEMPLATE=Use {{ .Code }} now",
		"AUTH_SMS_TEST_OTP=4915100000007:424242")
	d := launch(t, dir, env)
	d.awaitReady(t)
	d.log.await(t, "AUTH_SMS_PROVIDER=twilio needs AUTH_SMS_TWILIO_ACCOUNT_SID", nil)
	const number = "4915112345678"
	if a := d.want(t, 422, "POST", "/otp", "", `{"phone":"+`+number+`"}`); a.str("error_code") != "sms_send_failed" {
		t.Error(a.text)
	}
	d.want(t, 200, "POST", "/otp", "", `{"phone":"+4915100000007"}`)
	d.want(t, 200, "POST", "/verify", "", `{"type":"sms","phone":"+4915100000007","token":"424242"}`)

	signIn := func(by, channel, more string) {
		t.Helper()
		n := len(gateway.Taken())
		d.want(t, 200, "POST", "/otp", "", `{"phone":"+`+number+`","channel":"`+channel+`"`+more+`}`)
		await.True(t, "the SMS", func() bool { return len(gateway.Taken()) > n })
		got := gateway.Taken()[n]
		code := strings.TrimSuffix(strings.TrimPrefix(got.Text, "Use "), " now")
		if got.Gateway != by || got.To != number || got.Channel != channel || len(code) != 6 {
			t.Errorf("%+v", got)
		}
		if a := d.want(t, 200, "POST", "/verify", "",
			`{"type":"sms","phone":"+`+number+`","token":"`+code+`"}`); a.str("access_token") == "" {
			t.Error(a.text)
		}
		for _, hidden := range append(smstest.Secrets(), code, number) {
			if strings.Contains(d.log.text(), hidden) {
				t.Errorf("the log holds %q", hidden)
			}
		}
	}
	d.with(t, append(gateway.Environ(), "AUTH_SMS_PROVIDER=twilio")...)
	signIn("twilio", "sms", "")
	signIn("twilio", "whatsapp", "")
	d.with(t, append(gateway.Environ(), "AUTH_SMS_PROVIDER=messagebird")...)
	signIn("messagebird", "sms", "")
	if a := d.want(t, 400, "POST", "/otp", "",
		`{"phone":"+`+number+`","channel":"whatsapp"}`); a.str("error_code") != "validation_failed" {
		t.Error(a.text)
	}

	d.with(t, append(gateway.Environ(), "AUTH_SMS_PROVIDER=vonage", "AUTH_SECURITY_CAPTCHA_ENABLED=true",
		"AUTH_SECURITY_CAPTCHA_SECRET="+captchatest.Secret, "AUTH_SECURITY_CAPTCHA_URL="+captchas.URL())...)
	if a := d.want(t, 400, "POST", "/otp", "", `{"phone":"+`+number+`"}`); a.str("error_code") != "captcha_failed" {
		t.Error(a.text)
	}
	signIn("vonage", "sms", `,"gotrue_meta_security":{"captcha_token":"`+captchatest.Solved+`"}`)
	if q := captchas.Asked(); len(q) != 1 || q[0].IP != "127.0.0.1" {
		t.Errorf("%+v", q)
	}
	if text := d.log.text(); strings.Contains(text, captchatest.Secret) || strings.Contains(text, captchatest.Solved) ||
		!strings.Contains(text, "the captcha provider is somewhere else than usual") || !strings.Contains(text,
		"the SMS gateway is somewhere else than usual") {
		t.Error("the log")
	}

	// A failure is the outbox's to show: for good, or to be tried again.
	list := func() string {
		t.Helper()
		status, stdout, stderr := command(t, env, "", "mail", "list", "-n", "1")
		if status != 0 {
			t.Fatal(stdout, stderr)
		}
		return stdout
	}
	solved := `{"phone":"+` + number + `","captcha_token":"` + captchatest.Solved + `"}`
	gateway.Behave(smstest.Always(smstest.Answer{Body: `{"messages":[{"status":"7","error-text":"` +
		number + ` is barred"}]}`}))
	d.want(t, 200, "POST", "/otp", "", solved)
	await.True(t, "it is given up", func() bool {
		l := list()
		return strings.Contains(l, "failed") && strings.Contains(l, "sms: vonage: <recipient> is barred (status: 7)")
	})
	gateway.Behave(smstest.Always(smstest.Answer{Body: `{"messages":[{"status":"1","error-text":"Throttled"}]}`}))
	d.want(t, 200, "POST", "/otp", "", solved)
	await.True(t, "it waits", func() bool {
		l := list()
		return strings.Contains(l, "pending") && strings.Contains(l, "sms: vonage: Throttled (status: 1)")
	})
	gateway.Behave(nil)
	await.True(t, "it is sent", func() bool { return strings.Contains(list(), "sent") })

	// What auth check says: the gateway, what the captcha provider thinks of the secret, and what is missing.
	for environ, want := range map[string][]string{
		"AUTH_SMS_PROVIDER=vonage": {"ok    SMS gateway: vonage at " + gateway.URL(),
			"ok    captcha: hcaptcha at " + captchas.URL()},
		"AUTH_SMS_PROVIDER=vonage AUTH_SMS_VONAGE_FROM= AUTH_SECURITY_CAPTCHA_SECRET=wrong": {
			"warn  AUTH_SMS_PROVIDER=vonage needs AUTH_SMS_VONAGE_FROM: ",
			"FAIL  captcha: hcaptcha at " +
				captchas.URL() + ": hcaptcha does not know AUTH_SECURITY_CAPTCHA_SECRET: invalid-input-secret"},
	} {
		all := slices.Concat(env, gateway.Environ(),
			[]string{"AUTH_SECURITY_CAPTCHA_ENABLED=true", "AUTH_SECURITY_CAPTCHA_SECRET=" + captchatest.Secret,
				"AUTH_SECURITY_CAPTCHA_URL=" + captchas.URL()}, strings.Fields(environ))
		_, stdout, stderr := command(t, all, "", "check")
		for _, w := range want {
			if !strings.Contains(stdout, w) {
				t.Errorf("%s: no %q in\n%s\n%s", environ, w, stdout, stderr)
			}
		}
	}
}

// What the other settings of SMS do, each put in force by SIGHUP alone.
func TestSMS_effects(t *testing.T) {
	t.Parallel()
	gateway, database, dir := smstest.Start(t), testdb.Postgres(t), t.TempDir()
	settings := func(lines ...string) []string {
		return slices.Concat(gateway.Environ(), []string{"AUTH_SMS_PROVIDER=textlocal"}, lines)
	}
	writeSettings(t, dir, settings()...)
	d := launch(t, dir, environment(database, "AUTH_DEV_MAILBOX=false", "AUTH_MAILER_AUTOCONFIRM=true",
		"AUTH_EXTERNAL_PHONE_ENABLED=true"))
	d.awaitReady(t)
	otp := func(status int, number string) answer {
		t.Helper()
		return d.want(t, status, "POST", "/otp", "", `{"phone":"+`+number+`"}`)
	}
	sms := func(number string) string {
		t.Helper()
		n := len(gateway.Taken())
		otp(200, number)
		await.True(t, "the SMS", func() bool { return len(gateway.Taken()) > n })
		if got := gateway.Taken()[n]; got.To == number {
			return got.Text
		}
		t.Fatalf("%+v", gateway.Taken())
		return ""
	}

	if text := sms("4915100000001"); len(text) != len("Your code is 123456") ||
		!strings.HasPrefix(text, "Your code is ") {
		t.Errorf("the default text: %q", text)
	}
	if a := otp(429, "4915100000001"); !strings.HasPrefix(a.str("msg"),
		"For security purposes, you can only request this after ") {
		t.Error(a.text)
	}
	d.with(t, settings("AUTH_SMS_MAX_FREQUENCY=0", "AUTH_SMS_OTP_LENGTH=9", "AUTH_SMS_TEMPLATE={{.Code}}!",
		"AUTH_SMS_OTP_EXP=77")...)
	if text := sms("4915100000001"); len(text) != len("123456789!") {
		t.Errorf("AUTH_SMS_OTP_LENGTH=9 and a template: %q", text)
	}
	if life := rows[float64](t, database,
		`select extract(epoch from expires_at - created_at)::float8 from one_time_tokens where address = '4915100000001' order by created_at desc limit 1`); life[0] != 77 {
		t.Errorf("AUTH_SMS_OTP_EXP=77: %v", life)
	}

	d.with(t, settings("AUTH_SMS_MAX_FREQUENCY=0", "AUTH_SMS_TEST_OTP=+4915100000002:424242")...)
	n := len(gateway.Taken())
	otp(200, "4915100000002")
	d.want(t, 200, "POST", "/verify", "", `{"type":"sms","phone":"+4915100000002","token":"424242"}`)
	d.with(t, settings("AUTH_SMS_MAX_FREQUENCY=0", "AUTH_SMS_TEST_OTP=+4915100000002:424242",
		"AUTH_SMS_TEST_OTP_VALID_UNTIL=2020-01-01T00:00:00Z")...)
	sms("4915100000002")
	d.want(t, 403, "POST", "/verify", "", `{"type":"sms","phone":"+4915100000002","token":"424242"}`)
	if taken := gateway.Taken(); len(taken) != n+1 {
		t.Errorf("a test number got an SMS: %+v", taken[n:])
	}

	const over = "SMS rate limit exceeded"
	for _, limit := range []struct{ setting, first, second string }{
		{"AUTH_RATE_LIMIT_SMS_PER_NUMBER=1", "4915100000003", "4915100000003"},
		{"AUTH_RATE_LIMIT_SMS_PER_PREFIX=1", "4915200000001", "4915200000002"},
		{"AUTH_RATE_LIMIT_SMS_SENT=0", "", "4915300000001"},
	} {
		d.with(t, settings("AUTH_SMS_MAX_FREQUENCY=0", limit.setting)...)
		if limit.first != "" {
			sms(limit.first)
		}
		if a := otp(429, limit.second); a.str("msg") != over || a.str("error_code") != "over_sms_send_rate_limit" {
			t.Errorf("%s: %s", limit.setting, a.text)
		}
	}
}

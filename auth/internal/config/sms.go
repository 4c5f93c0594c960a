package config

import (
	"strings"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/sms"
	"gatehouse/shared/settings"
)

// smsConfig has the settings of SMS.
type smsConfig struct {
	// Digits of a code in an SMS, 6 to 10; any other number counts as 6.
	OTPLength int `env:"AUTH_SMS_OTP_LENGTH" envDefault:"6"`
	// Text of an SMS in every language: a template with `.Code`. Unset: "Your code is …" in the user's language.
	Template string `env:"AUTH_SMS_TEMPLATE"`
	// Numbers that get no SMS and have a fixed code: `number:code,…`, each number once.
	TestOTP map[string]string `env:"AUTH_SMS_TEST_OTP" secret:"true"`
	// Time until which the fixed codes work (RFC 3339); unset: for ever, with a warning.
	TestOTPUntil string `env:"AUTH_SMS_TEST_OTP_VALID_UNTIL"`
}

// smsSettings returns the settings of the SMS gateway. With the dev mailbox, there is no gateway.
func (c *Config) smsSettings() sms.Settings {
	s := c.Gateways
	s.Timeout = c.Providers.Timeout
	if c.Dev.Mailbox {
		s.Provider = ""
	}
	return s
}

// texted reports whether SMS can be sent: by a gateway, by a hook, or to the dev mailbox.
func (c *Config) texted() bool {
	s := c.smsSettings()
	return c.Dev.Mailbox || c.Hooks.SendSMS.Enabled || s.Provider != "" && len(s.Missing()) == 0
}

func (c *Config) checkSMS(r *settings.Report) {
	switch c.Gateways.Provider {
	case "twilio":
		c.checkOutward(r, "AUTH_SMS_TWILIO_URL", c.Gateways.Twilio.URL)
	case "messagebird":
		c.checkOutward(r, "AUTH_SMS_MESSAGEBIRD_URL", c.Gateways.MessageBird.URL)
	case "textlocal":
		c.checkOutward(r, "AUTH_SMS_TEXTLOCAL_URL", c.Gateways.Textlocal.URL)
	case "vonage":
		c.checkOutward(r, "AUTH_SMS_VONAGE_URL", c.Gateways.Vonage.URL)
	}
	switch missing := c.smsSettings().Missing(); {
	case c.Dev.Mailbox && c.Gateways.Provider != "":
		r.Warn("AUTH_SMS_PROVIDER has no effect with AUTH_DEV_MAILBOX=true: nothing is sent")
	case len(missing) > 0 && !c.Hooks.SendSMS.Enabled:
		r.Warn("AUTH_SMS_PROVIDER=%s needs %s: until then every SMS is refused, but for test numbers",
			c.Gateways.Provider, strings.Join(missing, ", "))
	case c.Accounts.Phone.Enabled && !c.texted():
		r.Warn("AUTH_SMS_PROVIDER is not set, and AUTH_EXTERNAL_PHONE_ENABLED=true: every SMS is refused, but for " +
			"test numbers")
	}
	if len(c.SMS.TestOTP) > 0 && !r.IsSet("AUTH_SMS_TEST_OTP_VALID_UNTIL") {
		r.Warn("AUTH_SMS_TEST_OTP works for ever: anyone who knows a test number's code can sign in with it; set " +
			"AUTH_SMS_TEST_OTP_VALID_UNTIL")
	}
}

func (c *Config) phoneSettings(r *settings.Report) flow.PhoneSettings {
	p := c.Accounts.Phone
	p.Configured, p.OTPLength = c.texted(), c.SMS.OTPLength
	p.WhatsApp, p.AnyChannel = c.Dev.Mailbox || c.Gateways.Provider == "twilio", c.Hooks.SendSMS.Enabled
	p.Sent = parseRate(r, "AUTH_RATE_LIMIT_SMS_SENT", c.Limits.SMS)
	p.PerNumber = parseRate(r, "AUTH_RATE_LIMIT_SMS_PER_NUMBER", c.Limits.SMSPerNumber)
	p.PerPrefix = parseRate(r, "AUTH_RATE_LIMIT_SMS_PER_PREFIX", c.Limits.SMSPerPrefix)
	p.TestCodes = map[string]string{}
	for number, code := range c.SMS.TestOTP {
		normal, err := address.Phone(number)
		if err != nil || code == "" || strings.Trim(code, "0123456789") != "" || p.TestCodes[normal] != "" {
			r.Wrong("AUTH_SMS_TEST_OTP", "wants number:code, each number once, with its country code, the code in digits")
			break // one error about this setting is enough
		}
		p.TestCodes[normal] = code
	}
	if t := c.SMS.TestOTPUntil; t != "" {
		var err error
		if p.TestUntil, err = time.Parse(time.RFC3339, t); err != nil {
			r.Wrong("AUTH_SMS_TEST_OTP_VALID_UNTIL", "not a time such as 2031-03-05T07:00:00Z")
		}
	}
	p.Text = codeText(r, "AUTH_SMS_TEMPLATE", c.SMS.Template)
	return p
}

package config

import (
	"strings"
	"time"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/sms"
	"gatehouse/shared/settings"
)

// smsConfig is SMS.
type smsConfig struct {
	// Phone numbers count as confirmed at once.
	Autoconfirm bool `env:"AUTH_SMS_AUTOCONFIRM" envDefault:"false"`
	// Pause between two SMS to one number.
	MaxFrequency time.Duration `env:"AUTH_SMS_MAX_FREQUENCY" envDefault:"60" min:"0s"`
	// Life of the code in an SMS.
	OTPLife time.Duration `env:"AUTH_SMS_OTP_EXP" envDefault:"300" min:"1s"`
	// Digits of the code, 6 to 10; anything else counts as 6.
	OTPLength int `env:"AUTH_SMS_OTP_LENGTH" envDefault:"6"`
	// Gateway: twilio, messagebird, textlocal or vonage. Unset: only test numbers get a code.
	Provider string `env:"AUTH_SMS_PROVIDER" oneof:"twilio messagebird textlocal vonage"`
	// Text of an SMS: a template with `.Code`.
	Template string `env:"AUTH_SMS_TEMPLATE" envDefault:"Your code is {{ .Code }}"`
	// Numbers that get no SMS and have a fixed code: `number:code,…`.
	TestOTP map[string]string `env:"AUTH_SMS_TEST_OTP" secret:"true"`
	// Time until which these work (RFC 3339); unset: for ever, with a warning.
	TestOTPUntil string `env:"AUTH_SMS_TEST_OTP_VALID_UNTIL"`

	Twilio      twilioConfig
	MessageBird messageBirdConfig
	Textlocal   textlocalConfig
	Vonage      vonageConfig
}

type twilioConfig struct {
	// Needed by twilio. Account SID.
	AccountSID string `env:"AUTH_SMS_TWILIO_ACCOUNT_SID"`
	// Needed likewise.
	AuthToken string `env:"AUTH_SMS_TWILIO_AUTH_TOKEN" secret:"true"`
	// Needed likewise. SID of a messaging service, or the sender's number.
	Service string `env:"AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID"`
	// SID of the content template of WhatsApp messages, whose variable 1 is the code; unset: AUTH_SMS_TEMPLATE.
	ContentSID string `env:"AUTH_SMS_TWILIO_CONTENT_SID"`
	// Scheme and host in the place of the gateway's own.
	URL string `env:"AUTH_SMS_TWILIO_URL"`
}

type messageBirdConfig struct {
	// Needed by messagebird.
	AccessKey string `env:"AUTH_SMS_MESSAGEBIRD_ACCESS_KEY" secret:"true"`
	// Needed likewise. Sender: a number with its +, or a name of up to 11 letters and digits.
	Originator string `env:"AUTH_SMS_MESSAGEBIRD_ORIGINATOR"`
	// As of twilio.
	URL string `env:"AUTH_SMS_MESSAGEBIRD_URL"`
}

type textlocalConfig struct {
	// Needed by textlocal.
	APIKey string `env:"AUTH_SMS_TEXTLOCAL_API_KEY" secret:"true"`
	// Needed likewise. Sender as registered with the gateway.
	Sender string `env:"AUTH_SMS_TEXTLOCAL_SENDER"`
	// As of twilio.
	URL string `env:"AUTH_SMS_TEXTLOCAL_URL"`
}

type vonageConfig struct {
	// Needed by vonage.
	APIKey string `env:"AUTH_SMS_VONAGE_API_KEY" secret:"true"`
	// Needed likewise.
	APISecret string `env:"AUTH_SMS_VONAGE_API_SECRET" secret:"true"`
	// Needed likewise. Sender: a number or a name.
	From string `env:"AUTH_SMS_VONAGE_FROM"`
	// As of twilio.
	URL string `env:"AUTH_SMS_VONAGE_URL"`
}

// smsSettings are those of the gateway; with the dev mailbox there is none.
func (c *Config) smsSettings() sms.Settings {
	s := sms.Settings{
		Provider: c.SMS.Provider,
		Twilio: sms.Twilio{AccountSID: c.SMS.Twilio.AccountSID, AuthToken: c.SMS.Twilio.AuthToken,
			From: c.SMS.Twilio.Service, ContentSID: c.SMS.Twilio.ContentSID, URL: c.SMS.Twilio.URL},
		MessageBird: sms.MessageBird(c.SMS.MessageBird),
		Textlocal:   sms.Textlocal(c.SMS.Textlocal),
		Vonage:      sms.Vonage(c.SMS.Vonage),
		Timeout:     c.External.Timeout,
	}
	if c.Dev.Mailbox {
		s.Provider = ""
	}
	return s
}

// texted says whether something sends SMS.
func (c *Config) texted() bool {
	s := c.smsSettings()
	return c.Dev.Mailbox || c.Hooks.SendSMS.Enabled || s.Provider != "" && len(s.Missing()) == 0
}

func (c *Config) checkSMS(r *settings.Report) {
	switch c.SMS.Provider {
	case "twilio":
		c.checkOutward(r, "AUTH_SMS_TWILIO_URL", c.SMS.Twilio.URL)
	case "messagebird":
		c.checkOutward(r, "AUTH_SMS_MESSAGEBIRD_URL", c.SMS.MessageBird.URL)
	case "textlocal":
		c.checkOutward(r, "AUTH_SMS_TEXTLOCAL_URL", c.SMS.Textlocal.URL)
	case "vonage":
		c.checkOutward(r, "AUTH_SMS_VONAGE_URL", c.SMS.Vonage.URL)
	}
	switch missing := c.smsSettings().Missing(); {
	case c.Dev.Mailbox && c.SMS.Provider != "":
		r.Warn("AUTH_SMS_PROVIDER has no effect with AUTH_DEV_MAILBOX=true: nothing is sent")
	case len(missing) > 0 && !c.Hooks.SendSMS.Enabled:
		r.Warn("AUTH_SMS_PROVIDER=%s needs %s: until then every SMS is refused, but for test numbers",
			c.SMS.Provider, strings.Join(missing, ", "))
	case c.General.Phone && !c.texted():
		r.Warn("AUTH_SMS_PROVIDER is not set, and AUTH_EXTERNAL_PHONE_ENABLED=true: every SMS is refused, but for test numbers")
	}
	if len(c.SMS.TestOTP) > 0 && !r.IsSet("AUTH_SMS_TEST_OTP_VALID_UNTIL") {
		r.Warn("AUTH_SMS_TEST_OTP works for ever: anyone who knows a test number's code can sign in with it; set AUTH_SMS_TEST_OTP_VALID_UNTIL")
	}
}

func (c *Config) phoneSettings(r *settings.Report) account.PhoneSettings {
	p := account.PhoneSettings{
		Enabled: c.General.Phone, Configured: c.texted(),
		WhatsApp: c.Dev.Mailbox || c.SMS.Provider == "twilio", AnyChannel: c.Hooks.SendSMS.Enabled,
		Autoconfirm: c.SMS.Autoconfirm, OTPLife: c.SMS.OTPLife, OTPLength: c.SMS.OTPLength, Interval: c.SMS.MaxFrequency,
		Sent:      parseRate(r, "AUTH_RATE_LIMIT_SMS_SENT", c.Limits.SMS),
		PerNumber: parseRate(r, "AUTH_RATE_LIMIT_SMS_PER_NUMBER", c.Limits.SMSPerNumber),
		PerPrefix: parseRate(r, "AUTH_RATE_LIMIT_SMS_PER_PREFIX", c.Limits.SMSPerPrefix),
		TestCodes: map[string]string{},
	}
	for number, code := range c.SMS.TestOTP {
		normal, err := address.Phone(number)
		if err != nil || code == "" || strings.Trim(code, "0123456789") != "" {
			r.Wrong("AUTH_SMS_TEST_OTP", "wants number:code, the number with its country code, the code in digits")
			break // other gateways' places mean nothing
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

package flow

import (
	"errors"
	"time"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/address"
)

const badChannel = "Invalid channel, supported values are 'sms' or 'whatsapp'. 'whatsapp' is only supported if " +
	"Twilio or Twilio Verify is used as the provider."

// ParseEmail checks an e-mail address from a client and returns it in the form in which it is stored.
func ParseEmail(text string) (string, error) {
	email, err := address.Email(text)
	if err != nil {
		return "", refusal.NotValid(err.Error())
	}
	return email, nil
}

// ParsePhone checks a phone number from a client and returns it in the form in which it is stored.
func ParsePhone(text string) (string, error) {
	phone, err := address.Phone(text)
	if err != nil {
		return "", refusal.NotValid(err.Error())
	}
	return phone, nil
}

const whatsApp = "whatsapp"

// ChannelOf returns the channel that an SMS is sent by: whatsapp or, for any other text, sms. CheckChannel accepts
// texts other than these two only if a hook sends the SMS.
func ChannelOf(channel string) string {
	if channel == whatsApp {
		return channel
	}
	return "sms"
}

// CheckChannel refuses the channel that a request names for an SMS if nothing is configured to send by it.
func (p *PhoneSettings) CheckChannel(channel string) error {
	if channel == "" || channel == "sms" || channel == whatsApp && p.WhatsApp || p.AnyChannel {
		return nil
	}
	return refusal.NotValid(badChannel)
}

// CheckMagicLink returns a refusal if sign-in by e-mail or by magic link is switched off.
func (e *EmailSettings) CheckMagicLink() error {
	switch {
	case !e.Enabled:
		return refusal.Unprocessable(refusal.CodeEmailProviderDisabled, "Email logins are disabled")
	case !e.MagicLink:
		return refusal.Unprocessable(refusal.CodeEmailProviderDisabled, "Login with magic link is disabled")
	}
	return nil
}

// CheckRecovery returns a refusal if sign-in by e-mail is switched off.
func (e *EmailSettings) CheckRecovery() error {
	if !e.Enabled {
		return refusal.Invalid(refusal.CodeEmailProviderDisabled, "Email logins are disabled")
	}
	return nil
}

// CheckMailSendable returns a failure if no mail can be sent. Its text names the mail as the parameter what does, such
// as "email change". It is called before the address is looked up, so that the answer does not reveal whether the
// address has an account.
func (s *Settings) CheckMailSendable(what string) error {
	if !s.Email.Configured {
		return &refusal.Refusal{Kind: refusal.KindFailed, Code: refusal.CodeUnexpectedFailure,
			Msg: "Error sending " + what + " email", Err: errors.New("no mail server is configured")}
	}
	return nil
}

// CheckSMSSendable returns a failure if no SMS can be sent to the number, as CheckMailSendable does for mails. It
// accepts test numbers, to which no SMS is sent.
func CheckSMSSendable(f *Flow, what, number string) error {
	if _, test := f.Settings.Phone.TestCode(number, f.Now); !test && !f.Settings.Phone.Configured {
		r := refusal.Unprocessable(refusal.CodeSMSSendFailed,
			"Error sending "+what+" OTP to provider: no SMS provider is configured")
		r.Err = errors.New("AUTH_SMS_PROVIDER is not set, or its credentials are missing")
		return r
	}
	return nil
}

// TestCode returns the fixed code of a test number (SMS_TEST_OTP), and whether number is one at the time now.
func (p *PhoneSettings) TestCode(number string, now time.Time) (string, bool) {
	code, ok := p.TestCodes[number]
	return code, ok && (p.TestUntil.IsZero() || now.Before(p.TestUntil))
}

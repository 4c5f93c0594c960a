package sms

import "regexp"

var (
	accountSID = regexp.MustCompile(`^AC[0-9a-fA-F]{32}$`)
	serviceSID = regexp.MustCompile(`^MG[0-9a-fA-F]{32}$`)
	contentSID = regexp.MustCompile(`^HX[0-9a-fA-F]{32}$`)
	// sender is a number, a short code, or a name of up to 11 letters and digits (3GPP TS 23.040, 9.1.2.5: an
	// alphanumeric address has 11 characters).
	sender = regexp.MustCompile(`^(\+?[0-9 ]{3,20}|[A-Za-z0-9 _.-]{1,11})$`)
)

// Lint returns, by their variables, settings of the chosen gateway whose form is unusual for their purpose. They are
// tried all the same: a gateway may know more kinds than these. Empty ones are Missing's.
func (s Settings) Lint() (all []string) {
	f := func(name, value, what string, forms ...*regexp.Regexp) {
		for _, form := range forms {
			if value == "" || form.MatchString(value) {
				return
			}
		}
		all = append(all, name+" does not look like "+what)
	}
	const aSender = "a number or a name of up to 11 letters and digits"
	switch s.Provider {
	case "twilio":
		f("AUTH_SMS_TWILIO_ACCOUNT_SID", s.Twilio.AccountSID, "an account's SID: AC and 32 hexadecimal digits",
			accountSID)
		f("AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID", s.Twilio.From,
			"a messaging service's SID (MG and 32 hexadecimal digits), "+aSender, serviceSID, sender)
		f("AUTH_SMS_TWILIO_CONTENT_SID", s.Twilio.ContentSID, "a content template's SID: HX and 32 hexadecimal digits",
			contentSID)
	case "messagebird":
		f("AUTH_SMS_MESSAGEBIRD_ORIGINATOR", s.MessageBird.Originator, aSender, sender)
	case "textlocal":
		f("AUTH_SMS_TEXTLOCAL_SENDER", s.Textlocal.Sender, aSender, sender)
	case "vonage":
		f("AUTH_SMS_VONAGE_FROM", s.Vonage.From, aSender, sender)
	}
	return all
}

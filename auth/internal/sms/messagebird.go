package sms

import (
	"net/http"
	"net/url"

	"gatehouse/auth/internal/mail"
)

// MessageBird has the settings of the gateway MessageBird (https://developers.messagebird.com/api/sms-messaging).
type MessageBird struct {
	// Required with AUTH_SMS_PROVIDER=messagebird.
	AccessKey string `env:"AUTH_SMS_MESSAGEBIRD_ACCESS_KEY" secret:"true"`
	// Required with AUTH_SMS_PROVIDER=messagebird. Sender: a number with its +, or a name of up to 11 letters and
	// digits.
	Originator string `env:"AUTH_SMS_MESSAGEBIRD_ORIGINATOR"`
	// Scheme and host to call in the place of the gateway's own.
	URL string `env:"AUTH_SMS_MESSAGEBIRD_URL"`
}

func (b MessageBird) missing() []string {
	return lacking("AUTH_SMS_MESSAGEBIRD_ACCESS_KEY", b.AccessKey, "AUTH_SMS_MESSAGEBIRD_ORIGINATOR", b.Originator)
}

func (b MessageBird) base() string { return baseOr(b.URL, "https://rest.messagebird.com") }

func (b MessageBird) secrets() []string { return []string{b.AccessKey} }

func (b MessageBird) request(m mail.SMS) (string, url.Values, http.Header, error) {
	form := url.Values{"originator": {b.Originator}, "body": {m.Text}, "recipients": {m.To}, "type": {"sms"},
		"datacoding": {"unicode"}}
	return "/messages", form, http.Header{"Authorization": {"AccessKey " + b.AccessKey}}, plainOnly(m)
}

// messageBirdMends are the error codes that are not about the message but about a wrong key, an empty balance or a
// failure of the gateway. The operator or the gateway can repair these, so the message is tried again.
var messageBirdMends = map[text]bool{"2": true, "25": true, "98": true, "99": true}

func (b MessageBird) read(a answer) (string, *failure) {
	var in struct {
		ID     text `json:"id"`
		Errors []struct {
			Code        text `json:"code"`
			Description text `json:"description"`
		} `json:"errors"`
		Recipients struct {
			Sent int `json:"totalSentCount"`
		} `json:"recipients"`
	}
	if f := a.decode(&in); f != nil {
		return "", f
	}
	switch {
	case len(in.Errors) > 0:
		e := in.Errors[0]
		f := again("%d: %s (code %s)", a.status, e.Description, e.Code)
		f.final = a.aboutMessage() && e.Code != "" && !messageBirdMends[e.Code]
		return "", f
	case !a.ok():
		return "", again("it answers %d", a.status)
	case in.Recipients.Sent == 0:
		return "", again("total sent count is 0")
	}
	return string(in.ID), nil
}

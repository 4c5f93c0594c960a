package sms

import (
	"net/http"
	"net/url"

	"gatehouse/auth/internal/mail"
)

// Vonage has the settings of the gateway Vonage, formerly Nexmo (https://developer.vonage.com/api/sms).
type Vonage struct {
	// Required with AUTH_SMS_PROVIDER=vonage.
	APIKey string `env:"AUTH_SMS_VONAGE_API_KEY" secret:"true"`
	// Required with AUTH_SMS_PROVIDER=vonage.
	APISecret string `env:"AUTH_SMS_VONAGE_API_SECRET" secret:"true"`
	// Required with AUTH_SMS_PROVIDER=vonage. Sender: a number or a name.
	From string `env:"AUTH_SMS_VONAGE_FROM"`
	// Scheme and host to call in the place of the gateway's own.
	URL string `env:"AUTH_SMS_VONAGE_URL"`
}

func (v Vonage) missing() []string {
	return lacking("AUTH_SMS_VONAGE_API_KEY", v.APIKey, "AUTH_SMS_VONAGE_API_SECRET", v.APISecret,
		"AUTH_SMS_VONAGE_FROM", v.From)
}

func (v Vonage) base() string { return baseOr(v.URL, "https://rest.nexmo.com") }

func (v Vonage) secrets() []string { return []string{v.APISecret, v.APIKey} }

func (v Vonage) request(m mail.SMS) (string, url.Values, http.Header, error) {
	form := url.Values{"from": {v.From}, "to": {m.To}, "text": {m.Text}, "api_key": {v.APIKey},
		"api_secret": {v.APISecret}}
	if !isASCII(m.Text) {
		form.Set("type", "unicode")
	}
	return "/sms/json", form, nil, plainOnly(m)
}

// vonageFinal are the statuses that are about the message: its parameters, number or text, or a network or country to
// which Vonage does not deliver. The message is not tried again.
var vonageFinal = map[text]bool{"2": true, "3": true, "6": true, "7": true, "12": true, "22": true, "29": true,
	"33": true}

func (v Vonage) read(a answer) (string, *failure) {
	var in struct {
		Messages []struct {
			ID     text `json:"message-id"`
			Status text `json:"status"`
			Error  text `json:"error-text"`
		} `json:"messages"`
	}
	if f := a.decode(&in); f != nil {
		return "", f
	}
	if len(in.Messages) == 0 {
		return "", again("Internal Error (it answers %d)", a.status)
	}
	m := in.Messages[0]
	switch {
	case m.Status != "0":
		f := again("%s (status: %s) for message %s", m.Error, m.Status, m.ID)
		f.final = vonageFinal[m.Status]
		return "", f
	case !a.ok():
		return "", again("it answers %d", a.status)
	}
	return string(m.ID), nil
}

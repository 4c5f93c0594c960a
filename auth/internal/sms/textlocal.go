package sms

import (
	"net/http"
	"net/url"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/outbound"
)

// Textlocal has the settings of the gateway Textlocal (https://api.textlocal.in/docs/sendsms).
type Textlocal struct {
	// Required with AUTH_SMS_PROVIDER=textlocal.
	APIKey string `env:"AUTH_SMS_TEXTLOCAL_API_KEY" secret:"true"`
	// Required with AUTH_SMS_PROVIDER=textlocal. Sender as registered with the gateway.
	Sender string `env:"AUTH_SMS_TEXTLOCAL_SENDER"`
	// Scheme and host to call in the place of the gateway's own.
	URL string `env:"AUTH_SMS_TEXTLOCAL_URL"`
}

func (l Textlocal) missing() []string {
	return lacking("AUTH_SMS_TEXTLOCAL_API_KEY", l.APIKey, "AUTH_SMS_TEXTLOCAL_SENDER", l.Sender)
}

func (l Textlocal) base() string { return baseOr(l.URL, "https://api.textlocal.in") }

func (l Textlocal) secrets() []string { return []string{l.APIKey} }

func (l Textlocal) request(m mail.SMS) (string, url.Values, http.Header, error) {
	return "/send", url.Values{"sender": {l.Sender}, "apikey": {l.APIKey}, "message": {m.Text}, "numbers": {m.To}}, nil,
		plainOnly(m)
}

// textlocalMends are the error codes that are not about the message but about the account: its key, credits or sender.
// The operator can repair these, so the message is tried again.
var textlocalMends = map[text]bool{"3": true, "7": true, "43": true, "44": true}

func (l Textlocal) read(a answer) (string, *failure) {
	var in struct {
		Status   text `json:"status"`
		Messages []struct {
			ID text `json:"id"`
		} `json:"messages"`
		Errors []struct {
			Code    text `json:"code"`
			Message text `json:"message"`
		} `json:"errors"`
	}
	if f := a.decode(&in); f != nil {
		return "", f
	}
	switch {
	case len(in.Errors) > 0 && in.Status != "success":
		e := in.Errors[0]
		f := again("%s (code %s)", e.Message, e.Code)
		if e.Code == "80" {
			f.text += ": AUTH_SMS_TEMPLATE is none of the texts that are registered with it"
		}
		f.final = e.Code != "" && !textlocalMends[e.Code] && a.status < 500
		return "", f
	case !a.ok():
		return "", again("it answers %d", a.status)
	case in.Status != "success":
		return "", again("status %q", outbound.Word(string(in.Status), 64))
	case len(in.Messages) == 0:
		return "", nil
	}
	return string(in.Messages[0].ID), nil
}

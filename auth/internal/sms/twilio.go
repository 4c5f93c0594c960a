package sms

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"gatehouse/auth/internal/mail"
)

// Twilio has the settings of the gateway Twilio (https://www.twilio.com/docs/messaging/api/message-resource).
type Twilio struct {
	// Required with AUTH_SMS_PROVIDER=twilio. Account SID.
	AccountSID string `env:"AUTH_SMS_TWILIO_ACCOUNT_SID"`
	// Required with AUTH_SMS_PROVIDER=twilio.
	AuthToken string `env:"AUTH_SMS_TWILIO_AUTH_TOKEN" secret:"true"`
	// Required with AUTH_SMS_PROVIDER=twilio. SID of a messaging service, or the sender's number.
	From string `env:"AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID"`
	// SID of the content template of WhatsApp messages, whose variable 1 is the code; unset: AUTH_SMS_TEMPLATE.
	ContentSID string `env:"AUTH_SMS_TWILIO_CONTENT_SID"`
	// Scheme and host to call in the place of the gateway's own.
	URL string `env:"AUTH_SMS_TWILIO_URL"`
}

func (t Twilio) missing() []string {
	return lacking("AUTH_SMS_TWILIO_ACCOUNT_SID", t.AccountSID, "AUTH_SMS_TWILIO_AUTH_TOKEN", t.AuthToken,
		"AUTH_SMS_TWILIO_MESSAGE_SERVICE_SID", t.From)
}

func (t Twilio) base() string { return baseOr(t.URL, "https://api.twilio.com") }

func (t Twilio) secrets() []string { return []string{t.AuthToken, t.basic()} }

func (t Twilio) basic() string {
	return base64.StdEncoding.EncodeToString([]byte(t.AccountSID + ":" + t.AuthToken))
}

func (t Twilio) request(m mail.SMS) (string, url.Values, http.Header, error) {
	form := url.Values{"To": {"+" + m.To}, "Channel": {"sms"}, "From": {t.From}, "Body": {m.Text}}
	if m.Channel == whatsApp {
		form.Set("To", "whatsapp:+"+m.To)
		form.Set("Channel", whatsApp)
		if isNumber(strings.ReplaceAll(strings.TrimPrefix(t.From, "+"), " ", "")) {
			form.Set("From", "whatsapp:"+t.From)
		}
		if t.ContentSID != "" {
			form.Del("Body")
			form.Set("ContentSid", t.ContentSID)
			form.Set("ContentVariables", `{"1": `+strconv.Quote(m.Token)+`}`) // digits: quoted by Go, they are JSON
		}
	} else if err := plainOnly(m); err != nil {
		return "", nil, nil, err
	}
	return "/2010-04-01/Accounts/" + url.PathEscape(t.AccountSID) + "/Messages.json", form,
		http.Header{"Authorization": {"Basic " + t.basic()}}, nil
}

// twilioMends are the error codes with HTTP status 400 that are not about the message but about wrong credentials, a
// From that is missing, unusable or without a number, or a full queue. The message is tried again.
var twilioMends = map[text]bool{
	"20003": true, "20429": true, "21212": true, "21603": true, "21606": true, "21611": true, "21701": true,
	"21703": true,
}

func (t Twilio) read(a answer) (string, *failure) {
	var in struct {
		SID          text `json:"sid"`
		Status       text `json:"status"` // the message's status; in an error the HTTP status
		ErrorCode    text `json:"error_code"`
		ErrorMessage text `json:"error_message"`
		Code         text `json:"code"`
		Message      text `json:"message"`
		MoreInfo     text `json:"more_info"`
	}
	if f := a.decode(&in); f != nil {
		return "", f
	}
	if a.status != http.StatusOK && a.status != http.StatusCreated {
		f := again("%d: %s (code %s)", a.status, in.Message, in.Code)
		if in.MoreInfo != "" {
			f.text += " More information: " + string(in.MoreInfo)
		}
		f.final = a.aboutMessage() && in.Code != "" && !twilioMends[in.Code]
		return "", f
	}
	if in.Status == "failed" || in.Status == "undelivered" {
		f := again("%s %s for message %s", in.ErrorMessage, in.ErrorCode, in.SID)
		f.final = in.ErrorCode != "30001" && in.ErrorCode != "30008" // 30001: queue full; 30008: unknown error
		return "", f
	}
	return string(in.SID), nil
}

package sms

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// account is a request for data of the operator's account. It sends no SMS and costs nothing.
type account struct {
	method, path string
	form         url.Values // sent as the query of a GET
	header       http.Header
}

// Check tests, for the command "auth check", whether the gateway can be reached and accepts the credentials. Any answer
// that does not refuse the credentials is good, since a server that stands in for the gateway may not know the request.
func (g *Gateway) Check(ctx context.Context) error {
	q := g.vendor.account()
	address := g.vendor.base() + q.path
	if q.method == http.MethodGet && len(q.form) > 0 {
		address, q.form = address+"?"+q.form.Encode(), nil
	}
	status, body, err := g.http.SendForm(ctx, q.method, address, q.form, q.header)
	if err != nil {
		return err
	}
	if g.vendor.denied(answer{status, body}) {
		return fmt.Errorf("%s does not know %s", g.name, strings.Join(g.vendor.credentials(), ", "))
	}
	return nil
}

// unauthorized reports whether the status of an answer means that the credentials are wrong.
func unauthorized(a answer) bool {
	return a.status == http.StatusUnauthorized || a.status == http.StatusForbidden
}

// account returns the request of https://www.twilio.com/docs/iam/api/account.
func (t Twilio) account() account {
	return account{method: http.MethodGet, path: "/2010-04-01/Accounts/" + url.PathEscape(t.AccountSID) + ".json",
		header: http.Header{"Authorization": {"Basic " + t.basic()}}}
}

func (t Twilio) credentials() []string {
	return []string{"AUTH_SMS_TWILIO_ACCOUNT_SID", "AUTH_SMS_TWILIO_AUTH_TOKEN"}
}

func (t Twilio) denied(a answer) bool { return unauthorized(a) }

// account returns the request of https://developers.messagebird.com/api/balance.
func (b MessageBird) account() account {
	return account{method: http.MethodGet, path: "/balance",
		header: http.Header{"Authorization": {"AccessKey " + b.AccessKey}}}
}

func (b MessageBird) credentials() []string { return []string{"AUTH_SMS_MESSAGEBIRD_ACCESS_KEY"} }

func (b MessageBird) denied(a answer) bool { return unauthorized(a) }

// account returns the request of https://api.textlocal.in/docs/getbalance.
func (l Textlocal) account() account {
	return account{method: http.MethodPost, path: "/balance/", form: url.Values{"apikey": {l.APIKey}}}
}

func (l Textlocal) credentials() []string { return []string{"AUTH_SMS_TEXTLOCAL_API_KEY"} }

// denied reports whether an answer refuses the credentials. Textlocal says so in the body, with status 200.
func (l Textlocal) denied(a answer) bool {
	var in struct {
		Errors []struct {
			Code text `json:"code"`
		} `json:"errors"`
	}
	return unauthorized(a) || a.decode(&in) == nil && len(in.Errors) > 0 && in.Errors[0].Code == "3"
}

// account returns the request "Get Account Balance" of https://developer.vonage.com/api/account.
func (v Vonage) account() account {
	return account{method: http.MethodGet, path: "/account/get-balance",
		form: url.Values{"api_key": {v.APIKey}, "api_secret": {v.APISecret}}}
}

func (v Vonage) credentials() []string {
	return []string{"AUTH_SMS_VONAGE_API_KEY", "AUTH_SMS_VONAGE_API_SECRET"}
}

func (v Vonage) denied(a answer) bool { return unauthorized(a) }

var (
	accountSID = regexp.MustCompile(`^AC[0-9a-fA-F]{32}$`)
	serviceSID = regexp.MustCompile(`^MG[0-9a-fA-F]{32}$`)
	contentSID = regexp.MustCompile(`^HX[0-9a-fA-F]{32}$`)
	// sender matches a phone number, a short code, or a name of up to 11 letters and digits (3GPP TS 23.040, 9.1.2.5:
	// an alphanumeric address has at most 11 characters).
	sender = regexp.MustCompile(`^(\+?[0-9 ]{3,20}|[A-Za-z0-9 _.-]{1,11})$`)
)

// Lint returns a warning for each setting of the chosen gateway whose value does not have the usual form. The settings
// are used nevertheless, since a gateway may accept other forms. Lint ignores empty settings, which Missing reports.
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

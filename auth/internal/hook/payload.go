package hook

import (
	"cmp"
	"encoding/json"
	"errors"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// Verdict is the answer of the hooks FactorAttempt and PasswordAttempt.
type Verdict struct {
	Decision string `json:"decision"`
	Message  string `json:"message"`
	SignOut  bool   `json:"should_logout_user"`
}

// Rejects reports whether the hook rejects the attempt. Any decision other than "reject" lets the attempt continue.
func (v Verdict) Rejects() bool { return v.Decision == "reject" }

// emailActions maps the kinds of mails whose name in the hook's input (email_action_type) differs from mail.Kind.
var emailActions = map[mail.Kind]string{
	mail.Confirmation: "signup", mail.MagicLink: "magiclink", mail.Reauthentication: "reauthentication",
}

// emailData is the member email_data of the input of SendEmail (docs/hooks.md).
type emailData struct {
	Token        string `json:"token"`
	TokenHash    string `json:"token_hash"`
	RedirectTo   string `json:"redirect_to"`
	Action       string `json:"email_action_type"`
	SiteURL      string `json:"site_url"`
	TokenNew     string `json:"token_new"`
	TokenHashNew string `json:"token_hash_new"`
	OldEmail     string `json:"old_email,omitempty"`
	OldPhone     string `json:"old_phone,omitempty"`
	Provider     string `json:"provider,omitempty"`
	FactorType   string `json:"factor_type,omitempty"`
	Locale       string `json:"locale"` // the language of the built-in mail
}

// EmailInput makes the input of the hook SendEmail from the payload of a mail, and returns it with the client's IP
// address. The caller adds the user. EmailInput sets fields of u that the mail has and the database does not have yet.
// secureChange is true if a change of the email address must be confirmed from both addresses. language returns the
// language of the built-in mail.
func EmailInput(payload []byte, u *store.User, siteURL string, secureChange bool,
	language func(*mail.Payload) string) (map[string]any, string, error) {
	var p mail.Payload
	if json.Unmarshal(payload, &p) != nil {
		return nil, "", errors.New("the payload is no mail")
	}
	v := p.Vars
	e := emailData{
		Token: v.Token, TokenHash: v.TokenHash, RedirectTo: v.RedirectTo, Action: string(p.Kind), SiteURL: siteURL,
		OldEmail: v.OldEmail, OldPhone: v.OldPhone, Provider: v.Provider, FactorType: v.FactorType,
		Locale: language(&p),
	}
	if action, renamed := emailActions[p.Kind]; renamed {
		e.Action = action
	}
	if p.Kind == mail.EmailChange { // clients rely on this: token_hash_new is the hash for the present address
		switch {
		case p.Current != nil:
			e.Token, e.TokenHashNew, e.TokenNew = p.Current.Vars.Token, p.Current.Vars.TokenHash, v.Token
		case p.To != v.NewEmail: // the mail to the present address; it was queued before the hook was switched on
			e.TokenHash, e.TokenHashNew = "", v.TokenHash
		case secureChange && u.Email != "": // the mail to the new address, one of two
			e.Token, e.TokenNew = "", v.Token
		}
		u.NewEmail = v.NewEmail
	}
	if p.Kind == mail.IdentityUnlinked && p.To != u.Email { // sent to an address that is no longer the user's
		e.OldEmail = p.To
	}
	if p.Kind == mail.Confirmation && len(v.Data) > 0 { // the metadata becomes the user's only when the link is opened
		u.UserMetadata = v.Data
	}
	return map[string]any{"email_data": e}, p.IP, nil
}

// SMSInput makes the input of the hook SendSMS from the payload of an SMS, and returns it with the client's IP address.
// language is used if the payload has no language.
func SMSInput(payload []byte, language string) (map[string]any, string, error) {
	var p mail.SMS
	if json.Unmarshal(payload, &p) != nil {
		return nil, "", errors.New("the payload is no SMS")
	}
	return map[string]any{"sms": map[string]string{"otp": p.Token, "sms_type": p.Kind, "phone": p.To,
		"locale": cmp.Or(p.Locale, language)}}, p.IP, nil
}

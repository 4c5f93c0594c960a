package hook

import (
	"cmp"
	"encoding/json"
	"errors"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// Verdict is the answer of the hooks of attempts.
type Verdict struct {
	Decision string `json:"decision"`
	Message  string `json:"message"`
	SignOut  bool   `json:"should_logout_user"`
}

// Rejects reports whether the attempt ends here. Any other decision lets it continue.
func (v Verdict) Rejects() bool { return v.Decision == "reject" }

// emailActions has the kinds of mails that have another name in the hook's input.
var emailActions = map[mail.Kind]string{
	mail.Confirmation: "signup", mail.MagicLink: "magiclink", mail.Reauthentication: "reauthentication",
}

// emailData is the hook's input about a mail (docs/hooks.md).
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
	Locale       string `json:"locale"` // of the built-in mail
}

// EmailInput returns the input of SendEmail for the payload of a mail, without the user, and the client's address. It
// sets fields of u that the mail has and the database does not have yet. secureChange says that a change of address is
// confirmed from both addresses; language returns that of the built-in mail.
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
	if p.Kind == mail.EmailChange { // clients rely on this: the hash named new is for the present address
		switch {
		case p.Current != nil:
			e.Token, e.TokenHashNew, e.TokenNew = p.Current.Vars.Token, p.Current.Vars.TokenHash, v.Token
		case p.To != v.NewEmail: // the mail to the present address, enqueued before the hook was on
			e.TokenHash, e.TokenHashNew = "", v.TokenHash
		case secureChange && u.Email != "": // the mail to the new address, of two
			e.Token, e.TokenNew = "", v.Token
		}
		u.NewEmail = v.NewEmail
	}
	if p.Kind == mail.IdentityUnlinked && p.To != u.Email { // sent to an address that the user no longer has
		e.OldEmail = p.To
	}
	if p.Kind == mail.Confirmation && len(v.Data) > 0 { // the metadata is stored with the link until the link is opened
		u.UserMetadata = v.Data
	}
	return map[string]any{"email_data": e}, p.IP, nil
}

// SMSInput is EmailInput for SendSMS. language is the language of an SMS whose payload has none.
func SMSInput(payload []byte, language string) (map[string]any, string, error) {
	var p mail.SMS
	if json.Unmarshal(payload, &p) != nil {
		return nil, "", errors.New("the payload is no SMS")
	}
	return map[string]any{"sms": map[string]string{"otp": p.Token, "sms_type": p.Kind, "phone": p.To,
		"locale": cmp.Or(p.Locale, language)}}, p.IP, nil
}

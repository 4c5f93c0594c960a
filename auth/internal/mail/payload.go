// Package mail makes and sends mails: the payloads that wait in the outbox, the subjects and bodies of all kinds with
// the operator's templates, the links in them, and SMTP.
//
// It does not decide to whom, when and how often mails are sent, reads no settings and knows no database. Flows need
// only Payload, SMS and Links; the rest is for the sender.
package mail

import (
	"encoding/json"
	"time"
)

// The channels of the outbox.
const (
	ChannelEmail = "email"
	ChannelSMS   = "sms"
	// ChannelHook is for calls of the operator's own code (package hook).
	ChannelHook = "hook"
)

// Payload is the data of a mail that is to be sent. It waits as JSON, sealed under the root key and bound to the outbox
// row's id. Subject and body are made when the mail is sent, by the templates in force then.
type Payload struct {
	To   string `json:"to"`
	Kind Kind   `json:"kind"`
	Vars Vars   `json:"vars"`
	// Current is the mail to the present address, in the payload of the mail to the new address: a hook gets both mails
	// of a change of address in one call.
	Current *Payload `json:"current,omitempty"`
	// IP is the client's address, for a hook.
	IP string `json:"ip,omitempty"`
	// Locales are the candidates for the mail's language, best first.
	Locales []string `json:"locales,omitempty"`
	// Ordered and Expires are the times of the outbox row.
	Ordered time.Time `json:"-"`
	Expires time.Time `json:"-"`
}

// Vars are the variables of templates (docs/mail.md#templates). Variables that a kind does not have are empty.
type Vars struct {
	SiteURL         string `json:"SiteURL,omitempty"`
	Email           string `json:"Email,omitempty"`
	NewEmail        string `json:"NewEmail,omitempty"`
	OldEmail        string `json:"OldEmail,omitempty"`
	Phone           string `json:"Phone,omitempty"`
	OldPhone        string `json:"OldPhone,omitempty"`
	SendingTo       string `json:"SendingTo,omitempty"`
	Token           string `json:"Token,omitempty"`     // the digits
	TokenHash       string `json:"TokenHash,omitempty"` // the link's secret, with the prefix pkce_ in a PKCE flow
	RedirectTo      string `json:"RedirectTo,omitempty"`
	ConfirmationURL string `json:"ConfirmationURL,omitempty"`
	Provider        string `json:"Provider,omitempty"`
	FactorType      string `json:"FactorType,omitempty"`
	FriendlyName    string `json:"FriendlyName,omitempty"` // of a passkey
	// Data is user_metadata when the mail was ordered: an object that the user has written.
	Data json.RawMessage `json:"Data,omitempty"`
}

// SMS is a text message; the text is chosen when the message is ordered.
type SMS struct {
	// To is E.164 without the plus.
	To   string `json:"to"`
	Text string `json:"text"`
	// Token are the digits in Text, for the dev mailbox.
	Token string `json:"token,omitempty"`
	Kind  string `json:"kind"`
	// Channel is "sms" or "whatsapp".
	Channel string `json:"channel"`
	// Locale is the language of the built-in text, even if the operator has set another text; "" is the default.
	Locale string `json:"locale,omitempty"`
	// IP is the client's address, for a hook.
	IP string `json:"ip,omitempty"`
}

// Package mail makes and sends mails. It has the payloads of the messages that wait in the table outbox, the subjects
// and bodies of all kinds of mails with the operator's templates, the links in mails, and an SMTP client.
//
// It does not decide to whom, when and how often mails are sent, reads no settings and does not use the database. Code
// that orders mails needs only Payload, SMS and Links; the rest is for code that sends them.
package mail

import (
	"encoding/json"
	"time"
)

// The channels of messages in the outbox.
const (
	ChannelEmail = "email"
	ChannelSMS   = "sms"
	// ChannelHook is for messages that call the operator's own code (package hook).
	ChannelHook = "hook"
)

// Payload is the data of a mail that is to be sent. It is stored as JSON in the outbox, sealed under the root key and
// bound to the row's id. The subject and the body are not stored but made when the mail is sent, from the templates in
// use at that time.
type Payload struct {
	To   string `json:"to"`
	Kind Kind   `json:"kind"`
	Vars Vars   `json:"vars"`
	// Current is set if this mail goes to the new address of a change of email address: it is the mail that goes to the
	// present address. A hook gets both mails in one call.
	Current *Payload `json:"current,omitempty"`
	// IP is the IP address of the client whose request has caused the mail. Only hooks get it.
	IP string `json:"ip,omitempty"`
	// Locales are the language tags for the mail, the preferred one first.
	Locales []string `json:"locales,omitempty"`
	// Ordered is when the mail was written to the outbox, Expires when its link or code expires. Both come from the
	// row.
	Ordered time.Time `json:"-"`
	Expires time.Time `json:"-"`
}

// Vars are the variables of templates (docs/mail.md#templates). Variables that are not used by the mail's kind are
// empty.
type Vars struct {
	SiteURL         string `json:"SiteURL,omitempty"`
	Email           string `json:"Email,omitempty"`
	NewEmail        string `json:"NewEmail,omitempty"`
	OldEmail        string `json:"OldEmail,omitempty"`
	Phone           string `json:"Phone,omitempty"`
	OldPhone        string `json:"OldPhone,omitempty"`
	SendingTo       string `json:"SendingTo,omitempty"`
	Token           string `json:"Token,omitempty"`     // the code of digits
	TokenHash       string `json:"TokenHash,omitempty"` // the link's secret, with the prefix pkce_ in a PKCE flow
	RedirectTo      string `json:"RedirectTo,omitempty"`
	ConfirmationURL string `json:"ConfirmationURL,omitempty"`
	Provider        string `json:"Provider,omitempty"`
	FactorType      string `json:"FactorType,omitempty"`
	FriendlyName    string `json:"FriendlyName,omitempty"` // the passkey's name
	// Data is the user's user_metadata, a JSON object, as it was when the mail was ordered. Users can write anything
	// into it.
	Data json.RawMessage `json:"Data,omitempty"`
}

// SMS is a text message that is to be sent. Unlike a mail's, its text is made when the message is written to the
// outbox.
type SMS struct {
	// To is the phone number: E.164 without the plus.
	To   string `json:"to"`
	Text string `json:"text"`
	// Token is the code of digits that Text contains. The dev mailbox shows it.
	Token string `json:"token,omitempty"`
	Kind  string `json:"kind"`
	// Channel is "sms" or "whatsapp".
	Channel string `json:"channel"`
	// Locale is the language tag of the built-in text, even if the operator has set another text; "" is the default
	// language.
	Locale string `json:"locale,omitempty"`
	// IP is the IP address of the client whose request has caused the SMS. Only hooks get it.
	IP string `json:"ip,omitempty"`
}

// Package mail turns what happened to an account into a mail: the payload that waits in the outbox, the subjects and
// bodies of all kinds with the operator's templates, the link in them, and SMTP.
//
// It decides nothing: not the recipient, not when, not how often; it reads no setting and knows no database. Callers
// of the flows need only Payload, SMS and Links; the rest belongs to the sender.
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

// Payload is what is known of a mail when it is ordered. It waits as JSON, sealed under the root key and
// bound to the outbox row's id; subject and body are made when it is sent, by the templates of then.
type Payload struct {
	To   string `json:"to"`
	Kind Kind   `json:"kind"`
	Vars Vars   `json:"vars"`
	// Current is the mail to the present address, sent along with the one to the new: a hook gets both halves of a
	// change of address in one call.
	Current *Payload `json:"current,omitempty"`
	// IP is the client's address, for a hook.
	IP string `json:"ip,omitempty"`
	// Locales are the candidates for the mail's language, best first.
	Locales []string `json:"locales,omitempty"`
	// Ordered and Expires are the outbox row's.
	Ordered time.Time `json:"-"`
	Expires time.Time `json:"-"`
}

// Vars are what templates may name (docs/mail.md#templates). What a kind doesn't have is empty.
type Vars struct {
	SiteURL         string `json:"SiteURL,omitempty"`
	Email           string `json:"Email,omitempty"`
	NewEmail        string `json:"NewEmail,omitempty"`
	OldEmail        string `json:"OldEmail,omitempty"`
	Phone           string `json:"Phone,omitempty"`
	OldPhone        string `json:"OldPhone,omitempty"`
	SendingTo       string `json:"SendingTo,omitempty"`
	Token           string `json:"Token,omitempty"`     // the digits
	TokenHash       string `json:"TokenHash,omitempty"` // the link's secret, with its pkce_ if any
	RedirectTo      string `json:"RedirectTo,omitempty"`
	ConfirmationURL string `json:"ConfirmationURL,omitempty"`
	Provider        string `json:"Provider,omitempty"`
	FactorType      string `json:"FactorType,omitempty"`
	FriendlyName    string `json:"FriendlyName,omitempty"` // of a passkey
	// Data is user_metadata as it was: an object that the user has written.
	Data json.RawMessage `json:"Data,omitempty"`
}

// SMS is a text message; its words are chosen when it is ordered.
type SMS struct {
	// To is E.164 without the plus.
	To   string `json:"to"`
	Text string `json:"text"`
	// Token are the digits in Text, for the dev mailbox.
	Token string `json:"token,omitempty"`
	Kind  string `json:"kind"`
	// Channel is "sms" or "whatsapp".
	Channel string `json:"channel"`
	// Locale is the language of Text, or would be if the operator had not set another text; "" is the default.
	Locale string `json:"locale,omitempty"`
	// IP is as in Payload.
	IP string `json:"ip,omitempty"`
}

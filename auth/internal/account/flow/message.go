package flow

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// pkcePrefix begins the token of a link that belongs to a PKCE flow. Opening the link yields a PKCE code instead of a
// session.
const pkcePrefix = "pkce_"

// MaxMisses is how many wrong tries void the one-time code of a token. The token's link stays valid.
const MaxMisses = 5

// KeepPending is how many older confirmations of an address's sign-ups stay valid next to a new one. So five can be
// pending at once, and a sixth voids the oldest.
const KeepPending = 4

// Outgoing is a one-time token and the message that carries it. Every Outgoing is created in this file.
type Outgoing struct {
	Token   store.NewToken
	Message store.NewMessage // nothing is sent if it has no payload
	// Code and URL are the one-time code and the link that the recipient sees. TokenHash is the secret in the link, for
	// mail templates that build links of their own.
	Code, TokenHash, URL string
}

// MailSpec describes a one-time token that is sent by mail. The token's user is set when the token is written.
type MailSpec struct {
	Kind store.Kind
	Mail mail.Kind
	Link string // type of the link; "" if the mail has only a code
	To   string
	Vars mail.Vars // the caller sets Email, NewEmail and Data
	// Flow is the ID of the PKCE flow that the link continues; Nil: none.
	Flow uuid.UUID
	Keep int
}

// NewMail returns a new one-time token and the mail that carries it.
func NewMail(f *Flow, spec MailSpec) (Outgoing, error) {
	msg, p, err := composeMail(f, spec)
	if err == nil {
		msg.Message = sealMail(f, msg, p)
	}
	return msg, err
}

// sealMail returns the outbox message with payload p. The message expires with the token of msg.
func sealMail(f *Flow, msg Outgoing, p mail.Payload) store.NewMessage {
	return f.Settings.HoldForSendNow(f.Seal(mail.ChannelEmail, string(p.Kind), p, msg.Token.ExpiresAt))
}

// composeMail returns a new one-time token and, not yet sealed, the payload of the mail that carries it.
func composeMail(f *Flow, spec MailSpec) (Outgoing, mail.Payload, error) {
	code, err := token.NewCode(f.Settings.Email.OTPLength)
	if err != nil {
		return Outgoing{}, mail.Payload{}, fmt.Errorf("account: %w", err)
	}
	msg := Outgoing{Code: code, Token: newToken(f, spec.Kind, spec.To, code, f.Settings.Email.OTPLife)}
	msg.Token.Flow, msg.Token.Keep = spec.Flow, spec.Keep
	v := spec.Vars
	v.SiteURL, v.Token, v.RedirectTo = f.Settings.SiteURL, code, f.Req.RedirectTo
	if spec.Link != "" {
		text, hash := token.NewLinkToken()
		msg.Token.LinkHash, msg.TokenHash = hash[:], text
		if spec.Flow != uuid.Nil {
			msg.TokenHash = pkcePrefix + text
		}
		base := cmp.Or(f.Req.BaseURL, f.Settings.BaseURL)
		msg.URL = f.Settings.Email.Links.URL(base, spec.Link, msg.TokenHash, f.Req.RedirectTo)
		v.TokenHash, v.ConfirmationURL = msg.TokenHash, msg.URL
	}
	return msg, mail.Payload{To: spec.To, Kind: spec.Mail, Vars: v, IP: f.Settings.HookIP(mail.ChannelEmail, f.Req),
		Locales: f.locales(v.Data)}, nil
}

// NewConfirmation returns the token and mail that confirm the address of a sign-up. data is the user's metadata, which
// the mail's template may use; pkce is nil without PKCE.
func NewConfirmation(f *Flow, to string, data json.RawMessage, pkce *store.Flow) (Outgoing, error) {
	return NewMail(f, MailSpec{
		Kind: store.KindSignup, Mail: mail.Confirmation, Link: mail.LinkSignup, To: to, Flow: IDOf(pkce),
		Keep: KeepPending, Vars: mail.Vars{Email: to, Data: data},
	})
}

// locales returns the candidate languages of a message to a user with this metadata.
func (f *Flow) locales(metadata json.RawMessage) []string {
	return f.Settings.Languages.Candidates(metadata, f.Req.AcceptLanguage)
}

// TextSMS returns an SMS with a one-time code. The function text makes the SMS's text from the code. If it is nil, the
// text is the built-in one in the user's language, which metadata may name.
func (f *Flow) TextSMS(text func(string) string, code string, metadata json.RawMessage) mail.SMS {
	language := f.Settings.Languages.Choose(f.locales(metadata)...)
	if text == nil {
		text = language.SMS
	}
	return mail.SMS{Text: text(code), Token: code, Locale: language.Tag, IP: f.Settings.HookIP(mail.ChannelSMS, f.Req)}
}

// Phone is where an SMS goes: a number, its channel ("" is sms), and the metadata of the user, which may name a
// language.
type Phone struct {
	Number, Channel string
	Metadata        json.RawMessage
}

// NewSMS returns a new one-time token and the SMS that carries it. A test number gets its fixed code and no SMS.
func NewSMS(f *Flow, kind store.Kind, to Phone) (Outgoing, error) {
	if code, test := f.Settings.Phone.TestCode(to.Number, f.Now); test {
		return Outgoing{Code: code, Token: newToken(f, kind, to.Number, code, 365*24*time.Hour)}, nil
	}
	code, err := token.NewCode(f.Settings.Phone.OTPLength)
	if err != nil {
		return Outgoing{}, fmt.Errorf("account: %w", err)
	}
	sms := f.TextSMS(f.Settings.Phone.Text, code, to.Metadata)
	sms.To, sms.Kind, sms.Channel = to.Number, string(kind), ChannelOf(to.Channel)
	msg := Outgoing{Code: code, Token: newToken(f, kind, to.Number, code, f.Settings.Phone.OTPLife)}
	msg.Message = f.Settings.HoldForSendNow(f.Seal(mail.ChannelSMS, string(kind), sms, msg.Token.ExpiresAt))
	return msg, nil
}

func newToken(f *Flow, kind store.Kind, to, code string, life time.Duration) store.NewToken {
	return store.NewToken{
		Token:  store.Token{ID: uuid.New(), Kind: kind, Address: to, CreatedAt: f.Now, ExpiresAt: f.Now.Add(life)},
		OTPMAC: f.Core.Root.MAC(secret.OTP, string(kind), to, code),
	}
}

// InsertOutgoing adds the statements that write tokens, their PKCE flow and their messages, in the order in which all
// flows lock rows. If the user does not exist, the same statements do nothing.
func InsertOutgoing(b *Batch, user uuid.UUID, pkce *store.Flow, msgs ...Outgoing) {
	for _, msg := range msgs {
		msg.Token.User = user
		b.InsertToken(msg.Token)
	}
	if pkce != nil {
		pkce.User = user
		b.InsertFlow(*pkce)
	}
	for _, msg := range msgs {
		b.Message(user, msg.Message)
	}
}

// LinkHash returns the hash by which the store finds a link's token, and whether the link belongs to a PKCE flow. ok is
// false if text is malformed.
func LinkHash(text string) (hash []byte, pkce, ok bool) {
	text, pkce = strings.CutPrefix(text, pkcePrefix)
	sum, ok := token.LinkTokenHash(text)
	return sum[:], pkce, ok
}

// DigitMACs returns the MACs by which the store finds the one-time code that was sent to an address, for each kind of
// token that the code may belong to.
func DigitMACs(f *Flow, kinds []store.Kind, to, code string) [][]byte {
	var macs [][]byte
	for _, k := range kinds {
		macs = append(macs, f.Core.Root.MACs(secret.OTP, string(k), to, code)...)
	}
	return macs
}

// DecoyID returns the user ID in the answer to a sign-up if the address has an account already. It looks like a random
// ID but is a MAC of the address. So it is the same in each answer, as it would be if the account were new and waited
// for its confirmation.
func DecoyID(f *Flow, aud, who string) uuid.UUID {
	var id uuid.UUID
	copy(id[:], f.Core.Root.MAC(secret.FauxUser, aud, who))
	id[6] = id[6]&0x0f | 0x40 // version 4
	id[8] = id[8]&0x3f | 0x80 // RFC 9562 variant
	return id
}

// CodeHash returns the hash by which the store finds a PKCE code; nil if the code is malformed.
func CodeHash(code string) []byte {
	if raw, err := hex.DecodeString(code); err != nil || len(raw) != 32 {
		return nil
	}
	sum, _ := token.LinkTokenHash(code)
	return sum[:]
}

// notificationLife is how long the outbox tries to send a notification.
const notificationLife = 24 * time.Hour

// Notification returns a mail that only informs and carries no token.
func Notification(f *Flow, kind mail.Kind, to string, v mail.Vars) store.NewMessage {
	v.SiteURL = f.Settings.SiteURL
	return f.Seal(mail.ChannelEmail, string(kind), mail.Payload{To: to, Kind: kind, Vars: v,
		IP: f.Settings.HookIP(mail.ChannelEmail, f.Req), Locales: f.locales(v.Data)}, f.Now.Add(notificationLife))
}

// NotifyUser adds a notification to the user's e-mail address, if the user has one. v has the variables that the mail
// template of this kind needs.
func NotifyUser(f *Flow, b *Batch, kind mail.Kind, u store.User, v mail.Vars) {
	if u.Email != "" {
		v.Email, v.Data = u.Email, u.UserMetadata
		b.Notify(u.ID, Notification(f, kind, u.Email, v))
	}
}

// Notifications count against the hourly budget for mails. If the budget is used up, no notification is sent and the
// operation still succeeds. The budget is read before the operation's transaction, and the notification is taken from
// it after the transaction. Taken within the transaction, it would be taken after the lock on the user, while all other
// flows take from the budget first: such transactions could deadlock. So concurrent notifications may overdraw the
// budget a little.

// CanNotify reports whether the budget for mails allows a notification. wanted says whether the operator has switched
// the notification on; if not, CanNotify returns false without a round trip.
func CanNotify(ctx context.Context, f *Flow, wanted bool) bool {
	if !wanted || !f.Settings.Email.Configured {
		return false
	}
	budget := f.Settings.Email.Sent.limit(f.LimitKey("mail"))
	var levels []store.Level
	if err := f.Run(ctx, func(b *Batch) { b.Levels(&levels, budget) }); err != nil {
		return false // the caller's transaction will fail too
	}
	if budget.Left(levels[0], f.Core.now()) < 1 {
		f.Core.Log.Warn("a notification is not sent: the hourly limit for mails is used up")
		return false
	}
	return true
}

// AsksCurrent reports whether a change of e-mail address needs two confirmations: one by the current address and one by
// the new address.
func (s *Settings) AsksCurrent(u *store.User) bool {
	return s.Email.SecureChange && u.Email != "" && !s.Email.Autoconfirm
}

// NewEmailChange returns the mails of a change of e-mail address: to the new address and, if AsksCurrent, to the
// current one. A hook that sends mails gets both in one call, so they are one message.
func NewEmailChange(f *Flow, u store.User, pkce *store.Flow) ([]Outgoing, error) {
	half := func(kind store.Kind, to string) MailSpec {
		return MailSpec{
			Kind: kind, Mail: mail.EmailChange, Link: mail.LinkEmailChange, To: to, Flow: IDOf(pkce),
			Vars: mail.Vars{Email: u.Email, NewEmail: u.NewEmail, SendingTo: to, Data: u.UserMetadata},
		}
	}
	toNew, p, err := composeMail(f, half(store.KindEmailChangeNew, u.NewEmail))
	if err != nil {
		return nil, err
	}
	if !f.Settings.AsksCurrent(&u) {
		toNew.Message = sealMail(f, toNew, p)
		return []Outgoing{toNew}, nil
	}
	toCurrent, other, err := composeMail(f, half(store.KindEmailChangeCurrent, u.Email))
	if err != nil {
		return nil, err
	}
	if f.Settings.Hooks.Sends[mail.ChannelEmail] {
		p.Current = &other
	} else {
		toCurrent.Message = sealMail(f, toCurrent, other)
	}
	toNew.Message = sealMail(f, toNew, p)
	return []Outgoing{toCurrent, toNew}, nil
}

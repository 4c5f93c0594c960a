package account

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

// pkcePrefix marks the link of a PKCE flow: opening it yields a code, not a session.
const pkcePrefix = "pkce_"

// maxMisses is how many wrong tries void a token's digits. Its link stays valid.
const maxMisses = 5

// outgoing is a one-time token and the message that carries it. All are created in this file.
type outgoing struct {
	token   store.NewToken
	message store.NewMessage // without payload: nothing is sent
	// code and url are what the recipient sees.
	code, tokenHash, url string
}

// mailSpec describes a token that is sent by mail. Its user is set when it is written.
type mailSpec struct {
	kind store.Kind
	mail mail.Kind
	link string // its type; "" for digits alone
	to   string
	vars mail.Vars // Email, NewEmail, Data
	// flow is the PKCE flow that the link continues.
	flow uuid.UUID
	keep int
}

// newMail returns a token and the mail that carries it.
func newMail(f *flow, spec mailSpec) (outgoing, error) {
	msg, p, err := composeMail(f, spec)
	if err == nil {
		msg.message = sealMail(f, msg, p)
	}
	return msg, err
}

// sealMail returns the message with a payload; it expires with the token.
func sealMail(f *flow, msg outgoing, p mail.Payload) store.NewMessage {
	return f.settings.holdForSendNow(f.seal(mail.ChannelEmail, string(p.Kind), p, msg.token.ExpiresAt))
}

// composeMail creates the token and returns the payload of its mail.
func composeMail(f *flow, spec mailSpec) (outgoing, mail.Payload, error) {
	code, err := token.NewCode(f.settings.Email.OTPLength)
	if err != nil {
		return outgoing{}, mail.Payload{}, fmt.Errorf("account: %w", err)
	}
	msg := outgoing{code: code, token: newToken(f, spec.kind, spec.to, code, f.settings.Email.OTPLife)}
	msg.token.Flow, msg.token.Keep = spec.flow, spec.keep
	v := spec.vars
	v.SiteURL, v.Token, v.RedirectTo = f.settings.SiteURL, code, f.req.RedirectTo
	if spec.link != "" {
		text, hash := token.NewLinkToken()
		msg.token.LinkHash, msg.tokenHash = hash[:], text
		if spec.flow != uuid.Nil {
			msg.tokenHash = pkcePrefix + text
		}
		base := cmp.Or(f.req.BaseURL, f.settings.BaseURL)
		msg.url = f.settings.Email.Links.URL(base, spec.link, msg.tokenHash, f.req.RedirectTo)
		v.TokenHash, v.ConfirmationURL = msg.tokenHash, msg.url
	}
	return msg, mail.Payload{To: spec.to, Kind: spec.mail, Vars: v, IP: f.settings.hookIP(mail.ChannelEmail, f.req),
		Locales: f.locales(v.Data)}, nil
}

// locales returns the candidates for the language of a message to a user with this metadata.
func (f *flow) locales(metadata json.RawMessage) []string {
	return f.settings.Languages.Candidates(metadata, f.req.AcceptLanguage)
}

// textSMS returns an SMS with a code: the operator's text, or that of the user's language.
func (f *flow) textSMS(text func(string) string, code string, metadata json.RawMessage) mail.SMS {
	language := f.settings.Languages.Choose(f.locales(metadata)...)
	if text == nil {
		text = language.SMS
	}
	return mail.SMS{Text: text(code), Token: code, Locale: language.Tag, IP: f.settings.hookIP(mail.ChannelSMS, f.req)}
}

// newSMS returns a token and the SMS that carries it, to a user with this metadata. A test number gets its fixed code,
// and no message.
func newSMS(f *flow, kind store.Kind, number, channel string, metadata json.RawMessage) (outgoing, error) {
	if code, test := f.settings.Phone.testCode(number, f.now); test {
		return outgoing{code: code, token: newToken(f, kind, number, code, 365*24*time.Hour)}, nil
	}
	code, err := token.NewCode(f.settings.Phone.OTPLength)
	if err != nil {
		return outgoing{}, fmt.Errorf("account: %w", err)
	}
	sms := f.textSMS(f.settings.Phone.Text, code, metadata)
	sms.To, sms.Kind, sms.Channel = number, string(kind), channelOf(channel)
	msg := outgoing{code: code, token: newToken(f, kind, number, code, f.settings.Phone.OTPLife)}
	msg.message = f.settings.holdForSendNow(f.seal(mail.ChannelSMS, string(kind), sms, msg.token.ExpiresAt))
	return msg, nil
}

func newToken(f *flow, kind store.Kind, to, code string, life time.Duration) store.NewToken {
	return store.NewToken{
		Token:  store.Token{ID: uuid.New(), Kind: kind, Address: to, CreatedAt: f.now, ExpiresAt: f.now.Add(life)},
		OTPMAC: f.core.root.MAC(secret.OTP, string(kind), to, code),
	}
}

// insertOutgoing adds tokens, their PKCE flow and messages, in the lock order. If user does not exist, the same
// statements do nothing.
func insertOutgoing(b *batch, user uuid.UUID, pkce *store.Flow, msgs ...outgoing) {
	for _, msg := range msgs {
		msg.token.User = user
		b.InsertToken(msg.token)
	}
	if pkce != nil {
		pkce.User = user
		b.InsertFlow(*pkce)
	}
	for _, msg := range msgs {
		b.message(user, msg.message)
	}
}

// linkHash returns the hash that the store knows a link's token by, and whether the link belongs to a PKCE flow.
func linkHash(text string) (hash []byte, pkce, ok bool) {
	text, pkce = strings.CutPrefix(text, pkcePrefix)
	sum, ok := token.LinkTokenHash(text)
	return sum[:], pkce, ok
}

// digitMACs returns the MACs of typed digits, for each kind of token that they may belong to.
func digitMACs(f *flow, kinds []store.Kind, to, code string) [][]byte {
	var macs [][]byte
	for _, k := range kinds {
		macs = append(macs, f.core.root.MACs(secret.OTP, string(k), to, code)...)
	}
	return macs
}

// decoyID returns the user ID that a sign-up gets for an address that has an account: a MAC of the address, so that it
// is as stable as that of a pending account. It has the form of any other ID.
func decoyID(f *flow, aud, who string) uuid.UUID {
	var id uuid.UUID
	copy(id[:], f.core.root.MAC(secret.FauxUser, aud, who))
	id[6] = id[6]&0x0f | 0x40 // version 4
	id[8] = id[8]&0x3f | 0x80 // RFC 9562 variant
	return id
}

// codeHash returns the hash that the store knows a PKCE code by.
func codeHash(code string) []byte {
	if raw, err := hex.DecodeString(code); err != nil || len(raw) != 32 {
		return nil
	}
	sum, _ := token.LinkTokenHash(code)
	return sum[:]
}

// notificationLife is how long a notification is worth sending.
const notificationLife = 24 * time.Hour

// notification returns a mail that only informs.
func notification(f *flow, kind mail.Kind, to string, v mail.Vars) store.NewMessage {
	v.SiteURL = f.settings.SiteURL
	return f.seal(mail.ChannelEmail, string(kind), mail.Payload{To: to, Kind: kind, Vars: v,
		IP: f.settings.hookIP(mail.ChannelEmail, f.req), Locales: f.locales(v.Data)}, f.now.Add(notificationLife))
}

// Notifications count against the budget for mails; when it is used up, none is sent and the operation succeeds all the
// same. The budget is read before the transaction and taken from after it. Within it, taking would come after the lock
// on the user, while all others take before they lock the user, which is a deadlock; so a few at the same moment may
// overdraw.

// canNotify reports whether the budget has something left. It costs nothing if no notification is wanted.
func canNotify(ctx context.Context, f *flow, wanted bool) bool {
	if !wanted || !f.settings.Email.Configured {
		return false
	}
	budget := f.settings.Email.Sent.limit(f.limitKey("mail"))
	var levels []store.Level
	b := f.batch()
	b.Levels(&levels, budget)
	if err := b.Send(ctx); err != nil {
		return false // the transaction will fail too
	}
	if budget.Left(levels[0], f.core.now()) < 1 {
		f.core.log.Warn("a notification is not sent: the hourly limit for mails is used up")
		return false
	}
	return true
}

package account

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// resendable is what each type of a resend looks for.
var resendable = map[string]struct {
	phone bool
	name  string // in errors
	kinds []store.Kind
}{
	"signup":        {false, "confirmation", []store.Kind{store.KindSignup}},
	typeEmailChange: {false, "email change", []store.Kind{store.KindEmailChangeCurrent, store.KindEmailChangeNew}},
	"sms":           {true, "confirmation", []store.Kind{store.KindSignup}},
	"phone_change":  {true, "phone_change", []store.Kind{store.KindPhoneChange}},
}

// flowMethods are the amr methods of what a mail's PKCE flow opens.
var flowMethods = map[string]string{"signup": "email/signup", typeEmailChange: "email_change"}

// Resend sends another mail or SMS of what waits for an address. The answer is the id of the
// message, or of one that was never written: nobody is told whether anything waits.
func (a *Accounts) Resend(ctx context.Context, c Client, p Resend) (uuid.UUID, error) {
	return resend(ctx, a.begin(c), p)
}

func resend(ctx context.Context, f *flow, p Resend) (uuid.UUID, error) {
	who, err := f.settings.resendTo(p)
	if err != nil {
		return uuid.Nil, err
	}
	what, aud := resendable[p.Type], f.aud()
	var q *quota
	if what.phone {
		if canSendSMS(f, what.name, who) != nil { // to the asker, nothing waits for any number
			return uuid.New(), nil
		}
		q = smsQuota(f, aud, who)
	} else if p.Type == "signup" {
		err = f.settings.canSendMail(what.name)
		q = mailQuota(f, "confirmation", f.settings.Email.ConfirmationInterval, aud, who)
	} else {
		err = f.settings.canSendMail(what.name)
		q = mailQuota(f, "email_change", f.settings.Email.Interval, aud, who)
	}
	if err != nil {
		return uuid.Nil, err
	}
	boundClient(f, q)
	var pending store.Pending
	b := f.batch()
	b.Pending(&pending, aud, who, what.kinds...)
	q.look(b)
	if err := b.Send(ctx); err != nil {
		return uuid.Nil, failure("look up", err)
	}
	if err := q.judge(f.now); err != nil {
		return uuid.Nil, err
	}
	found := waits(p.Type, who, &pending)
	id, err := writeResend(ctx, f, p, who, &pending, q, found)
	if errors.Is(err, errElsewhere) { // whoever else it goes to has just had one: to the asker, nothing waits
		id, err = writeResend(ctx, f, p, who, &pending, q, false)
	}
	return id, err
}

// errElsewhere: the other address that a change is about may not be written to yet.
var errElsewhere = errors.New("account: resend: the pause of the other address")

// elsewhere are the pauses and caps of the other address that is written to, beside the one that was
// asked for: else everybody with a change that waits could have somebody written to once more. Where
// there is none they are nobody's.
func elsewhere(f *flow, typ, aud, who string, p *store.Pending, found bool) []store.Limit {
	u, other := &p.User, uuid.NewString()
	switch {
	case typ == typeEmailChange:
		if found && who != u.NewEmail {
			other = u.NewEmail
		} else if found && f.settings.asksCurrent(u) {
			other = u.Email
		}
		return mailQuota(f, "email_change", f.settings.Email.Interval, aud, other).pauses
	case typ == "phone_change":
		if found && who != u.NewPhone {
			other = u.NewPhone
		}
		q := smsQuota(f, aud, other)
		if len(q.budgets) > 0 {
			q.budgets = q.budgets[1:] // the service's own is taken already
		}
		return q.all()
	}
	return nil
}

// resendTo judges the request and is the address.
func (s *Settings) resendTo(p Resend) (who string, err error) {
	what, known := resendable[p.Type]
	if !what.phone {
		if err := p.Challenge.check(); err != nil {
			return "", err
		}
	}
	switch {
	case !known:
		return "", notValid("Missing one of these types: signup, email_change, sms, phone_change")
	case p.Type == "signup" && p.Email == "":
		return "", notValid("Type provided requires an email address")
	case p.Type == "sms" && p.Phone == "":
		return "", notValid("Type provided requires a phone number")
	case p.Email != "" && p.Phone != "":
		return "", notValid("Only an email address or phone number should be provided.")
	case p.Email != "" && !s.Email.Enabled:
		return "", invalid(CodeEmailProviderDisabled, "Email logins are disabled")
	case p.Phone != "" && !s.Phone.Enabled:
		return "", invalid(CodePhoneProviderDisabled, "Phone logins are disabled")
	case p.Email == "" && p.Phone == "":
		return "", notValid("Missing email address or phone number")
	}
	if p.Email != "" {
		who, err = goodEmail(p.Email)
	} else {
		who, err = goodPhone(p.Phone)
	}
	if err == nil && (p.Phone != "") != what.phone {
		err = notValid("Missing email address or phone number")
	}
	return who, err
}

// waits says whether there is anything of that type to be sent to the address.
func waits(typ, who string, p *store.Pending) bool {
	u := &p.User
	switch typ {
	case "signup":
		return p.Known() && u.Email == who && u.EmailConfirmedAt.IsZero()
	case typeEmailChange:
		return p.Known() && u.NewEmail != "" && (u.Email == who || u.NewEmail == who)
	case "sms":
		return p.Known() && u.Phone == who && u.PhoneConfirmedAt.IsZero()
	}
	return p.Known() && u.NewPhone != "" && (u.Phone == who || u.NewPhone == who)
}

func writeResend(ctx context.Context, f *flow, r Resend, who string, p *store.Pending, q *quota, found bool) (uuid.UUID, error) {
	id := p.User.ID
	if !found {
		id = uuid.New()
	}
	var flow *store.Flow
	if !resendable[r.Type].phone {
		flow = f.settings.flowAgain(r.Challenge, p.Flow, flowMethods[r.Type], f.now)
	}
	var letters []letter
	var err error
	sent, note := store.ConfirmationSent, store.Audit{Action: store.ActionUserConfirmationRequested, Traits: traits("provider", "email")}
	switch r.Type {
	case "signup":
		letters, err = sendAgain(f, "email", who, p, found, flow)
	case "sms":
		letters, err = sendAgain(f, "phone", who, p, found, nil)
		note.Action, note.Traits = store.ActionUserRecoveryRequested, traits("channel", "sms")
	case typeEmailChange:
		sent, note.Action, note.Traits = store.EmailChangeSent, store.ActionEmailChangeRequested, nil
		u := p.User
		if !found { // as many mails as for somebody
			u.Email, u.NewEmail = who, who
		}
		letters, err = newEmailChange(f, u, flow)
		keepPassword(letters, p, found)
	default:
		sent, note.Action, note.Traits = store.PhoneChangeSent, store.ActionPhoneChangeRequested, nil
		number := p.User.NewPhone
		if !found {
			number = who
		}
		letters = make([]letter, 1)
		letters[0], err = newSMS(f, store.KindPhoneChange, number, "")
		keepPassword(letters, p, found)
	}
	if err != nil {
		return uuid.Nil, err
	}
	b := f.batch()
	others := elsewhere(f, r.Type, f.aud(), who, p, found)
	q.take(b, f.now, others...)
	b.MarkSent(id, sent, f.now)
	write(b, id, flow, letters...)
	note.At, note.Actor, note.OnlyFor, note.IP = f.now, id, id, f.req.IP
	b.Audit(note)
	if err := b.Send(ctx); err != nil {
		if _, over := among(others, err); over && found {
			return uuid.Nil, errElsewhere
		}
		return uuid.Nil, failure("resend", q.refused(err))
	}
	if err := f.send(ctx, letters...); err != nil {
		return uuid.Nil, err
	}
	if last := letters[len(letters)-1].message.ID; last != uuid.Nil {
		return last, nil
	}
	return uuid.New(), nil // a test number
}

// keepPassword lets the password that waits with a first address wait with its new token.
func keepPassword(letters []letter, p *store.Pending, found bool) {
	for i := range letters {
		if t := &letters[i].token; found && t.Kind == p.Token.Kind && t.Address == p.Token.Address {
			t.PasswordHash = p.Token.PasswordHash
		}
	}
}

// again renews a pending sign-up: the same password, data and identity hang on the new confirmation.
func sendAgain(f *flow, provider, who string, p *store.Pending, found bool, flow *store.Flow) ([]letter, error) {
	n := &newcomer{provider: provider, who: who}
	if found && p.Token.Kind == store.KindSignup && p.Token.Address == who {
		n.hash, n.data, n.identity = p.Token.PasswordHash, p.Token.UserMetadata, p.Token.Identity
	}
	l, err := newConfirmation(f, n, n.idAmong(p.User), flow)
	return []letter{l}, err
}

// flowAgain is the flow of a mail that is sent once more: the client's, or one like that of the mail before.
// The library sends no challenge here, and refuses a link that isn't of its flow.
func (s *Settings) flowAgain(c Challenge, old store.Flow, method string, now time.Time) *store.Flow {
	if !c.given() && old.ID != uuid.Nil {
		c, method = Challenge{Challenge: old.Challenge, Method: old.ChallengeMethod}, old.Method
	}
	return s.flow(c, method, now)
}

// asksCurrent: the current address has to agree to a change.
func (s *Settings) asksCurrent(u *store.User) bool {
	return s.Email.SecureChange && u.Email != "" && !s.Email.Autoconfirm
}

// emailChange are the mails of a change of address: to the new one, and to the current one if that has
// to agree. A hook gets both in one call, so in one message.
func newEmailChange(f *flow, u store.User, flow *store.Flow) ([]letter, error) {
	half := func(kind store.Kind, to string) mailed {
		return mailed{
			kind: kind, mail: mail.EmailChange, link: mail.LinkEmailChange, to: to, flow: idOf(flow),
			vars: mail.Vars{Email: u.Email, NewEmail: u.NewEmail, SendingTo: to, Data: u.UserMetadata},
		}
	}
	fresh, p, err := composeMail(f, half(store.KindEmailChangeNew, u.NewEmail))
	if err != nil {
		return nil, err
	}
	if !f.settings.asksCurrent(&u) {
		fresh.message = postMail(f, fresh, p)
		return []letter{fresh}, nil
	}
	current, other, err := composeMail(f, half(store.KindEmailChangeCurrent, u.Email))
	if err != nil {
		return nil, err
	}
	if f.settings.Hooks.Sends[mail.ChannelEmail] {
		p.Current = &other
	} else {
		current.message = postMail(f, current, other)
	}
	fresh.message = postMail(f, fresh, p)
	return []letter{current, fresh}, nil
}

package account

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// resendable says what each type of a resend looks for.
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

// flowMethods are the amr methods of the sessions that a mail's PKCE flow opens.
var flowMethods = map[string]string{"signup": "email/signup", typeEmailChange: "email_change"}

// Resend sends another mail or SMS of what is pending for an address. The answer is the ID of the message, or of one
// that was never written: it does not reveal whether anything is pending.
func (a *Accounts) Resend(ctx context.Context, req RequestInfo, p Resend) (uuid.UUID, error) {
	op := resendOp{f: *a.begin(req), p: p}
	return op.run(ctx)
}

// resendOp is one call of Resend.
type resendOp struct {
	f       flow
	p       Resend
	address string // the address, of whatever kind
	q       *quota
	pending store.Pending
	// found: something is pending. Otherwise the same statements are made for a user that does not exist.
	found bool
}

func (op *resendOp) run(ctx context.Context) (uuid.UUID, error) {
	var err error
	if op.address, err = op.f.settings.resendAddress(op.p); err != nil {
		return uuid.Nil, err
	}
	f, what, aud := &op.f, resendable[op.p.Type], op.f.aud()
	if what.phone {
		if checkSMSSendable(f, what.name, op.address) != nil { // answered as if nothing were pending for any number
			f.core.unsent("sms", "unconfigured")
			f.core.log.Warn("a message was asked for again, and AUTH_SMS_PROVIDER is not set or lacks its credentials",
				"type", op.p.Type)
			return uuid.New(), nil
		}
		op.q = smsQuota(f, aud, op.address)
	} else {
		if err := f.settings.checkMailSendable(what.name); err != nil {
			return uuid.Nil, err
		}
		if op.p.Type == "signup" {
			op.q = mailQuota(f, "confirmation", f.settings.Email.ConfirmationInterval, aud, op.address)
		} else {
			op.q = mailQuota(f, "email_change", f.settings.Email.Interval, aud, op.address)
		}
		op.q.apart(f, aud, op.address)
	}
	boundClient(f, op.q)
	b := f.batch()
	op.pending.Place = placeMAC(f)
	b.Pending(&op.pending, aud, op.address, what.kinds...)
	op.q.look(b)
	if err := b.Send(ctx); err != nil {
		return uuid.Nil, failure("look up", err)
	}
	if err := op.q.check(f.now); err != nil {
		return uuid.Nil, err
	}
	op.found = hasPending(op.p.Type, op.address, &op.pending)
	id, err := op.write(ctx)
	if errors.Is(err, errOtherPaused) { // the other address has just had a message: answered as if nothing were pending
		op.found = false
		id, err = op.write(ctx)
	}
	return id, err
}

// errOtherPaused: the other address that a change is about is still paused.
var errOtherPaused = errors.New("account: resend: the pause of the other address")

// otherLimits returns the pauses and caps of the other address that a message goes to, next to the requested one:
// otherwise any user with a pending change could trigger one more message to another person. Where there is no other
// address they belong to a random one.
func (op *resendOp) otherLimits() []store.Limit {
	f, u, other := &op.f, &op.pending.User, uuid.NewString()
	switch op.p.Type {
	case typeEmailChange:
		if op.found && op.address != u.NewEmail {
			other = u.NewEmail
		} else if op.found && f.settings.asksCurrent(u) {
			other = u.Email
		}
		pauses := mailQuota(f, "email_change", f.settings.Email.Interval, f.aud(), other).pauses
		if op.q.isKnown() && len(pauses) > 0 {
			pauses[0] = pauseAt(f, pauses[0])
		}
		return pauses
	case "phone_change":
		if op.found && op.address != u.NewPhone {
			other = u.NewPhone
		}
		q := smsQuota(f, f.aud(), other)
		if len(q.budgets) > 0 {
			q.budgets = q.budgets[1:] // the service's own is taken already
		}
		return q.all()
	}
	return nil
}

// resendAddress checks the request and returns the address.
func (s *Settings) resendAddress(p Resend) (who string, err error) {
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
		who, err = parseEmail(p.Email)
	} else {
		who, err = parsePhone(p.Phone)
	}
	if err == nil && (p.Phone != "") != what.phone {
		err = notValid("Missing email address or phone number")
	}
	return who, err
}

// hasPending reports whether anything of that type is pending for the address.
func hasPending(typ, who string, p *store.Pending) bool {
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

func (op *resendOp) write(ctx context.Context) (uuid.UUID, error) {
	f, p, found := &op.f, &op.pending, op.found
	id := p.User.ID
	if !found {
		id = uuid.New()
	}
	var pkce *store.Flow
	if !resendable[op.p.Type].phone {
		if p.Token.Contested { // the challenge is another person's too
			p.Flow = store.Flow{}
		}
		pkce = f.settings.pkceFlowAgain(op.p.Challenge, p.Flow, flowMethods[op.p.Type], f.now)
	}
	msgs, sent, note, err := op.compose(pkce)
	if err != nil {
		return uuid.Nil, err
	}
	for i := range msgs {
		op.q.mark(&msgs[i].token)
	}
	b := f.batch()
	others := op.otherLimits()
	op.q.take(b, f.now, others...)
	b.MarkSent(id, sent, f.now)
	if pkce == nil && !resendable[op.p.Type].phone {
		b.InsertFlow(store.Flow{ID: uuid.New(), User: uuid.New()}) // does nothing, as often as another adds a flow
	}
	insertOutgoing(b, id, pkce, msgs...)
	note.At, note.Actor, note.OnlyFor, note.IP = f.now, id, id, f.req.IP
	b.Audit(note)
	if err := f.send(ctx, b); err != nil {
		if _, over := among(others, err); over && found {
			return uuid.Nil, errOtherPaused
		}
		return uuid.Nil, failure("resend", op.q.refusalOf(err))
	}
	if last := msgs[len(msgs)-1].message.ID; last != uuid.Nil {
		return last, nil
	}
	return uuid.New(), nil // a test number
}

// compose returns the messages, the column that notes them, and the audit row.
func (op *resendOp) compose(pkce *store.Flow) (msgs []outgoing, sent store.SentColumn, note store.Audit, err error) {
	f, p, who, found := &op.f, &op.pending, op.address, op.found
	sent, note = store.ConfirmationSent,
		store.Audit{Action: store.ActionUserConfirmationRequested, Traits: traits("provider", "email")}
	switch op.p.Type {
	case "signup":
		msgs, err = op.renewConfirmation("email", pkce)
	case "sms":
		msgs, err = op.renewConfirmation("phone", nil)
		note.Action, note.Traits = store.ActionUserRecoveryRequested, traits("channel", "sms")
	case typeEmailChange:
		sent, note.Action, note.Traits = store.EmailChangeSent, store.ActionEmailChangeRequested, nil
		u := p.User
		if !found { // as many mails as for an account
			u.Email, u.NewEmail = who, who
		}
		msgs, err = newEmailChange(f, u, pkce)
		op.keepPassword(msgs)
	default:
		sent, note.Action, note.Traits = store.PhoneChangeSent, store.ActionPhoneChangeRequested, nil
		number := p.User.NewPhone
		if !found {
			number = who
		}
		msgs = make([]outgoing, 1)
		msgs[0], err = newSMS(f, store.KindPhoneChange, number, "", p.User.UserMetadata)
		op.keepPassword(msgs)
	}
	return msgs, sent, note, err
}

// keepPassword moves the password that is pending with a first address to its new token.
func (op *resendOp) keepPassword(msgs []outgoing) {
	waiting := &op.pending.Token
	for i := range msgs {
		if t := &msgs[i].token; op.found && t.Kind == waiting.Kind && t.Address == waiting.Address {
			t.PasswordHash = waiting.PasswordHash
		}
	}
}

// renewConfirmation renews the pending sign-up, whoever asks: the new confirmation carries the same password, metadata
// and identity. Where sign-ups are contested it proves the address alone.
func (op *resendOp) renewConfirmation(provider string, pkce *store.Flow) ([]outgoing, error) {
	f, p, who, found := &op.f, &op.pending, op.address, op.found
	cand := &signupCandidate{provider: provider, address: who}
	if found && p.Token.Kind == store.KindSignup && p.Token.Address == who {
		cand.renew(&p.Token)
	}
	msg, err := newConfirmation(f, cand, cand.accountID(p.User), pkce)
	return []outgoing{msg}, err
}

// renew makes cand the sign-up that a token confirms, unless that is contested.
func (cand *signupCandidate) renew(t *store.Token) {
	if cand.contested = t.Contested; !t.Contested {
		cand.hash, cand.data, cand.identity = t.PasswordHash, t.UserMetadata, t.Identity
	}
}

// pkceFlowAgain returns the flow of a mail that is sent once more: the client's, or one like that of the previous mail.
// The client library sends no challenge here, and refuses a link that is not of its flow.
func (s *Settings) pkceFlowAgain(c Challenge, old store.Flow, method string, now time.Time) *store.Flow {
	if !c.given() && old.ID != uuid.Nil {
		c, method = Challenge{Challenge: old.Challenge, Method: old.ChallengeMethod}, old.Method
	}
	return s.pkceFlow(c, method, now)
}

// asksCurrent reports whether the current address has to agree to a change.
func (s *Settings) asksCurrent(u *store.User) bool {
	return s.Email.SecureChange && u.Email != "" && !s.Email.Autoconfirm
}

// newEmailChange returns the mails of a change of address: to the new one, and to the current one if that has to agree.
// A hook gets both in one call, so they are one message.
func newEmailChange(f *flow, u store.User, pkce *store.Flow) ([]outgoing, error) {
	half := func(kind store.Kind, to string) mailSpec {
		return mailSpec{
			kind: kind, mail: mail.EmailChange, link: mail.LinkEmailChange, to: to, flow: idOf(pkce),
			vars: mail.Vars{Email: u.Email, NewEmail: u.NewEmail, SendingTo: to, Data: u.UserMetadata},
		}
	}
	toNew, p, err := composeMail(f, half(store.KindEmailChangeNew, u.NewEmail))
	if err != nil {
		return nil, err
	}
	if !f.settings.asksCurrent(&u) {
		toNew.message = sealMail(f, toNew, p)
		return []outgoing{toNew}, nil
	}
	toCurrent, other, err := composeMail(f, half(store.KindEmailChangeCurrent, u.Email))
	if err != nil {
		return nil, err
	}
	if f.settings.Hooks.Sends[mail.ChannelEmail] {
		p.Current = &other
	} else {
		toCurrent.message = sealMail(f, toCurrent, other)
	}
	toNew.message = sealMail(f, toNew, p)
	return []outgoing{toCurrent, toNew}, nil
}

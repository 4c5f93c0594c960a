package account

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// resendable describes, for each type of a resend, which kinds of pending tokens it sends again.
var resendable = map[string]struct {
	phone bool
	name  string // in error texts
	kinds []store.Kind
}{
	"signup":        {false, "confirmation", []store.Kind{store.KindSignup}},
	typeEmailChange: {false, "email change", []store.Kind{store.KindEmailChangeCurrent, store.KindEmailChangeNew}},
	"sms":           {true, "confirmation", []store.Kind{store.KindSignup}},
	"phone_change":  {true, "phone_change", []store.Kind{store.KindPhoneChange}},
}

// flowMethods has, by the type of a resend, the authentication method (amr) of the session that the mail's PKCE flow
// opens.
var flowMethods = map[string]string{"signup": "email/signup", typeEmailChange: "email_change"}

// Resend sends the mail or SMS of a pending operation again. It returns the ID of the message or, if nothing is pending
// for the address, a random ID, so that the answer does not reveal which is the case.
func (a *Accounts) Resend(ctx context.Context, req flow.RequestInfo, p flow.Resend) (uuid.UUID, error) {
	op := resendOp{f: *a.core.Begin(req), p: p}
	return op.run(ctx)
}

// resendOp is the state of one call of Resend.
type resendOp struct {
	f       flow.Flow
	p       flow.Resend
	address string // e-mail address or phone number
	q       *flow.Quota
	pending store.Pending
	// found is set if something is pending. If not, the same statements run for a user ID that does not exist.
	found bool
}

func (op *resendOp) run(ctx context.Context) (uuid.UUID, error) {
	var err error
	if op.address, err = resendAddress(op.f.Settings, op.p); err != nil {
		return uuid.Nil, err
	}
	f, what, aud := &op.f, resendable[op.p.Type], op.f.Aud()
	if what.phone {
		if flow.CheckSMSSendable(f, what.name, op.address) != nil { // answered as if nothing were pending
			f.Core.Unsent("sms", "unconfigured")
			f.Core.Log.Warn("a message was asked for again, and AUTH_SMS_PROVIDER is not set or lacks its credentials",
				"type", op.p.Type)
			return uuid.New(), nil
		}
		op.q = flow.SMSQuota(f, aud, op.address)
	} else {
		if err := f.Settings.CheckMailSendable(what.name); err != nil {
			return uuid.Nil, err
		}
		if op.p.Type == "signup" {
			op.q = flow.MailQuota(f, "confirmation", f.Settings.Email.ConfirmationInterval, aud, op.address)
		} else {
			op.q = flow.MailQuota(f, "email_change", f.Settings.Email.Interval, aud, op.address)
		}
		op.q.Apart(f, aud, op.address)
	}
	flow.BoundClient(f, op.q)
	op.pending.Place = flow.PlaceMAC(f)
	pending := func(b *flow.Batch) { b.Pending(&op.pending, aud, op.address, what.kinds...) }
	if err := op.q.LookUp(ctx, f, pending); err != nil {
		return uuid.Nil, err
	}
	op.found = hasPending(op.p.Type, op.address, &op.pending)
	id, err := op.write(ctx)
	// A change of address sends a message to both addresses, and another request has just sent one to the other
	// address. The answer is the same as if nothing were pending.
	if errors.Is(err, errOtherPaused) {
		op.found = false
		id, err = op.write(ctx)
	}
	return id, err
}

// errOtherPaused is returned if the resend of a change of address would also send a message to the other address, whose
// pause or cap does not allow one yet.
var errOtherPaused = errors.New("account: resend: the pause of the other address")

// otherLimits returns the pauses and caps of the other address to which the resend of a change of address also sends a
// message. Without these limits, any user with a pending change could have further messages sent to another person. If
// there is no other address, it returns the limits of a random one, so that the statements are the same.
func (op *resendOp) otherLimits() []store.Limit {
	f, u, other := &op.f, &op.pending.User, uuid.NewString()
	switch op.p.Type {
	case typeEmailChange:
		if op.found && op.address != u.NewEmail {
			other = u.NewEmail
		} else if op.found && f.Settings.AsksCurrent(u) {
			other = u.Email
		}
		pauses := flow.MailQuota(f, "email_change", f.Settings.Email.Interval, f.Aud(), other).Pauses
		if op.q.IsKnown() && len(pauses) > 0 {
			pauses[0] = flow.PauseAt(f, pauses[0])
		}
		return pauses
	case "phone_change":
		if op.found && op.address != u.NewPhone {
			other = u.NewPhone
		}
		q := flow.SMSQuota(f, f.Aud(), other)
		if len(q.Budgets) > 0 {
			q.Budgets = q.Budgets[1:] // omit the service's budget: op.q takes from it already
		}
		return q.All()
	}
	return nil
}

// resendAddress checks the request and returns the address to send to.
func resendAddress(s *flow.Settings, p flow.Resend) (who string, err error) {
	what, known := resendable[p.Type]
	if !what.phone {
		if err := p.Challenge.Check(); err != nil {
			return "", err
		}
	}
	switch {
	case !known:
		return "", refusal.NotValid("Missing one of these types: signup, email_change, sms, phone_change")
	case p.Type == "signup" && p.Email == "":
		return "", refusal.NotValid("Type provided requires an email address")
	case p.Type == "sms" && p.Phone == "":
		return "", refusal.NotValid("Type provided requires a phone number")
	case p.Email != "" && p.Phone != "":
		return "", refusal.NotValid("Only an email address or phone number should be provided.")
	case p.Email != "" && !s.Email.Enabled:
		return "", refusal.Invalid(refusal.CodeEmailProviderDisabled, "Email logins are disabled")
	case p.Phone != "" && !s.Phone.Enabled:
		return "", refusal.Invalid(refusal.CodePhoneProviderDisabled, "Phone logins are disabled")
	case p.Email == "" && p.Phone == "":
		return "", refusal.NotValid("Missing email address or phone number")
	}
	if p.Email != "" {
		who, err = flow.ParseEmail(p.Email)
	} else {
		who, err = flow.ParsePhone(p.Phone)
	}
	if err == nil && (p.Phone != "") != what.phone {
		err = refusal.NotValid("Missing email address or phone number")
	}
	return who, err
}

// hasPending reports whether p has a pending operation of the type typ with the e-mail address or phone number who.
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
		if p.Token.Contested { // contested: the challenge may come from another person's sign-up
			p.Flow = store.Flow{}
		}
		pkce = pkceFlowAgain(f.Settings, op.p.Challenge, p.Flow, flowMethods[op.p.Type], f.Now)
	}
	msgs, sent, note, err := op.compose(pkce)
	if err != nil {
		return uuid.Nil, err
	}
	for i := range msgs {
		op.q.Mark(&msgs[i].Token)
	}
	b := f.Batch()
	others := op.otherLimits()
	op.q.Take(b, f.Now, others...)
	b.MarkSent(id, sent, f.Now)
	if pkce == nil && !resendable[op.p.Type].phone {
		// No user has this ID: the statement stores nothing, but takes as long.
		b.InsertFlow(store.Flow{ID: uuid.New(), User: uuid.New()})
	}
	flow.InsertOutgoing(b, id, pkce, msgs...)
	note.At, note.Actor, note.OnlyFor, note.IP = f.Now, id, id, f.Req.IP
	b.Audit(note)
	if err := f.Send(ctx, b); err != nil {
		if _, over := flow.Among(others, err); over && found {
			return uuid.Nil, errOtherPaused
		}
		return uuid.Nil, refusal.Failure("resend", op.q.RefusalOf(err))
	}
	if last := msgs[len(msgs)-1].Message.ID; last != uuid.Nil {
		return last, nil
	}
	return uuid.New(), nil // a test number gets no SMS, so no message has an ID
}

// compose returns what a resend writes: the messages, the column of the user that gets the time of sending, and the
// audit row.
func (op *resendOp) compose(pkce *store.Flow) (msgs []flow.Outgoing, sent store.SentColumn, note store.Audit, err error) {
	f, p, who, found := &op.f, &op.pending, op.address, op.found
	sent, note = store.ConfirmationSent,
		store.Audit{Action: store.ActionUserConfirmationRequested, Traits: flow.Traits("provider", "email")}
	switch op.p.Type {
	case "signup":
		msgs, err = op.renewConfirmation("email", pkce)
	case "sms":
		msgs, err = op.renewConfirmation("phone", nil)
		note.Action, note.Traits = store.ActionUserRecoveryRequested, flow.Traits("channel", "sms")
	case typeEmailChange:
		sent, note.Action, note.Traits = store.EmailChangeSent, store.ActionEmailChangeRequested, nil
		u := p.User
		if !found { // compose as many mails for an unknown address as for an account
			u.Email, u.NewEmail = who, who
		}
		msgs, err = flow.NewEmailChange(f, u, pkce)
		op.keepPassword(msgs)
	default:
		sent, note.Action, note.Traits = store.PhoneChangeSent, store.ActionPhoneChangeRequested, nil
		number := p.User.NewPhone
		if !found {
			number = who
		}
		msgs = make([]flow.Outgoing, 1)
		msgs[0], err = flow.NewSMS(f, store.KindPhoneChange, flow.Phone{Number: number, Metadata: p.User.UserMetadata})
		op.keepPassword(msgs)
	}
	return msgs, sent, note, err
}

// keepPassword copies the password that was given together with an account's first address from the pending token of
// the address to the address's new token.
func (op *resendOp) keepPassword(msgs []flow.Outgoing) {
	waiting := &op.pending.Token
	for i := range msgs {
		if t := &msgs[i].Token; op.found && t.Kind == waiting.Kind && t.Address == waiting.Address {
			t.PasswordHash = waiting.PasswordHash
		}
	}
}

// renewConfirmation returns a new confirmation of the pending sign-up. Even if another person requested the resend, the
// confirmation carries the sign-up's password, metadata and identity. If the sign-ups of the address are contested, it
// carries none of them and proves only the address.
func (op *resendOp) renewConfirmation(provider string, pkce *store.Flow) ([]flow.Outgoing, error) {
	f, p, who, found := &op.f, &op.pending, op.address, op.found
	cand := &signupCandidate{provider: provider, address: who}
	if found && p.Token.Kind == store.KindSignup && p.Token.Address == who {
		cand.renew(&p.Token)
	}
	msg, err := cand.confirmation(f, cand.accountID(p.User), pkce)
	return []flow.Outgoing{msg}, err
}

// renew fills cand with the sign-up that token t confirms, unless the sign-up is contested.
func (cand *signupCandidate) renew(t *store.Token) {
	if cand.contested = t.Contested; !t.Contested {
		cand.hash, cand.data, cand.identity = t.PasswordHash, t.UserMetadata, t.Identity
	}
}

// pkceFlowAgain returns the PKCE flow of a mail that is sent again. It has the client's challenge or, without one, the
// challenge of the previous mail's flow: older versions of the client library send no challenge with a resend, but
// refuse a link that does not belong to their own flow.
func pkceFlowAgain(s *flow.Settings, c flow.Challenge, old store.Flow, method string, now time.Time) *store.Flow {
	if !c.Given() && old.ID != uuid.Nil {
		c, method = flow.Challenge{Challenge: old.Challenge, Method: old.ChallengeMethod}, old.Method
	}
	return s.PkceFlow(c, method, now)
}

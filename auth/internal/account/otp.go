package account

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// SendOTP sends a link or digits to sign in with; unknown addresses become accounts unless CreateUser
// is false.
func (a *Accounts) SendOTP(ctx context.Context, req RequestInfo, p OTP) error {
	return requestOTP(ctx, a.begin(req), p)
}

func requestOTP(ctx context.Context, f *flow, p OTP) error {
	switch {
	case p.Email != "" && p.Phone != "":
		return notValid("Only an email address or phone number should be provided")
	case p.Email != "" && p.Channel != "":
		return notValid("Channel should only be specified with Phone OTP")
	}
	if err := p.Challenge.check(); err != nil {
		return err
	}
	switch {
	case p.Email != "":
		return sendLink(ctx, f, MagicLink{Email: p.Email, Data: p.Data, Challenge: p.Challenge}, p.CreateUser)
	case p.Phone != "":
		return sendDigits(ctx, f, p)
	}
	return notValid("One of email or phone must be set")
}

// MagicLink is SendOTP by mail for anybody.
func (a *Accounts) MagicLink(ctx context.Context, req RequestInfo, p MagicLink) error {
	return sendLink(ctx, a.begin(req), p, true)
}

func sendLink(ctx context.Context, f *flow, p MagicLink, create bool) error {
	if !f.settings.Email.Enabled {
		return unprocessable(CodeEmailProviderDisabled, "Email logins are disabled")
	}
	if !f.settings.Email.MagicLink {
		return unprocessable(CodeEmailProviderDisabled, "Login with magic link is disabled")
	}
	if p.Email == "" {
		return unprocessable(CodeValidationFailed, "Password recovery requires an email")
	}
	n := &newcomer{aud: f.aud(), provider: "email", challenge: p.Challenge}
	var err error
	if n.who, err = goodEmail(p.Email); err != nil {
		return err
	}
	if err := p.Challenge.check(); err != nil {
		return err
	}
	if n.data, err = f.settings.newMetadata(p.Data); err != nil {
		return err
	}
	if err := f.settings.canSendMail("magic link"); err != nil {
		return err
	}
	// The pause is that of recovery, for whatever kind of mail this turns into.
	op := otpOp{f: f, n: n, create: create, autoconfirm: f.settings.Email.Autoconfirm}
	op.q = boundClient(f, mailQuota(f, "recovery", f.settings.Email.Interval, n.aud, n.who))
	return op.run(ctx)
}

func sendDigits(ctx context.Context, f *flow, p OTP) error {
	if !f.settings.Phone.Enabled {
		return invalid(CodePhoneProviderDisabled, "Unsupported phone provider")
	}
	n := &newcomer{aud: f.aud(), provider: "phone", channel: p.Channel}
	var err error
	if n.who, err = goodPhone(p.Phone); err != nil {
		return err
	}
	if err := f.settings.Phone.goodChannel(p.Channel); err != nil {
		return err
	}
	if n.data, err = f.settings.newMetadata(p.Data); err != nil {
		return err
	}
	if err := canSendSMS(f, "confirmation", n.who); err != nil {
		return err
	}
	op := otpOp{f: f, n: n, create: p.CreateUser, autoconfirm: f.settings.Phone.Autoconfirm}
	op.q = boundClient(f, smsQuota(f, n.aud, n.who))
	return op.run(ctx)
}

// otpOp is one call of SendOTP or MagicLink.
type otpOp struct {
	f           *flow
	n           *newcomer
	q           *quota
	create      bool // an unknown address becomes an account
	autoconfirm bool // which is confirmed at once

	// What the look found out; again after the address was overtaken.
	known  store.User
	st     standing
	hidden bool // unknown, and answered as a known one
}

// run sends to whoever has the address what lets him in: a confirmation to somebody new or
// unconfirmed, else a magic link or digits. One batch of reads, one of writes.
func (op *otpOp) run(ctx context.Context) error {
	for again := false; ; again = true {
		if err := op.look(ctx); err != nil {
			return err
		}
		msg, err := op.write(ctx)
		if overtaken(err) && !again {
			continue
		}
		if err != nil {
			return failure("send otp", op.q.refused(err))
		}
		return op.f.send(ctx, msg)
	}
}

// look reads who has the address, and judges whether an unknown one may become an account.
func (op *otpOp) look(ctx context.Context) (err error) {
	f, n := op.f, op.n
	if op.known, err = lookUp(ctx, f, n, op.q); err != nil {
		return err
	}
	op.st, op.hidden = n.standing(op.known), false
	switch {
	case op.st != fresh:
		return nil
	case !op.create && !f.settings.HideUnknownOnOTP:
		return unprocessable(CodeOTPDisabled, "Signups not allowed for otp")
	case !op.create:
		op.hidden = true
		return nil
	case f.settings.DisableSignup:
		return errSignupDisabled
	}
	if err := f.settings.ownAudience(n.aud); err != nil {
		return err
	}
	return mayCreate(ctx, f, n, n.user(f, n.newID(), op.autoconfirm, n.data))
}

func (op *otpOp) write(ctx context.Context) (outgoing, error) {
	f, n, st, known := op.f, op.n, op.st, op.known
	f.tick()
	created := st == fresh && !op.hidden
	reachable := st == taken && (n.provider == "phone" || known.Email == n.who)
	signsUp := st == pending || created && !op.autoconfirm
	b := f.batch()
	op.q.take(b, f.now)
	var id uuid.UUID
	switch {
	case signsUp:
		id = n.enlist(f, b, st, known)
	case created: // confirmed at once; the link below lets him in
		u := n.user(f, n.newID(), true, n.data)
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
		id = u.ID
	case reachable:
		sent := store.RecoverySent
		if n.provider == "phone" {
			sent = store.ConfirmationSent
		}
		b.MarkSent(known.ID, sent, f.now)
		b.VerifyIdentities(uuid.New(), n.who, f.now)
		id = known.ID
	default:
		id = idle(b, f.now)
	}
	method := "magiclink"
	if signsUp {
		method = "email/signup"
	}
	flow := f.settings.flow(n.challenge, method, f.now)
	msg, err := otpMessage(f, n, known, signsUp, flow)
	if err != nil {
		return msg, err
	}
	msg.token.Required = st == pending
	insertOutgoing(b, id, flow, msg)
	enqueueCreatedHook(f, b, created, id)
	note := f.audit(store.ActionUserRecoveryRequested, id, uuid.Nil, "channel", n.channel)
	if signsUp {
		note = f.audit(store.ActionUserConfirmationRequested, id, uuid.Nil, "provider", n.provider, "channel", n.channel)
	}
	note.OnlyFor = id
	b.Audit(note)
	if created && !signsUp {
		b.Audit(f.audit(store.ActionUserSignedUp, id, uuid.Nil, "provider", n.provider))
	}
	return msg, b.Send(ctx)
}

// otpMessage is the message that lets somebody in.
func otpMessage(f *flow, n *newcomer, known store.User, signsUp bool, flow *store.Flow) (outgoing, error) {
	switch {
	case signsUp:
		return newConfirmation(f, n, n.idAmong(known), flow)
	case n.provider == "phone":
		return newSMS(f, store.KindSMS, n.who, n.channel)
	}
	data := known.UserMetadata
	if known.ID == uuid.Nil { // he has just been made, and confirmed
		data = n.profile(n.newID(), true, n.data)
	}
	return newMail(f, mailSpec{
		kind: store.KindMagicLink, mail: mail.MagicLink, link: mail.LinkMagicLink, to: n.who, flow: idOf(flow),
		vars: mail.Vars{Email: n.who, Data: data},
	})
}

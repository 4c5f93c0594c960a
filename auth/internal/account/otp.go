package account

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// SendOTP sends a magic link or a one-time code to sign in with. For an unknown address it creates an account, unless
// CreateUser is false.
func (a *Accounts) SendOTP(ctx context.Context, req flow.RequestInfo, p flow.OTP) error {
	f := a.core.Begin(req)
	switch {
	case p.Email != "" && p.Phone != "":
		return refusal.NotValid("Only an email address or phone number should be provided")
	case p.Email != "" && p.Channel != "":
		return refusal.NotValid("Channel should only be specified with Phone OTP")
	}
	if err := p.Challenge.Check(); err != nil {
		return err
	}
	switch {
	case p.Email != "":
		return sendLink(ctx, f, flow.MagicLink{Email: p.Email, Data: p.Data, Challenge: p.Challenge}, p.CreateUser)
	case p.Phone != "":
		return sendDigits(ctx, f, p)
	}
	return refusal.NotValid("One of email or phone must be set")
}

// MagicLink mails a magic link, as SendOTP with CreateUser does.
func (a *Accounts) MagicLink(ctx context.Context, req flow.RequestInfo, p flow.MagicLink) error {
	return sendLink(ctx, a.core.Begin(req), p, true)
}

func sendLink(ctx context.Context, f *flow.Flow, p flow.MagicLink, create bool) error {
	if err := f.Settings.Email.CheckMagicLink(); err != nil {
		return err
	}
	if p.Email == "" {
		return refusal.Unprocessable(refusal.CodeValidationFailed, "Password recovery requires an email")
	}
	cand := signupCandidate{aud: f.Aud(), provider: "email", challenge: p.Challenge}
	var err error
	if cand.address, err = flow.ParseEmail(p.Email); err != nil {
		return err
	}
	if err := p.Challenge.Check(); err != nil {
		return err
	}
	if cand.data, err = f.Settings.NewMetadata(p.Data); err != nil {
		return err
	}
	if err := f.Settings.CheckMailSendable("magic link"); err != nil {
		return err
	}
	// All mails of SendOTP and MagicLink share one pause with recovery mails: each delays the next of any of these
	// kinds to the address.
	op := otpOp{f: *f, cand: cand, create: create, autoconfirm: f.Settings.Email.Autoconfirm}
	op.q = flow.BoundClient(f, flow.MailQuota(f, "recovery", f.Settings.Email.Interval, cand.aud, cand.address)).
		Apart(f, cand.aud, cand.address)
	return op.run(ctx)
}

func sendDigits(ctx context.Context, f *flow.Flow, p flow.OTP) error {
	if !f.Settings.Phone.Enabled {
		return refusal.Invalid(refusal.CodePhoneProviderDisabled, "Unsupported phone provider")
	}
	cand := signupCandidate{aud: f.Aud(), provider: "phone", channel: flow.ChannelOf(p.Channel)}
	var err error
	if cand.address, err = flow.ParsePhone(p.Phone); err != nil {
		return err
	}
	if err := f.Settings.Phone.CheckChannel(p.Channel); err != nil {
		return err
	}
	if cand.data, err = f.Settings.NewMetadata(p.Data); err != nil {
		return err
	}
	if err := flow.CheckSMSSendable(f, "confirmation", cand.address); err != nil {
		return err
	}
	op := otpOp{f: *f, cand: cand, create: p.CreateUser, autoconfirm: f.Settings.Phone.Autoconfirm}
	op.q = flow.BoundClient(f, flow.SMSQuota(f, cand.aud, cand.address))
	return op.run(ctx)
}

// otpOp is the state of one call of SendOTP or MagicLink.
type otpOp struct {
	f           flow.Flow
	cand        signupCandidate
	q           *flow.Quota
	create      bool // an unknown address gets an account
	autoconfirm bool // a new account is confirmed at once

	// These fields are the results of look. It is called again if another request takes the address before the message
	// is written.
	known  store.User
	state  addressState
	hidden bool // the address is unknown, but answered like a known address
}

// run sends a message to sign in with: a confirmation if the address is new or unconfirmed, else a magic link or a
// one-time code. It takes one batch of reads and one of writes.
func (op *otpOp) run(ctx context.Context) error {
	for again := false; ; again = true {
		if err := op.look(ctx); err != nil {
			return err
		}
		err := op.write(ctx)
		if isOvertaken(err) && !again {
			continue
		}
		return refusal.Failure("send otp", op.q.RefusalOf(err))
	}
}

// look reads which account has the address, and checks whether an unknown address may get an account.
func (op *otpOp) look(ctx context.Context) (err error) {
	f, cand := &op.f, &op.cand
	if op.known, err = lookUp(ctx, f, cand, op.q); err != nil {
		return err
	}
	op.state, op.hidden = cand.state(op.known), false
	switch {
	case op.state != addressFree:
		return nil
	case !op.create && !f.Settings.HideUnknownOnOTP:
		return refusal.Unprocessable(refusal.CodeOTPDisabled, "Signups not allowed for otp")
	case !op.create:
		op.hidden = true
		return nil
	case f.Settings.DisableSignup:
		return flow.ErrSignupDisabled
	}
	if err := checkSignUpAudience(f.Settings, cand.aud); err != nil {
		return err
	}
	return cand.CheckCreation(ctx, f, cand.user(f, cand.NewID(), op.autoconfirm, cand.data))
}

func (op *otpOp) write(ctx context.Context) error {
	f, cand, state, known := &op.f, &op.cand, op.state, op.known
	f.Tick()
	created := state == addressFree && !op.hidden
	reachable := state == addressTaken && (cand.provider == "phone" || known.Email == cand.address)
	signsUp := state == addressPending || created && !op.autoconfirm
	b := f.Batch()
	op.q.Take(b, f.Now)
	var id uuid.UUID
	switch {
	case signsUp:
		id = cand.addPending(f, b, state, known)
	case created: // the account is confirmed already; the link that is sent only signs in
		u := cand.user(f, cand.NewID(), true, cand.data)
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
		id = u.ID
	case reachable:
		sent := store.RecoverySent
		if cand.provider == "phone" {
			sent = store.ConfirmationSent
		}
		b.MarkSent(known.ID, sent, f.Now)
		b.VerifyIdentities(uuid.New(), cand.address, f.Now)
		id = known.ID
	default:
		id = addNothing(b, f.Now)
	}
	method := "magiclink"
	if signsUp {
		method = "email/signup"
	}
	pkce := f.Settings.PkceFlow(cand.challenge, method, f.Now)
	msg, err := otpMessage(f, cand, known, signsUp, pkce)
	if err != nil {
		return err
	}
	msg.Token.Required = state == addressPending
	op.q.Mark(&msg.Token)
	flow.InsertOutgoing(b, id, pkce, msg)
	flow.EnqueueCreatedHook(f, b, created, id)
	note := f.Audit(store.ActionUserRecoveryRequested, id, uuid.Nil, "channel", cand.channel)
	if signsUp {
		note = f.Audit(store.ActionUserConfirmationRequested, id, uuid.Nil, "provider", cand.provider, "channel",
			cand.channel)
	}
	note.OnlyFor = id
	b.Audit(note)
	if created && !signsUp {
		b.Audit(f.Audit(store.ActionUserSignedUp, id, uuid.Nil, "provider", cand.provider))
	}
	return f.Send(ctx, b)
}

// otpMessage returns the message to sign in with. signsUp says whether it confirms a sign-up.
func otpMessage(f *flow.Flow, cand *signupCandidate, known store.User, signsUp bool,
	pkce *store.Flow) (flow.Outgoing, error) {
	switch {
	case signsUp:
		return cand.confirmation(f, cand.accountID(known), pkce)
	case cand.provider == "phone":
		return flow.NewSMS(f, store.KindSMS, cand.phone(known.UserMetadata))
	}
	data := known.UserMetadata
	if known.ID == uuid.Nil { // the account is being created, and is confirmed at once
		data = cand.profile(cand.NewID(), true, cand.data)
	}
	return flow.NewMail(f, flow.MailSpec{
		Kind: store.KindMagicLink, Mail: mail.MagicLink, Link: mail.LinkMagicLink, To: cand.address, Flow: flow.IDOf(pkce),
		Vars: mail.Vars{Email: cand.address, Data: data},
	})
}

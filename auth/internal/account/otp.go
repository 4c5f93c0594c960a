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
	f := a.begin(req)
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

// MagicLink is SendOTP by mail with CreateUser.
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
	cand := signupCandidate{aud: f.aud(), provider: "email", challenge: p.Challenge}
	var err error
	if cand.address, err = parseEmail(p.Email); err != nil {
		return err
	}
	if err := p.Challenge.check(); err != nil {
		return err
	}
	if cand.data, err = f.settings.newMetadata(p.Data); err != nil {
		return err
	}
	if err := f.settings.checkMailSendable("magic link"); err != nil {
		return err
	}
	// The pause is that of recovery, whatever kind of mail is sent.
	op := otpOp{f: *f, cand: cand, create: create, autoconfirm: f.settings.Email.Autoconfirm}
	op.q = boundClient(f, mailQuota(f, "recovery", f.settings.Email.Interval, cand.aud, cand.address)).
		apart(f, cand.aud, cand.address)
	return op.run(ctx)
}

func sendDigits(ctx context.Context, f *flow, p OTP) error {
	if !f.settings.Phone.Enabled {
		return invalid(CodePhoneProviderDisabled, "Unsupported phone provider")
	}
	cand := signupCandidate{aud: f.aud(), provider: "phone", channel: p.Channel}
	var err error
	if cand.address, err = parsePhone(p.Phone); err != nil {
		return err
	}
	if err := f.settings.Phone.checkChannel(p.Channel); err != nil {
		return err
	}
	if cand.data, err = f.settings.newMetadata(p.Data); err != nil {
		return err
	}
	if err := checkSMSSendable(f, "confirmation", cand.address); err != nil {
		return err
	}
	op := otpOp{f: *f, cand: cand, create: p.CreateUser, autoconfirm: f.settings.Phone.Autoconfirm}
	op.q = boundClient(f, smsQuota(f, cand.aud, cand.address))
	return op.run(ctx)
}

// otpOp is one call of SendOTP or MagicLink.
type otpOp struct {
	f           flow
	cand        signupCandidate
	q           *quota
	create      bool // an unknown address becomes an account
	autoconfirm bool // which is confirmed at once

	// What the look-up found; set again after the address was overtaken.
	known  store.User
	state  addressState
	hidden bool // unknown, and answered like a known one
}

// run sends a message to sign in with to the address: a confirmation to a new or unconfirmed one, else a magic link or
// digits. One batch of reads, one of writes.
func (op *otpOp) run(ctx context.Context) error {
	for again := false; ; again = true {
		if err := op.look(ctx); err != nil {
			return err
		}
		err := op.write(ctx)
		if isOvertaken(err) && !again {
			continue
		}
		return failure("send otp", op.q.refusalOf(err))
	}
}

// look reads which account has the address, and checks whether an unknown one may become an account.
func (op *otpOp) look(ctx context.Context) (err error) {
	f, cand := &op.f, &op.cand
	if op.known, err = lookUp(ctx, f, cand, op.q); err != nil {
		return err
	}
	op.state, op.hidden = cand.state(op.known), false
	switch {
	case op.state != addressFree:
		return nil
	case !op.create && !f.settings.HideUnknownOnOTP:
		return unprocessable(CodeOTPDisabled, "Signups not allowed for otp")
	case !op.create:
		op.hidden = true
		return nil
	case f.settings.DisableSignup:
		return errSignupDisabled
	}
	if err := f.settings.checkSignUpAudience(cand.aud); err != nil {
		return err
	}
	return checkCreation(ctx, f, cand, cand.user(f, cand.newID(), op.autoconfirm, cand.data))
}

func (op *otpOp) write(ctx context.Context) error {
	f, cand, state, known := &op.f, &op.cand, op.state, op.known
	f.tick()
	created := state == addressFree && !op.hidden
	reachable := state == addressTaken && (cand.provider == "phone" || known.Email == cand.address)
	signsUp := state == addressPending || created && !op.autoconfirm
	b := f.batch()
	op.q.take(b, f.now)
	var id uuid.UUID
	switch {
	case signsUp:
		id = cand.addPending(f, b, state, known)
	case created: // confirmed at once; the link below signs in
		u := cand.user(f, cand.newID(), true, cand.data)
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
		id = u.ID
	case reachable:
		sent := store.RecoverySent
		if cand.provider == "phone" {
			sent = store.ConfirmationSent
		}
		b.MarkSent(known.ID, sent, f.now)
		b.VerifyIdentities(uuid.New(), cand.address, f.now)
		id = known.ID
	default:
		id = addNothing(b, f.now)
	}
	method := "magiclink"
	if signsUp {
		method = "email/signup"
	}
	pkce := f.settings.pkceFlow(cand.challenge, method, f.now)
	msg, err := otpMessage(f, cand, known, signsUp, pkce)
	if err != nil {
		return err
	}
	msg.token.Required = state == addressPending
	op.q.mark(&msg.token)
	insertOutgoing(b, id, pkce, msg)
	enqueueCreatedHook(f, b, created, id)
	note := f.audit(store.ActionUserRecoveryRequested, id, uuid.Nil, "channel", cand.channel)
	if signsUp {
		note = f.audit(store.ActionUserConfirmationRequested, id, uuid.Nil, "provider", cand.provider, "channel",
			cand.channel)
	}
	note.OnlyFor = id
	b.Audit(note)
	if created && !signsUp {
		b.Audit(f.audit(store.ActionUserSignedUp, id, uuid.Nil, "provider", cand.provider))
	}
	return f.send(ctx, b)
}

// otpMessage returns the message to sign in with.
func otpMessage(f *flow, cand *signupCandidate, known store.User, signsUp bool, pkce *store.Flow) (outgoing, error) {
	switch {
	case signsUp:
		return newConfirmation(f, cand, cand.accountID(known), pkce)
	case cand.provider == "phone":
		return newSMS(f, store.KindSMS, cand.address, cand.channel, known.UserMetadata)
	}
	data := known.UserMetadata
	if known.ID == uuid.Nil { // the account has just been created, and confirmed
		data = cand.profile(cand.newID(), true, cand.data)
	}
	return newMail(f, mailSpec{
		kind: store.KindMagicLink, mail: mail.MagicLink, link: mail.LinkMagicLink, to: cand.address, flow: idOf(pkce),
		vars: mail.Vars{Email: cand.address, Data: data},
	})
}

package account

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// SendOTP sends a link or digits to sign in with; unknown addresses become accounts unless CreateUser
// is false.
func (a *Accounts) SendOTP(ctx context.Context, c Client, p OTP) error {
	return requestOTP(ctx, a.begin(c), p)
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
func (a *Accounts) MagicLink(ctx context.Context, c Client, p MagicLink) error {
	return sendLink(ctx, a.begin(c), p, true)
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
	return sendOTP(ctx, f, n, create, boundClient(f, mailQuota(f, "recovery", f.settings.Email.Interval, n.aud, n.who)), f.settings.Email.Autoconfirm)
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
	return sendOTP(ctx, f, n, p.CreateUser, boundClient(f, smsQuota(f, n.aud, n.who)), f.settings.Phone.Autoconfirm)
}

// sendOTP sends to whoever has the address what lets him in: a confirmation to somebody new or
// unconfirmed, else a magic link or digits. One batch of reads, one of writes.
func sendOTP(ctx context.Context, f *flow, n *newcomer, create bool, q *quota, autoconfirm bool) error {
	for again := false; ; again = true {
		known, err := lookUp(ctx, f, n, q)
		if err != nil {
			return err
		}
		st := n.standing(known)
		hidden := false
		if st == fresh {
			switch {
			case !create && !f.settings.HideUnknownOnOTP:
				return unprocessable(CodeOTPDisabled, "Signups not allowed for otp")
			case !create:
				hidden = true
			case f.settings.DisableSignup:
				return errSignupDisabled
			default:
				if err := f.settings.ownAudience(n.aud); err != nil {
					return err
				}
			}
		}
		if st == fresh && !hidden {
			if err := mayCreate(ctx, f, n, n.user(f, n.newID(), autoconfirm, n.data)); err != nil {
				return err
			}
		}
		l, err := writeOTP(ctx, f, n, st, known, q, hidden, autoconfirm)
		if overtaken(err) && !again {
			continue
		}
		if err != nil {
			return failure("send otp", q.refused(err))
		}
		return f.send(ctx, l)
	}
}

func writeOTP(ctx context.Context, f *flow, n *newcomer, st standing, known store.User, q *quota, hidden, autoconfirm bool) (letter, error) {
	f.tick()
	reachable := st == taken && (n.provider == "phone" || known.Email == n.who)
	signsUp := st == pending || st == fresh && !autoconfirm && !hidden
	b := f.batch()
	q.take(b, f.now)
	var id uuid.UUID
	switch {
	case signsUp:
		id = n.enlist(f, b, st, known)
	case st == fresh && !hidden: // confirmed at once; the link below lets him in
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
	l, err := otpMessage(f, n, known, signsUp, flow)
	if err != nil {
		return l, err
	}
	l.token.Required = st == pending
	write(b, id, flow, l)
	tellCreated(f, b, st == fresh && !hidden, id)
	note := store.Audit{At: f.now, Action: store.ActionUserRecoveryRequested, Actor: id, OnlyFor: id, IP: f.req.IP, Traits: traits("channel", n.channel)}
	if signsUp {
		note.Action, note.Traits = store.ActionUserConfirmationRequested, traits("provider", n.provider, "channel", n.channel)
	}
	b.Audit(note)
	if st == fresh && !signsUp && !hidden {
		b.Audit(f.audit(store.ActionUserSignedUp, id, uuid.Nil, "provider", n.provider))
	}
	return l, b.Send(ctx)
}

// entry is the message that lets somebody in.
func otpMessage(f *flow, n *newcomer, known store.User, signsUp bool, flow *store.Flow) (letter, error) {
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
	return newMail(f, mailed{
		kind: store.KindMagicLink, mail: mail.MagicLink, link: mail.LinkMagicLink, to: n.who, flow: idOf(flow),
		vars: mail.Vars{Email: n.who, Data: data},
	})
}

package account

import (
	"context"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// SendOTP sends a link or digits to sign in with; unknown addresses become accounts unless CreateUser
// is false.
func (a *Accounts) SendOTP(ctx context.Context, c Client, p OTP) error {
	s := a.live.Load()
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
		return a.sendLink(ctx, s, c, MagicLink{Email: p.Email, Data: p.Data, Challenge: p.Challenge}, p.CreateUser)
	case p.Phone != "":
		return a.sendDigits(ctx, s, c, p)
	}
	return notValid("One of email or phone must be set")
}

// MagicLink is SendOTP by mail for anybody.
func (a *Accounts) MagicLink(ctx context.Context, c Client, p MagicLink) error {
	return a.sendLink(ctx, a.live.Load(), c, p, true)
}

func (a *Accounts) sendLink(ctx context.Context, s *Settings, c Client, p MagicLink, create bool) error {
	if !s.Email.Enabled {
		return unprocessable(CodeEmailProviderDisabled, "Email logins are disabled")
	}
	if !s.Email.MagicLink {
		return unprocessable(CodeEmailProviderDisabled, "Login with magic link is disabled")
	}
	if p.Email == "" {
		return unprocessable(CodeValidationFailed, "Password recovery requires an email")
	}
	n := &newcomer{aud: s.aud(c), provider: "email", challenge: p.Challenge}
	var err error
	if n.who, err = goodEmail(p.Email); err != nil {
		return err
	}
	if err := p.Challenge.check(); err != nil {
		return err
	}
	if n.data, err = s.newMetadata(p.Data); err != nil {
		return err
	}
	if err := s.canSendMail("magic link"); err != nil {
		return err
	}
	// The pause is that of recovery, for whatever kind of mail this turns into.
	return a.sendOTP(ctx, s, c, n, create, a.boundClient(s, c, a.mailQuota(s, "recovery", s.Email.Interval, n.aud, n.who)), s.Email.Autoconfirm)
}

func (a *Accounts) sendDigits(ctx context.Context, s *Settings, c Client, p OTP) error {
	if !s.Phone.Enabled {
		return invalid(CodePhoneProviderDisabled, "Unsupported phone provider")
	}
	n := &newcomer{aud: s.aud(c), provider: "phone", channel: p.Channel}
	var err error
	if n.who, err = goodPhone(p.Phone); err != nil {
		return err
	}
	if err := s.Phone.goodChannel(p.Channel); err != nil {
		return err
	}
	if n.data, err = s.newMetadata(p.Data); err != nil {
		return err
	}
	if err := a.canSendSMS(s, "confirmation", n.who); err != nil {
		return err
	}
	return a.sendOTP(ctx, s, c, n, p.CreateUser, a.boundClient(s, c, a.smsQuota(s, n.aud, n.who, a.now())), s.Phone.Autoconfirm)
}

// sendOTP sends to whoever has the address what lets him in: a confirmation to somebody new or
// unconfirmed, else a magic link or digits. One batch of reads, one of writes.
func (a *Accounts) sendOTP(ctx context.Context, s *Settings, c Client, n *newcomer, create bool, q *quota, autoconfirm bool) error {
	for again := false; ; again = true {
		known, err := a.lookUp(ctx, n, q)
		if err != nil {
			return err
		}
		st := n.standing(known)
		hidden := false
		if st == fresh {
			switch {
			case !create && !s.HideUnknownOnOTP:
				return unprocessable(CodeOTPDisabled, "Signups not allowed for otp")
			case !create:
				hidden = true
			case s.DisableSignup:
				return errSignupDisabled
			default:
				if err := s.ownAudience(n.aud); err != nil {
					return err
				}
			}
		}
		if st == fresh && !hidden {
			if err := a.mayCreate(ctx, s, c, n, n.user(s, n.newID(), autoconfirm, n.data, a.now())); err != nil {
				return err
			}
		}
		l, err := a.writeOTP(ctx, s, c, n, st, known, q, hidden, autoconfirm)
		if overtaken(err) && !again {
			continue
		}
		if err != nil {
			return failure("send otp", q.refused(err))
		}
		return a.send(ctx, s, l)
	}
}

func (a *Accounts) writeOTP(ctx context.Context, s *Settings, c Client, n *newcomer, st standing, known store.User, q *quota, hidden, autoconfirm bool) (letter, error) {
	now := a.now()
	reachable := st == taken && (n.provider == "phone" || known.Email == n.who)
	signsUp := st == pending || st == fresh && !autoconfirm && !hidden
	b := a.db.Batch()
	q.take(b, now)
	var id uuid.UUID
	switch {
	case signsUp:
		id = n.enlist(b, s, st, known, now)
	case st == fresh && !hidden: // confirmed at once; the link below lets him in
		u := n.user(s, n.newID(), true, n.data, now)
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
		id = u.ID
	case reachable:
		sent := store.RecoverySent
		if n.provider == "phone" {
			sent = store.ConfirmationSent
		}
		b.MarkSent(known.ID, sent, now)
		b.VerifyIdentities(uuid.New(), n.who, now)
		id = known.ID
	default:
		id = idle(b, now)
	}
	method := "magiclink"
	if signsUp {
		method = "email/signup"
	}
	flow := s.flow(n.challenge, method, now)
	l, err := a.entry(s, c, n, known, signsUp, flow, now)
	if err != nil {
		return l, err
	}
	l.token.Required = st == pending
	write(b, id, flow, l)
	a.tell(b, s, c, st == fresh && !hidden, id, now)
	note := store.Audit{At: now, Action: store.ActionUserRecoveryRequested, Actor: id, OnlyFor: id, IP: c.IP, Traits: traits("channel", n.channel)}
	if signsUp {
		note.Action, note.Traits = store.ActionUserConfirmationRequested, traits("provider", n.provider, "channel", n.channel)
	}
	b.Audit(note)
	if st == fresh && !signsUp && !hidden {
		b.Audit(store.Audit{At: now, Action: store.ActionUserSignedUp, Actor: id, IP: c.IP, Traits: traits("provider", n.provider)})
	}
	return l, b.Send(ctx)
}

// entry is the message that lets somebody in.
func (a *Accounts) entry(s *Settings, c Client, n *newcomer, known store.User, signsUp bool, flow *store.Flow, now time.Time) (letter, error) {
	switch {
	case signsUp:
		return a.confirmation(s, c, n, n.idAmong(known), flow, now)
	case n.provider == "phone":
		return a.sms(s, c, store.KindSMS, n.who, n.channel, now)
	}
	data := known.UserMetadata
	if known.ID == uuid.Nil { // he has just been made, and confirmed
		data = n.profile(n.newID(), true, n.data)
	}
	return a.mail(s, c, mailed{
		kind: store.KindMagicLink, mail: mail.MagicLink, link: mail.LinkMagicLink, to: n.who, flow: idOf(flow),
		vars: mail.Vars{Email: n.who, Data: data},
	}, now)
}

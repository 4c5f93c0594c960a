package account

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/store"
)

const badChannel = "Invalid channel, supported values are 'sms' or 'whatsapp'. 'whatsapp' is only supported if Twilio or Twilio Verify is used as the provider."

// SignUp asks for an account with a password: one batch of reads, one hash, one batch of writes,
// whatever the address is to us.
func (a *Accounts) SignUp(ctx context.Context, c Client, p SignUp) (SignedUp, error) {
	s := a.live.Load()
	n, err := s.newcomer(c, p)
	if err != nil {
		return SignedUp{}, err
	}
	if n.provider == "email" && s.Email.Autoconfirm || n.provider == "phone" && s.Phone.Autoconfirm {
		g, err := a.signUpConfirmed(ctx, s, c, n, p.Password)
		if err != nil {
			return SignedUp{}, err
		}
		return SignedUp{User: g.User, Grant: &g}, nil
	}
	u, err := a.signUpPending(ctx, s, c, n, p.Password)
	return SignedUp{User: u}, err
}

// newcomer judges a sign-up before anything is looked up.
func (s *Settings) newcomer(c Client, p SignUp) (*newcomer, error) {
	n := &newcomer{aud: s.aud(c), challenge: p.Challenge, channel: p.Channel}
	if s.DisableSignup {
		return nil, errSignupDisabled
	}
	if p.Password == "" {
		return nil, notValid("Signup requires a valid password")
	}
	if err := s.goodPassword(p.Password); err != nil {
		return nil, err
	}
	if p.Email != "" && p.Phone != "" {
		return nil, notValid("Only an email address or phone number should be provided on signup.")
	}
	if p.Phone != "" {
		if err := s.Phone.goodChannel(p.Channel); err != nil {
			return nil, err
		}
		if p.Challenge.given() {
			return nil, notValid("PKCE not supported for phone signups")
		}
	}
	if err := p.Challenge.check(); err != nil {
		return nil, err
	}
	var err error
	if p.Phone != "" {
		if !s.Phone.Enabled {
			return nil, invalid(CodePhoneProviderDisabled, "Phone signups are disabled")
		}
		n.provider = "phone"
		n.who, err = goodPhone(p.Phone)
	} else {
		if !s.Email.Enabled {
			return nil, invalid(CodeEmailProviderDisabled, "Email signups are disabled")
		}
		n.provider = "email"
		n.who, err = goodEmail(p.Email)
	}
	if err != nil {
		return nil, err
	}
	if n.data, err = s.newMetadata(p.Data); err != nil {
		return nil, err
	}
	return n, s.ownAudience(n.aud)
}

var errSignupDisabled = unprocessable(CodeSignupDisabled, "Signups not allowed for this instance")

func goodEmail(text string) (string, error) {
	email, err := address.Email(text)
	if err != nil {
		return "", notValid(err.Error())
	}
	return email, nil
}

func goodPhone(text string) (string, error) {
	phone, err := address.Phone(text)
	if err != nil {
		return "", notValid(err.Error())
	}
	return phone, nil
}

const whatsApp = "whatsapp"

// channelOf is the channel of a message. Others than these two pass where a hook sends, and nobody else knows them.
func channelOf(channel string) string {
	if channel == whatsApp {
		return channel
	}
	return "sms"
}

func (p *PhoneSettings) goodChannel(channel string) error {
	if channel == "" || channel == "sms" || channel == whatsApp && p.WhatsApp || p.AnyChannel {
		return nil
	}
	return notValid(badChannel)
}

// goodPassword judges a new password: its length in bytes, then the policy.
func (s *Settings) goodPassword(text string) error {
	if len(text) > password.MaxBytes {
		return notValid("Password cannot be longer than 72 characters")
	}
	if s.Passwords.Policy == nil {
		return nil
	}
	if weak := s.Passwords.Policy.Check(text); weak != nil {
		r := unprocessable(CodeWeakPassword, weak.Message)
		r.Weak = weak
		return r
	}
	return nil
}

// ownAudience keeps strangers from making users of an audience that nobody has set up: it would stand in their
// tokens.
func (s *Settings) ownAudience(aud string) error {
	if aud != s.Audience {
		return notValid("Users cannot sign up for this audience")
	}
	return nil
}

// canSend refuses what could never be delivered, before anybody is looked up: so the answer says
// nothing about the address.
func (s *Settings) canSendMail(what string) error {
	if !s.Email.Configured {
		return &Refusal{Kind: Failed, Code: CodeUnexpectedFailure, Msg: "Error sending " + what + " email", Err: errors.New("no mail server is configured")}
	}
	return nil
}

func (a *Accounts) canSendSMS(s *Settings, what, number string) error {
	if _, test := s.Phone.testCode(number, a.now()); !test && !s.Phone.Configured {
		r := unprocessable(CodeSMSSendFailed, "Error sending "+what+" OTP to provider: no SMS provider is configured")
		r.Err = errors.New("AUTH_SMS_PROVIDER is not set, or its credentials are missing")
		return r
	}
	return nil
}

func (a *Accounts) signUpPending(ctx context.Context, s *Settings, c Client, n *newcomer, text string) (store.User, error) {
	var q *quota
	var err error
	now := a.now()
	if n.provider == "email" {
		err = s.canSendMail("confirmation")
		q = a.boundClient(s, c, a.mailQuota(s, "confirmation", s.Email.ConfirmationInterval, n.aud, n.who))
	} else {
		err = a.canSendSMS(s, "confirmation", n.who)
		q = a.boundClient(s, c, a.smsQuota(s, n.aud, n.who, now))
	}
	if err != nil {
		return store.User{}, err
	}
	// Twice at most: between the look and the writing somebody else may have signed up.
	for again := false; ; again = true {
		known, err := a.lookUp(ctx, n, q)
		if err != nil {
			return store.User{}, err
		}
		// Asked whoever has the address, or else a refusal would tell that nobody has it.
		if err := a.mayCreate(ctx, s, c, n, n.user(s, n.newID(), false, n.data, a.now())); err != nil {
			return store.User{}, err
		}
		if n.hash == "" {
			if n.hash, err = a.passwords.Hash(ctx, text); err != nil {
				return store.User{}, failure("hash password", err)
			}
		}
		now = a.now()
		flow := s.flow(n.challenge, "email/signup", now)
		l, err := a.confirmation(s, c, n, n.idAmong(known), flow, now)
		if err != nil {
			return store.User{}, err
		}
		st := n.standing(known)
		l.token.Required = st == pending
		b := a.db.Batch()
		q.take(b, now)
		id := n.enlist(b, s, st, known, now)
		write(b, id, flow, l)
		a.tell(b, s, c, st == fresh, id, now)
		b.Audit(n.note(c, st, known, id, now))
		err = b.Send(ctx)
		if overtaken(err) && !again {
			continue
		}
		if err != nil {
			return store.User{}, failure("sign up", q.refused(err))
		}
		if err := a.send(ctx, s, l); err != nil {
			return store.User{}, err
		}
		if st == taken {
			id = a.fauxID(n.aud, n.who)
		}
		u := n.user(s, id, false, n.data, now)
		if st == taken && s.RevealExisting {
			u.Identities = nil
		}
		return u, nil
	}
}

// lookUp reads who has the address and judges the quota.
func (a *Accounts) lookUp(ctx context.Context, n *newcomer, q *quota) (known store.User, err error) {
	b := a.db.Batch()
	n.find(b, &known)
	q.look(b)
	if err := b.Send(ctx); err != nil {
		return known, failure("look up", err)
	}
	return known, q.judge(a.now())
}

// overtaken says that somebody took the address, or that the account of it was deleted, between the look and the
// writing.
func overtaken(err error) bool {
	return errors.Is(err, store.ErrEmailTaken) || errors.Is(err, store.ErrPhoneTaken) || errors.Is(err, store.ErrUserGone)
}

// errExists is the answer to a repeated sign-up under autoconfirm.
var errExists = invalid(CodeUserAlreadyExists, "User already registered")

func (a *Accounts) signUpConfirmed(ctx context.Context, s *Settings, c Client, n *newcomer, text string) (Grant, error) {
	var known store.User
	for again := false; ; again = true {
		b := a.db.Batch()
		n.find(b, &known)
		if err := b.Send(ctx); err != nil {
			return Grant{}, failure("look up", err)
		}
		var err error
		if n.hash == "" {
			if n.hash, err = a.passwords.Hash(ctx, text); err != nil {
				return Grant{}, failure("hash password", err)
			}
		}
		st := n.standing(known)
		if st == pending && (known.PasswordHash != "" || external(known) || !known.EmailConfirmedAt.IsZero() || !known.PhoneConfirmedAt.IsZero()) {
			st = taken // an administrator's, or somebody's by his other address
		}
		g, err := a.enter(ctx, s, c, n, st, known)
		if overtaken(err) && !again {
			continue
		}
		return g, failure("sign up", err)
	}
}

// external says that a provider has brought a user here, or that one was linked.
func external(u store.User) bool {
	var app struct{ Providers []string }
	_ = json.Unmarshal(u.AppMetadata, &app) // what is not of that form is not ours
	return slices.ContainsFunc(app.Providers, func(p string) bool { return p != "email" && p != "phone" })
}

// enter makes a confirmed account and its first session, in one batch.
func (a *Accounts) enter(ctx context.Context, s *Settings, c Client, n *newcomer, st standing, known store.User) (Grant, error) {
	now := a.now()
	b := a.db.Batch()
	if st == taken {
		b.Audit(n.note(c, st, known, known.ID, now))
		if err := b.Send(ctx); err != nil {
			return Grant{}, err
		}
		return Grant{}, errExists
	}
	id := known.ID
	if st == fresh {
		id = n.newID()
	}
	u := n.user(s, id, true, n.data, now)
	u.PasswordHash, u.LastSignInAt = n.hash, now
	if st == fresh {
		if err := a.mayCreate(ctx, s, c, n, u); err != nil {
			return Grant{}, err
		}
	}
	open := a.opening(s, c, id, methodPassword, now)
	made, err := a.customize(ctx, s, c, u, a.opened(&open), "", now)
	if err != nil {
		return Grant{}, err
	}
	if st == fresh {
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
	} else {
		b.UpdateUser(confirmPatch(u, now))
		b.PutIdentity(u.Identities[0])
	}
	b.InsertSession(open.NewSession)
	if st == pending {
		b.DeleteTokens(id)
	}
	a.tell(b, s, c, st == fresh, id, now)
	b.Audit(store.Audit{At: now, Action: store.ActionUserSignedUp, Actor: id, Session: open.ID, IP: c.IP, Traits: traits("provider", n.provider, "channel", n.channel)})
	b.Audit(store.Audit{At: now, Action: store.ActionLogin, Actor: id, Session: open.ID, IP: c.IP, Traits: traits("provider", n.provider)})
	if st == pending {
		b.User(&u, id)
	}
	if err := b.Send(ctx); err != nil {
		return Grant{}, err
	}
	if s.Hooks.AfterCreate {
		a.wake()
	}
	return a.grant(s, u, a.opened(&open), &open.first, now, made)
}

// confirmPatch makes an unconfirmed account what u is.
func confirmPatch(u store.User, now time.Time) store.UserPatch {
	p := store.UserPatch{ID: u.ID, Now: now, PasswordHash: &u.PasswordHash, LastSignInAt: &now, ProvidersFromIdentities: true}
	if !u.EmailConfirmedAt.IsZero() {
		p.EmailConfirmedAt = &now
	}
	if !u.PhoneConfirmedAt.IsZero() {
		p.PhoneConfirmedAt = &now
	}
	p.UserMetadata.Set = u.UserMetadata
	return p
}

// note is the audit row of a sign-up that made no session.
func (n *newcomer) note(c Client, st standing, known store.User, id uuid.UUID, now time.Time) store.Audit {
	a := store.Audit{At: now, Action: store.ActionUserConfirmationRequested, Actor: id, IP: c.IP, Traits: traits("provider", n.provider, "channel", n.channel)}
	if st == taken {
		a.Action, a.Actor = store.ActionUserRepeatedSignup, known.ID
	}
	return a
}

// SignUpAnonymous opens a session for a new user without any address.
func (a *Accounts) SignUpAnonymous(ctx context.Context, c Client, data json.RawMessage) (Grant, error) {
	s := a.live.Load()
	if !s.Anonymous {
		return Grant{}, unprocessable(CodeAnonymousDisabled, "Anonymous sign-ins are disabled")
	}
	if s.DisableSignup {
		return Grant{}, errSignupDisabled
	}
	data, err := s.newMetadata(data)
	if err != nil {
		return Grant{}, err
	}
	if err := s.ownAudience(s.aud(c)); err != nil {
		return Grant{}, err
	}
	now := a.now()
	u := store.User{
		ID: uuid.New(), Aud: s.aud(c), Role: s.Role, IsAnonymous: true, AppMetadata: json.RawMessage("{}"), UserMetadata: json.RawMessage("{}"),
		CreatedAt: now, UpdatedAt: now, LastSignInAt: now,
	}
	if len(data) > 0 {
		u.UserMetadata = data
	}
	if err := a.mayCreate(ctx, s, c, nil, u); err != nil {
		return Grant{}, err
	}
	open := a.opening(s, c, u.ID, methodAnonymous, now)
	made, err := a.customize(ctx, s, c, u, a.opened(&open), "", now)
	if err != nil {
		return Grant{}, err
	}
	b := a.db.Batch()
	b.InsertUser(u)
	b.InsertSession(open.NewSession)
	a.tell(b, s, c, true, u.ID, now)
	b.Audit(store.Audit{At: now, Action: store.ActionUserSignedUp, Actor: u.ID, Session: open.ID, IP: c.IP, Traits: traits("provider", "anonymous")})
	if err := b.Send(ctx); err != nil {
		return Grant{}, failure("sign up anonymously", err)
	}
	if s.Hooks.AfterCreate {
		a.wake()
	}
	return a.grant(s, u, a.opened(&open), &open.first, now, made)
}

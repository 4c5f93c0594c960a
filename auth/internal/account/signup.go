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
func (a *Accounts) SignUp(ctx context.Context, req RequestInfo, p SignUp) (SignedUp, error) {
	return signUp(ctx, a.begin(req), p)
}

func signUp(ctx context.Context, f *flow, p SignUp) (SignedUp, error) {
	n, err := newNewcomer(f, p)
	if err != nil {
		return SignedUp{}, err
	}
	if n.provider == "email" && f.settings.Email.Autoconfirm || n.provider == "phone" && f.settings.Phone.Autoconfirm {
		g, err := signUpConfirmed(ctx, f, n, p.Password)
		if err != nil {
			return SignedUp{}, err
		}
		return SignedUp{User: g.User, Grant: &g}, nil
	}
	u, err := signUpPending(ctx, f, n, p.Password)
	return SignedUp{User: u}, err
}

// newNewcomer judges a sign-up before anything is looked up.
func newNewcomer(f *flow, p SignUp) (*newcomer, error) {
	s := f.settings
	n := &newcomer{aud: f.aud(), challenge: p.Challenge, channel: p.Channel}
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

func canSendSMS(f *flow, what, number string) error {
	if _, test := f.settings.Phone.testCode(number, f.now); !test && !f.settings.Phone.Configured {
		r := unprocessable(CodeSMSSendFailed, "Error sending "+what+" OTP to provider: no SMS provider is configured")
		r.Err = errors.New("AUTH_SMS_PROVIDER is not set, or its credentials are missing")
		return r
	}
	return nil
}

func signUpPending(ctx context.Context, f *flow, n *newcomer, text string) (store.User, error) {
	var q *quota
	var err error
	if n.provider == "email" {
		err = f.settings.canSendMail("confirmation")
		q = boundClient(f, mailQuota(f, "confirmation", f.settings.Email.ConfirmationInterval, n.aud, n.who))
	} else {
		err = canSendSMS(f, "confirmation", n.who)
		q = boundClient(f, smsQuota(f, n.aud, n.who))
	}
	if err != nil {
		return store.User{}, err
	}
	// Twice at most: between the look and the writing somebody else may have signed up.
	for again := false; ; again = true {
		known, err := lookUp(ctx, f, n, q)
		if err != nil {
			return store.User{}, err
		}
		// Asked whoever has the address, or else a refusal would tell that nobody has it.
		if err := mayCreate(ctx, f, n, n.user(f, n.newID(), false, n.data)); err != nil {
			return store.User{}, err
		}
		if n.hash == "" {
			if n.hash, err = f.core.passwords.Hash(ctx, text); err != nil {
				return store.User{}, failure("hash password", err)
			}
		}
		f.tick()
		flow := f.settings.flow(n.challenge, "email/signup", f.now)
		msg, err := newConfirmation(f, n, n.idAmong(known), flow)
		if err != nil {
			return store.User{}, err
		}
		st := n.standing(known)
		msg.token.Required = st == pending
		b := f.batch()
		q.take(b, f.now)
		id := n.enlist(f, b, st, known)
		insertOutgoing(b, id, flow, msg)
		enqueueCreatedHook(f, b, st == fresh, id)
		b.Audit(n.note(f, st, known, id))
		err = b.Send(ctx)
		if overtaken(err) && !again {
			continue
		}
		if err != nil {
			return store.User{}, failure("sign up", q.refused(err))
		}
		if err := f.send(ctx, msg); err != nil {
			return store.User{}, err
		}
		if st == taken {
			id = decoyID(f, n.aud, n.who)
		}
		u := n.user(f, id, false, n.data)
		if st == taken && f.settings.RevealExisting {
			u.Identities = nil
		}
		return u, nil
	}
}

// lookUp reads who has the address and judges the quota.
func lookUp(ctx context.Context, f *flow, n *newcomer, q *quota) (known store.User, err error) {
	b := f.batch()
	n.find(b, &known)
	q.look(b)
	if err := b.Send(ctx); err != nil {
		return known, failure("look up", err)
	}
	f.tick()
	return known, q.judge(f.now)
}

// overtaken says that somebody took the address, or that the account of it was deleted, between the look and the
// writing.
func overtaken(err error) bool {
	return errors.Is(err, store.ErrEmailTaken) || errors.Is(err, store.ErrPhoneTaken) || errors.Is(err, store.ErrUserGone)
}

// errExists is the answer to a repeated sign-up under autoconfirm.
var errExists = invalid(CodeUserAlreadyExists, "User already registered")

func signUpConfirmed(ctx context.Context, f *flow, n *newcomer, text string) (Grant, error) {
	var known store.User
	for again := false; ; again = true {
		b := f.batch()
		n.find(b, &known)
		if err := b.Send(ctx); err != nil {
			return Grant{}, failure("look up", err)
		}
		var err error
		if n.hash == "" {
			if n.hash, err = f.core.passwords.Hash(ctx, text); err != nil {
				return Grant{}, failure("hash password", err)
			}
		}
		st := n.standing(known)
		if st == pending && (known.PasswordHash != "" || external(known) || !known.EmailConfirmedAt.IsZero() || !known.PhoneConfirmedAt.IsZero()) {
			st = taken // an administrator's, or somebody's by his other address
		}
		g, err := createConfirmed(ctx, f, n, st, known)
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
func createConfirmed(ctx context.Context, f *flow, n *newcomer, st standing, known store.User) (Grant, error) {
	f.tick()
	b := f.batch()
	if st == taken {
		b.Audit(n.note(f, st, known, known.ID))
		if err := b.Send(ctx); err != nil {
			return Grant{}, err
		}
		return Grant{}, errExists
	}
	id := known.ID
	if st == fresh {
		id = n.newID()
	}
	u := n.user(f, id, true, n.data)
	u.PasswordHash, u.LastSignInAt = n.hash, f.now
	if st == fresh {
		if err := mayCreate(ctx, f, n, u); err != nil {
			return Grant{}, err
		}
	}
	draft := newSession(f, id, methodPassword)
	made, err := customClaimsOf(ctx, f, u, openedSession(f, &draft), "")
	if err != nil {
		return Grant{}, err
	}
	if st == fresh {
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
	} else {
		b.UpdateUser(confirmPatch(u, f.now))
		b.PutIdentity(u.Identities[0])
	}
	b.InsertSession(draft.row)
	if st == pending {
		b.DeleteTokens(id)
	}
	enqueueCreatedHook(f, b, st == fresh, id)
	b.Audit(f.audit(store.ActionUserSignedUp, id, draft.row.ID, "provider", n.provider, "channel", n.channel))
	b.Audit(f.audit(store.ActionLogin, id, draft.row.ID, "provider", n.provider))
	if st == pending {
		b.User(&u, id)
	}
	if err := b.Send(ctx); err != nil {
		return Grant{}, err
	}
	if f.settings.Hooks.AfterCreate {
		f.core.wake()
	}
	return signGrant(f, u, openedSession(f, &draft), &draft.first, made)
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
func (n *newcomer) note(f *flow, st standing, known store.User, id uuid.UUID) store.Audit {
	a := f.audit(store.ActionUserConfirmationRequested, id, uuid.Nil, "provider", n.provider, "channel", n.channel)
	if st == taken {
		a.Action, a.Actor = store.ActionUserRepeatedSignup, known.ID
	}
	return a
}

// SignUpAnonymous opens a session for a new user without any address.
func (a *Accounts) SignUpAnonymous(ctx context.Context, req RequestInfo, data json.RawMessage) (Grant, error) {
	return signUpAnonymous(ctx, a.begin(req), data)
}

func signUpAnonymous(ctx context.Context, f *flow, data json.RawMessage) (Grant, error) {
	if !f.settings.Anonymous {
		return Grant{}, unprocessable(CodeAnonymousDisabled, "Anonymous sign-ins are disabled")
	}
	if f.settings.DisableSignup {
		return Grant{}, errSignupDisabled
	}
	data, err := f.settings.newMetadata(data)
	if err != nil {
		return Grant{}, err
	}
	if err := f.settings.ownAudience(f.aud()); err != nil {
		return Grant{}, err
	}
	u := store.User{
		ID: uuid.New(), Aud: f.aud(), Role: f.settings.Role, IsAnonymous: true, AppMetadata: json.RawMessage("{}"), UserMetadata: json.RawMessage("{}"),
		CreatedAt: f.now, UpdatedAt: f.now, LastSignInAt: f.now,
	}
	if len(data) > 0 {
		u.UserMetadata = data
	}
	if err := mayCreate(ctx, f, nil, u); err != nil {
		return Grant{}, err
	}
	draft := newSession(f, u.ID, methodAnonymous)
	made, err := customClaimsOf(ctx, f, u, openedSession(f, &draft), "")
	if err != nil {
		return Grant{}, err
	}
	b := f.batch()
	b.InsertUser(u)
	b.InsertSession(draft.row)
	enqueueCreatedHook(f, b, true, u.ID)
	b.Audit(f.audit(store.ActionUserSignedUp, u.ID, draft.row.ID, "provider", "anonymous"))
	if err := b.Send(ctx); err != nil {
		return Grant{}, failure("sign up anonymously", err)
	}
	if f.settings.Hooks.AfterCreate {
		f.core.wake()
	}
	return signGrant(f, u, openedSession(f, &draft), &draft.first, made)
}

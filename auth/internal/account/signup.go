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

const badChannel = "Invalid channel, supported values are 'sms' or 'whatsapp'. 'whatsapp' is only supported if " +
	"Twilio or Twilio Verify is used as the provider."

// SignUp asks for an account with a password: one batch of reads, one hash, one batch of writes, whatever the state of
// the address.
func (a *Accounts) SignUp(ctx context.Context, req RequestInfo, p SignUp) (SignedUp, error) {
	f := a.core.Begin(req)
	cand, err := newSignupCandidate(f, p)
	if err != nil {
		return SignedUp{}, err
	}
	if cand.provider == "email" && f.settings.Email.Autoconfirm || cand.provider == "phone" &&
		f.settings.Phone.Autoconfirm {
		g, err := signUpConfirmed(ctx, f, cand, p.Password)
		if err != nil {
			return SignedUp{}, err
		}
		return SignedUp{User: g.User, Grant: &g}, nil
	}
	u, err := signUpPending(ctx, f, cand, p.Password)
	return SignedUp{User: u}, err
}

// newSignupCandidate checks a sign-up before anything is looked up.
func newSignupCandidate(f *flow, p SignUp) (*signupCandidate, error) {
	s := f.settings
	cand := &signupCandidate{aud: f.aud(), challenge: p.Challenge, channel: p.Channel}
	if s.DisableSignup {
		return nil, errSignupDisabled
	}
	if p.Password == "" {
		return nil, notValid("Signup requires a valid password")
	}
	if err := s.checkPassword(p.Password); err != nil {
		return nil, err
	}
	if p.Email != "" && p.Phone != "" {
		return nil, notValid("Only an email address or phone number should be provided on signup.")
	}
	if p.Phone != "" {
		if err := s.Phone.checkChannel(p.Channel); err != nil {
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
		cand.provider = "phone"
		cand.address, err = parsePhone(p.Phone)
	} else {
		if !s.Email.Enabled {
			return nil, invalid(CodeEmailProviderDisabled, "Email signups are disabled")
		}
		cand.provider = "email"
		cand.address, err = parseEmail(p.Email)
	}
	if err != nil {
		return nil, err
	}
	if cand.data, err = s.newMetadata(p.Data); err != nil {
		return nil, err
	}
	return cand, s.checkSignUpAudience(cand.aud)
}

var errSignupDisabled = unprocessable(CodeSignupDisabled, "Signups not allowed for this instance")

func parseEmail(text string) (string, error) {
	email, err := address.Email(text)
	if err != nil {
		return "", notValid(err.Error())
	}
	return email, nil
}

func parsePhone(text string) (string, error) {
	phone, err := address.Phone(text)
	if err != nil {
		return "", notValid(err.Error())
	}
	return phone, nil
}

const whatsApp = "whatsapp"

// channelOf returns the channel of a message. Channels other than these two are accepted only where a hook sends.
func channelOf(channel string) string {
	if channel == whatsApp {
		return channel
	}
	return "sms"
}

func (p *PhoneSettings) checkChannel(channel string) error {
	if channel == "" || channel == "sms" || channel == whatsApp && p.WhatsApp || p.AnyChannel {
		return nil
	}
	return notValid(badChannel)
}

// checkPassword checks a new password: its length in bytes, then the policy.
func (s *Settings) checkPassword(text string) error {
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

// checkSignUpAudience keeps clients from creating users of an audience that is not configured: it would be in their
// tokens.
func (s *Settings) checkSignUpAudience(aud string) error {
	if aud != s.Audience {
		return notValid("Users cannot sign up for this audience")
	}
	return nil
}

// checkMailSendable refuses what could not be delivered, before any user is looked up: so the answer reveals nothing
// about the address.
func (s *Settings) checkMailSendable(what string) error {
	if !s.Email.Configured {
		return &Refusal{Kind: Failed, Code: CodeUnexpectedFailure, Msg: "Error sending " + what + " email",
			Err: errors.New("no mail server is configured")}
	}
	return nil
}

func checkSMSSendable(f *flow, what, number string) error {
	if _, test := f.settings.Phone.testCode(number, f.now); !test && !f.settings.Phone.Configured {
		r := unprocessable(CodeSMSSendFailed, "Error sending "+what+" OTP to provider: no SMS provider is configured")
		r.Err = errors.New("AUTH_SMS_PROVIDER is not set, or its credentials are missing")
		return r
	}
	return nil
}

// confirmationQuota returns the quota of a confirmation, or the refusal where none could be delivered.
func confirmationQuota(f *flow, cand *signupCandidate) (*quota, error) {
	if cand.provider == "email" {
		q := mailQuota(f, "confirmation", f.settings.Email.ConfirmationInterval, cand.aud, cand.address)
		return boundClient(f, q), f.settings.checkMailSendable("confirmation")
	}
	return boundClient(f, smsQuota(f, cand.aud, cand.address)), checkSMSSendable(f, "confirmation", cand.address)
}

func signUpPending(ctx context.Context, f *flow, cand *signupCandidate, text string) (store.User, error) {
	q, err := confirmationQuota(f, cand)
	if err != nil {
		return store.User{}, err
	}
	// Two tries at most: between the look-up and the writes another request may have taken the address.
	for again := false; ; again = true {
		known, err := lookUp(ctx, f, cand, q)
		if err != nil {
			return store.User{}, contest(ctx, f, cand, known, text, err)
		}
		// Called whatever the state of the address: a refusal must not reveal that it is free.
		if err := cand.checkCreation(ctx, f, cand.user(f, cand.newID(), false, cand.data)); err != nil {
			return store.User{}, err
		}
		if cand.hash == "" {
			if cand.hash, err = f.core.passwords.Hash(ctx, text); err != nil {
				return store.User{}, failure("hash password", err)
			}
		}
		f.tick()
		pkce := f.settings.pkceFlow(cand.challenge, "email/signup", f.now)
		msg, err := cand.confirmation(f, cand.accountID(known), pkce)
		if err != nil {
			return store.User{}, err
		}
		state := cand.state(known)
		msg.token.Required = state == addressPending
		b := f.batch()
		q.take(b, f.now)
		id := cand.addPending(f, b, state, known)
		insertOutgoing(b, id, pkce, msg)
		enqueueCreatedHook(f, b, state == addressFree, id)
		b.Audit(cand.auditRow(f, state, known, id))
		err = f.send(ctx, b)
		if isOvertaken(err) && !again {
			continue
		}
		if refused := q.refusalOf(err); refused != err { // another sign-up came between, which may be a second click
			known, _ := lookUp(ctx, f, cand, q)
			return store.User{}, contest(ctx, f, cand, known, text, refused)
		}
		if err != nil {
			return store.User{}, failure("sign up", err)
		}
		if state == addressTaken {
			id = decoyID(f, cand.aud, cand.address)
		}
		u := cand.user(f, id, false, cand.data)
		if state == addressTaken && f.settings.RevealExisting {
			u.Identities = nil
		}
		return u, nil
	}
}

// contest compares the password of a sign-up that a limit refuses with that of the newest pending one. If they differ,
// the pending ones are contested: its sender may be the owner of the address, for whom POST /resend must not confirm
// what another person chose. One hash and one transaction that writes, whatever the state of the address.
func contest(ctx context.Context, f *flow, cand *signupCandidate, known store.User, text string,
	refused error) error {
	if r, ok := errors.AsType[*Refusal](refused); !ok || r.Kind != Limited {
		return refused
	}
	same, _, err := f.core.passwords.Check(ctx, known.PendingHash, text)
	if err != nil {
		return failure("check password", err)
	}
	user := known.ID
	if same {
		user = uuid.New() // that no user has
	}
	b := f.batch()
	note := store.NewInterval(f.limitKey("contest", cand.aud, cand.address), time.Second)
	b.Take(note, 0, f.now) // a row is written in any case
	b.ContestSignUps(user, cand.address)
	if err := b.Send(ctx); err != nil {
		return failure("sign up", err)
	}
	return refused
}

// lookUp reads which account has the address and checks the quota.
func lookUp(ctx context.Context, f *flow, cand *signupCandidate, q *quota) (known store.User, err error) {
	b := f.batch()
	q.look(b)
	cand.find(b, &known) // afterwards, so that it sees the sign-up that began a pause
	if err := b.Send(ctx); err != nil {
		return known, failure("look up", err)
	}
	f.tick()
	return known, q.check(f.now)
}

// isOvertaken reports whether the address was taken, or its account deleted, between the look-up and the writes.
func isOvertaken(err error) bool {
	return errors.Is(err, store.ErrEmailTaken) || errors.Is(err, store.ErrPhoneTaken) ||
		errors.Is(err, store.ErrUserGone)
}

// errExists is the answer to a repeated sign-up under autoconfirm.
var errExists = invalid(CodeUserAlreadyExists, "User already registered")

func signUpConfirmed(ctx context.Context, f *flow, cand *signupCandidate, text string) (Grant, error) {
	var known store.User
	for again := false; ; again = true {
		b := f.batch()
		cand.find(b, &known)
		if err := b.Send(ctx); err != nil {
			return Grant{}, failure("look up", err)
		}
		var err error
		if cand.hash == "" {
			if cand.hash, err = f.core.passwords.Hash(ctx, text); err != nil {
				return Grant{}, failure("hash password", err)
			}
		}
		state := cand.state(known)
		if state == addressPending && (known.PasswordHash != "" || known.IsAnonymous || hasProvider(known) ||
			!known.EmailConfirmedAt.IsZero() || !known.PhoneConfirmedAt.IsZero()) {
			state = addressTaken // an administrator gave the address, or its other address is confirmed
		}
		g, err := signUpAtOnce(ctx, f, cand, state, known)
		if isOvertaken(err) && !again {
			continue
		}
		return g, failure("sign up", err)
	}
}

// hasProvider reports whether the user came by a provider, or has linked one.
func hasProvider(u store.User) bool {
	var app struct{ Providers []string }
	_ = json.Unmarshal(u.AppMetadata, &app) // other forms are not written by this service
	return slices.ContainsFunc(app.Providers, func(p string) bool { return p != "email" && p != "phone" })
}

// signUpAtOnce creates a confirmed account and its first session, in one batch.
func signUpAtOnce(ctx context.Context, f *flow, cand *signupCandidate, state addressState,
	known store.User) (Grant, error) {
	f.tick()
	b := f.batch()
	if state == addressTaken {
		b.Audit(cand.auditRow(f, state, known, known.ID))
		if err := b.Send(ctx); err != nil {
			return Grant{}, err
		}
		return Grant{}, errExists
	}
	id := known.ID
	if state == addressFree {
		id = cand.newID()
	}
	u := cand.user(f, id, true, cand.data)
	u.PasswordHash, u.LastSignInAt = cand.hash, f.now
	if state == addressFree {
		if err := cand.checkCreation(ctx, f, u); err != nil {
			return Grant{}, err
		}
	}
	draft := newSession(f, id, methodPassword)
	made, err := customClaimsOf(ctx, f, u, openedSession(f, &draft), "")
	if err != nil {
		return Grant{}, err
	}
	if state == addressFree {
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
	} else {
		b.UpdateUser(confirmPatch(u, f.now))
		b.PutIdentity(u.Identities[0])
	}
	b.InsertSession(draft.row)
	if state == addressPending {
		b.DeleteTokens(id)
	}
	enqueueCreatedHook(f, b, state == addressFree, id)
	b.Audit(f.audit(store.ActionUserSignedUp, id, draft.row.ID, "provider", cand.provider, "channel", cand.channel))
	b.Audit(f.audit(store.ActionLogin, id, draft.row.ID, "provider", cand.provider))
	if state == addressPending {
		b.User(&u, id)
	}
	if err := f.send(ctx, b); err != nil {
		return Grant{}, err
	}
	return signGrant(f, u, openedSession(f, &draft), &draft.first, made)
}

// confirmPatch returns the patch that makes an unconfirmed account what u is.
func confirmPatch(u store.User, now time.Time) store.UserPatch {
	p := store.UserPatch{ID: u.ID, Now: now, PasswordHash: &u.PasswordHash, LastSignInAt: &now,
		ProvidersFromIdentities: true}
	if !u.EmailConfirmedAt.IsZero() {
		p.EmailConfirmedAt, p.EmailUnproven = &now, new(true)
	}
	if !u.PhoneConfirmedAt.IsZero() {
		p.PhoneConfirmedAt, p.PhoneUnproven = &now, new(true)
	}
	p.UserMetadata.Set = u.UserMetadata
	return p
}

// auditRow returns the audit row of a sign-up that made no session.
func (cand *signupCandidate) auditRow(f *flow, state addressState, known store.User, id uuid.UUID) store.Audit {
	a := f.audit(store.ActionUserConfirmationRequested, id, uuid.Nil, "provider", cand.provider, "channel",
		cand.channel)
	if state == addressTaken {
		a.Action, a.Actor = store.ActionUserRepeatedSignup, known.ID
	}
	return a
}

// SignUpAnonymous opens a session for a new user without any address.
func (a *Accounts) SignUpAnonymous(ctx context.Context, req RequestInfo, data json.RawMessage) (Grant, error) {
	f := a.core.Begin(req)
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
	if err := f.settings.checkSignUpAudience(f.aud()); err != nil {
		return Grant{}, err
	}
	u := store.User{
		ID: uuid.New(), Aud: f.aud(), Role: f.settings.Role, IsAnonymous: true, AppMetadata: json.RawMessage("{}"),
		UserMetadata: json.RawMessage("{}"), CreatedAt: f.now, UpdatedAt: f.now, LastSignInAt: f.now,
	}
	if len(data) > 0 {
		u.UserMetadata = data
	}
	if err := checkCreation(ctx, f, u); err != nil {
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
	if err := f.send(ctx, b); err != nil {
		return Grant{}, failure("sign up anonymously", err)
	}
	return signGrant(f, u, openedSession(f, &draft), &draft.first, made)
}

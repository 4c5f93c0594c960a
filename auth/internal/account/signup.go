package account

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// SignUp requests an account with a password. It takes one batch of reads, one password hash and one batch of writes,
// whatever the state of the address.
func (a *Accounts) SignUp(ctx context.Context, req flow.RequestInfo, p flow.SignUp) (flow.SignedUp, error) {
	f := a.core.Begin(req)
	cand, err := newSignupCandidate(f, p)
	if err != nil {
		return flow.SignedUp{}, err
	}
	if cand.provider == "email" && f.Settings.Email.Autoconfirm || cand.provider == "phone" &&
		f.Settings.Phone.Autoconfirm {
		g, err := signUpConfirmed(ctx, f, cand, p.Password)
		if err != nil {
			return flow.SignedUp{}, err
		}
		return flow.SignedUp{User: g.User, Grant: &g}, nil
	}
	u, err := signUpPending(ctx, f, cand, p.Password)
	return flow.SignedUp{User: u}, err
}

// newSignupCandidate checks a sign-up as far as that is possible without the database.
func newSignupCandidate(f *flow.Flow, p flow.SignUp) (*signupCandidate, error) {
	s := f.Settings
	cand := &signupCandidate{aud: f.Aud(), challenge: p.Challenge}
	if s.DisableSignup {
		return nil, flow.ErrSignupDisabled
	}
	if p.Password == "" {
		return nil, refusal.NotValid("Signup requires a valid password")
	}
	if err := s.CheckPassword(p.Password); err != nil {
		return nil, err
	}
	if p.Email != "" && p.Phone != "" {
		return nil, refusal.NotValid("Only an email address or phone number should be provided on signup.")
	}
	if p.Phone != "" {
		if err := s.Phone.CheckChannel(p.Channel); err != nil {
			return nil, err
		}
		if p.Challenge.Given() {
			return nil, refusal.NotValid("PKCE not supported for phone signups")
		}
	}
	if err := p.Challenge.Check(); err != nil {
		return nil, err
	}
	var err error
	if p.Phone != "" {
		if !s.Phone.Enabled {
			return nil, refusal.Invalid(refusal.CodePhoneProviderDisabled, "Phone signups are disabled")
		}
		cand.provider, cand.channel = "phone", flow.ChannelOf(p.Channel)
		cand.address, err = flow.ParsePhone(p.Phone)
	} else {
		if !s.Email.Enabled {
			return nil, refusal.Invalid(refusal.CodeEmailProviderDisabled, "Email signups are disabled")
		}
		cand.provider = "email"
		cand.address, err = flow.ParseEmail(p.Email)
	}
	if err != nil {
		return nil, err
	}
	if cand.data, err = s.NewMetadata(p.Data); err != nil {
		return nil, err
	}
	return cand, checkSignUpAudience(s, cand.aud)
}

// checkSignUpAudience refuses an audience other than the configured one: the audience of a new user would appear in the
// user's access tokens.
func checkSignUpAudience(s *flow.Settings, aud string) error {
	if aud != s.Audience {
		return refusal.NotValid("Users cannot sign up for this audience")
	}
	return nil
}

// confirmationQuota returns the quota of a sign-up's confirmation, or a refusal if no confirmation could be delivered.
func confirmationQuota(f *flow.Flow, cand *signupCandidate) (*flow.Quota, error) {
	if cand.provider == "email" {
		q := flow.MailQuota(f, "confirmation", f.Settings.Email.ConfirmationInterval, cand.aud, cand.address)
		return flow.BoundClient(f, q), f.Settings.CheckMailSendable("confirmation")
	}
	return flow.BoundClient(f, flow.SMSQuota(f, cand.aud, cand.address)),
		flow.CheckSMSSendable(f, "confirmation", cand.address)
}

func signUpPending(ctx context.Context, f *flow.Flow, cand *signupCandidate, text string) (store.User, error) {
	q, err := confirmationQuota(f, cand)
	if err != nil {
		return store.User{}, err
	}
	// Try at most twice: between the look-up and the writes another request may have taken the address.
	for again := false; ; again = true {
		known, err := lookUp(ctx, f, cand, q)
		if err != nil {
			return store.User{}, cand.contest(ctx, f, known, text, err)
		}
		// The hook is called whatever the state of the address, so that its refusal does not reveal that the address is
		// free.
		if err := cand.CheckCreation(ctx, f, cand.user(f, cand.NewID(), false, cand.data)); err != nil {
			return store.User{}, err
		}
		if cand.hash == "" {
			if cand.hash, err = f.Core.Passwords.Hash(ctx, text); err != nil {
				return store.User{}, refusal.Failure("hash password", err)
			}
		}
		f.Tick()
		pkce := f.Settings.PkceFlow(cand.challenge, "email/signup", f.Now)
		msg, err := cand.confirmation(f, cand.accountID(known), pkce)
		if err != nil {
			return store.User{}, err
		}
		state := cand.state(known)
		msg.Token.Required = state == addressPending
		b := f.Batch()
		q.Take(b, f.Now)
		id := cand.addPending(f, b, state, known)
		flow.InsertOutgoing(b, id, pkce, msg)
		flow.EnqueueCreatedHook(f, b, state == addressFree, id)
		b.Audit(cand.auditRow(f, state, known, id))
		err = f.Send(ctx, b)
		if isOvertaken(err) && !again {
			continue
		}
		// Since the look-up another sign-up, perhaps a second click, has used up the limit.
		if refused := q.RefusalOf(err); refused != err {
			known, _ := lookUp(ctx, f, cand, q)
			return store.User{}, cand.contest(ctx, f, known, text, refused)
		}
		if err != nil {
			return store.User{}, refusal.Failure("sign up", err)
		}
		if state == addressTaken {
			id = flow.DecoyID(f, cand.aud, cand.address)
		}
		u := cand.user(f, id, false, cand.data)
		if state == addressTaken && f.Settings.RevealExisting {
			u.Identities = nil
		}
		return u, nil
	}
}

// contest compares the password of a sign-up that a limit refuses with the password of the newest pending sign-up of
// the address. If they differ, the pending sign-ups become contested: the sender of the refused sign-up may be the
// owner of the address, and then POST /resend must not confirm a password that another person chose. It always takes
// one hash and one transaction that writes, so that the time does not reveal the state of the address.
func (cand *signupCandidate) contest(ctx context.Context, f *flow.Flow, known store.User, text string,
	refused error) error {
	if r, ok := errors.AsType[*refusal.Refusal](refused); !ok || r.Kind != refusal.KindLimited {
		return refused
	}
	same, _, err := f.Core.Passwords.Check(ctx, known.PendingHash, text)
	if err != nil {
		return refusal.Failure("check password", err)
	}
	user := known.ID
	if same {
		user = uuid.New() // no user has this ID
	}
	b := f.Batch()
	note := store.NewInterval(f.LimitKey("contest", cand.aud, cand.address), time.Second)
	b.Take(note, 0, f.Now) // writes a row whether or not sign-ups are contested
	b.ContestSignUps(user, cand.address)
	if err := b.Send(ctx); err != nil {
		return refusal.Failure("sign up", err)
	}
	return refused
}

// lookUp reads which account has the address, and returns a refusal if a limit of the quota q is used up.
func lookUp(ctx context.Context, f *flow.Flow, cand *signupCandidate, q *flow.Quota) (known store.User, err error) {
	// The account is read after the pauses, so that if a sign-up has begun a pause, its account is seen too.
	err = q.LookUp(ctx, f, func(b *flow.Batch) { cand.find(b, &known) })
	return known, err
}

// isOvertaken reports whether another request took the address, or deleted its account, between the look-up and the
// writes.
func isOvertaken(err error) bool {
	return errors.Is(err, store.ErrEmailTaken) || errors.Is(err, store.ErrPhoneTaken) ||
		errors.Is(err, store.ErrUserGone)
}

// errExists is the refusal of a sign-up for an existing account if addresses count as confirmed at once (autoconfirm).
var errExists = refusal.Invalid(refusal.CodeUserAlreadyExists, "User already registered")

func signUpConfirmed(ctx context.Context, f *flow.Flow, cand *signupCandidate, text string) (flow.Grant, error) {
	var known store.User
	for again := false; ; again = true {
		if err := f.Run(ctx, func(b *flow.Batch) { cand.find(b, &known) }); err != nil {
			return flow.Grant{}, refusal.Failure("look up", err)
		}
		var err error
		if cand.hash == "" {
			if cand.hash, err = f.Core.Passwords.Hash(ctx, text); err != nil {
				return flow.Grant{}, refusal.Failure("hash password", err)
			}
		}
		state := cand.state(known)
		if state == addressPending && (known.PasswordHash != "" || known.IsAnonymous || hasProvider(known) ||
			!known.EmailConfirmedAt.IsZero() || !known.PhoneConfirmedAt.IsZero() || known.BannedUntil.After(f.Now)) {
			state = addressTaken // the account has another way to sign in already, or is banned
		}
		g, err := signUpAtOnce(ctx, f, cand, state, known)
		if isOvertaken(err) && !again {
			continue
		}
		return g, refusal.Failure("sign up", err)
	}
}

// hasProvider reports whether the user signed up with an external provider, or has linked one.
func hasProvider(u store.User) bool {
	var app struct{ Providers []string }
	_ = json.Unmarshal(u.AppMetadata, &app) // this daemon always writes a list of strings
	return slices.ContainsFunc(app.Providers, func(p string) bool { return p != "email" && p != "phone" })
}

// signUpAtOnce creates a confirmed account with its first session, or confirms a pending one, in one batch.
func signUpAtOnce(ctx context.Context, f *flow.Flow, cand *signupCandidate, state addressState,
	known store.User) (flow.Grant, error) {
	f.Tick()
	b := f.Batch()
	if state == addressTaken {
		b.Audit(cand.auditRow(f, state, known, known.ID))
		if err := b.Send(ctx); err != nil {
			return flow.Grant{}, err
		}
		return flow.Grant{}, errExists
	}
	id := known.ID
	if state == addressFree {
		id = cand.NewID()
	}
	u := cand.user(f, id, true, cand.data)
	u.PasswordHash, u.LastSignInAt = cand.hash, f.Now
	if state == addressFree {
		if err := cand.CheckCreation(ctx, f, u); err != nil {
			return flow.Grant{}, err
		}
	}
	draft := flow.NewSession(f, id, flow.MethodPassword)
	made, err := draft.CustomClaims(ctx, f, u)
	if err != nil {
		return flow.Grant{}, err
	}
	if state == addressFree {
		b.InsertUser(u)
		b.InsertIdentity(u.Identities[0])
	} else {
		b.RequirePending(id, cand.address, f.Now)
		b.UpdateUser(confirmPatch(u, f.Now))
		b.PutIdentity(u.Identities[0])
	}
	b.InsertSession(draft.Row)
	if state == addressPending {
		b.DeleteTokens(id)
	}
	flow.EnqueueCreatedHook(f, b, state == addressFree, id)
	b.Audit(f.Audit(store.ActionUserSignedUp, id, draft.Row.ID, "provider", cand.provider, "channel", cand.channel))
	b.Audit(f.Audit(store.ActionLogin, id, draft.Row.ID, "provider", cand.provider))
	if state == addressPending {
		b.User(&u, id)
	}
	if err := f.Send(ctx, b); err != nil {
		return flow.Grant{}, err
	}
	return draft.Grant(f, u, made)
}

// confirmPatch returns the patch that turns an unconfirmed account into u.
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

// auditRow returns the audit row of a sign-up that opens no session.
func (cand *signupCandidate) auditRow(f *flow.Flow, state addressState, known store.User, id uuid.UUID) store.Audit {
	a := f.Audit(store.ActionUserConfirmationRequested, id, uuid.Nil, "provider", cand.provider, "channel",
		cand.channel)
	if state == addressTaken {
		a.Action, a.Actor = store.ActionUserRepeatedSignup, known.ID
	}
	return a
}

// SignUpAnonymous opens a session for a new user who has no address.
func (a *Accounts) SignUpAnonymous(ctx context.Context, req flow.RequestInfo, data []byte) (flow.Grant, error) {
	f := a.core.Begin(req)
	if !f.Settings.Anonymous {
		return flow.Grant{}, refusal.Unprocessable(refusal.CodeAnonymousDisabled, "Anonymous sign-ins are disabled")
	}
	if f.Settings.DisableSignup {
		return flow.Grant{}, flow.ErrSignupDisabled
	}
	data, err := f.Settings.NewMetadata(data)
	if err != nil {
		return flow.Grant{}, err
	}
	if err := checkSignUpAudience(f.Settings, f.Aud()); err != nil {
		return flow.Grant{}, err
	}
	u := store.User{
		ID: uuid.New(), Aud: f.Aud(), Role: f.Settings.Role, IsAnonymous: true, AppMetadata: json.RawMessage("{}"),
		UserMetadata: json.RawMessage("{}"), CreatedAt: f.Now, UpdatedAt: f.Now, LastSignInAt: f.Now,
	}
	if len(data) > 0 {
		u.UserMetadata = data
	}
	if err := flow.CheckCreation(ctx, f, u); err != nil {
		return flow.Grant{}, err
	}
	draft := flow.NewSession(f, u.ID, flow.MethodAnonymous)
	made, err := draft.CustomClaims(ctx, f, u)
	if err != nil {
		return flow.Grant{}, err
	}
	b := f.Batch()
	b.InsertUser(u)
	b.InsertSession(draft.Row)
	flow.EnqueueCreatedHook(f, b, true, u.ID)
	b.Audit(f.Audit(store.ActionUserSignedUp, u.ID, draft.Row.ID, "provider", "anonymous"))
	if err := f.Send(ctx, b); err != nil {
		return flow.Grant{}, refusal.Failure("sign up anonymously", err)
	}
	return draft.Grant(f, u, made)
}

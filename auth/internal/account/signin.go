package account

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/store"
)

// Password is a request to sign in with a password.
type Password struct {
	Email    string `json:"email"`
	Phone    string `json:"phone"`
	Password string `json:"password"`
}

var errCredentials = refusal.Invalid(refusal.CodeInvalidCredentials, "Invalid login credentials")

// SignInPassword signs in with a password. It takes one statement, one password hash and another statement, whether or
// not the address has an account and the password is right.
func (a *Accounts) SignInPassword(ctx context.Context, req flow.RequestInfo, p Password) (flow.Grant, error) {
	f := a.core.Begin(req)
	provider, who, err := identifier(f.Settings, p)
	if err != nil {
		return flow.Grant{}, err
	}
	op := signInOp{f: *f, p: p, provider: provider}
	op.guesses = flow.PasswordGuesses(f, f.Aud(), who)
	u, draft, err := op.run(ctx)
	if err != nil {
		return flow.Grant{}, err
	}
	g, err := flow.GrantNew(ctx, f, u, &draft)
	if policy := f.Settings.Passwords.Policy; policy != nil {
		g.Weak = policy.Check(p.Password)
	}
	return g, err
}

// passwordRounds is how often a sign-in is tried if the account changes while the password is checked. One change is
// expected, if a concurrent sign-in renews the hash; the other rounds are for changes by the user.
const passwordRounds = 3

// signInOp is the state of one call of SignInPassword or SignInConsole.
type signInOp struct {
	f            flow.Flow
	guesses      flow.Guesses
	p            Password
	provider     string // "email" or "phone"
	console      bool   // the sign-in is to the admin console, for administrators only
	hookNotified bool   // the hook of passwords was called for the right password
}

// run opens the session. It starts over if the account changed while the password was checked.
func (op *signInOp) run(ctx context.Context) (u store.User, draft flow.SessionDraft, err error) {
	for range passwordRounds {
		if u, draft, err = op.try(ctx); !errors.Is(err, errChangedMeanwhile) {
			return u, draft, err
		}
	}
	return u, draft, refusal.Unavailable(errChangedMeanwhile, time.Second)
}

// try checks the password against the account's present hash. It returns errChangedMeanwhile if the account changed
// while the password was checked: then the account has to be read again.
func (op *signInOp) try(ctx context.Context) (u store.User, draft flow.SessionDraft, err error) {
	look := store.CredentialsFor{Aud: op.f.Aud(), Tries: op.guesses.Account, Place: op.guesses.Place}
	if op.provider == "email" {
		look.Email = op.guesses.Address
	} else {
		look.Phone = op.guesses.Address
	}
	known, err := op.f.Core.DB.Credentials(ctx, look, op.f.Now)
	if err != nil {
		return u, draft, refusal.Failure("credentials", err)
	}
	if err := op.guesses.Check(&op.f, known.Tried); err != nil {
		return u, draft, err
	}
	u = known.User
	hash, pending := known.User.PasswordHash, false
	if hash == "" {
		hash, pending = known.PendingHash, known.PendingHash != ""
	}
	right, rehash, err := op.f.Core.Passwords.Check(ctx, hash, op.p.Password)
	if err != nil {
		return u, draft, refusal.Failure("check password", err)
	}
	if !right || !op.hookNotified {
		op.hookNotified = right
		if err := flow.ReportPassword(ctx, &op.f, u.ID, right); err != nil {
			return u, draft, op.guesses.RecordRejected(ctx, &op.f, u.ID, right, err)
		}
	}
	if !right {
		return u, draft, op.guesses.CountWrong(ctx, &op.f, u.ID, "password", errCredentials)
	}
	r := checkSignIn(op.provider, u, pending, op.f.Now)
	if op.console {
		if err := op.refuseConsole(ctx, u, r); err != nil {
			return u, draft, err
		}
	} else if r != nil {
		if op.f.Settings.HideUnconfirmed && r.Code != refusal.CodeUserBanned {
			return u, draft, op.guesses.CountWrong(ctx, &op.f, u.ID, r.Code, errCredentials)
		}
		return u, draft, op.guesses.RecordRefused(ctx, &op.f, u.ID, r)
	}
	o := store.OpenSession{IfPassword: hash, Tries: op.guesses.LimitToCheck()}
	if rehash {
		if o.Rehash, err = op.f.Core.Passwords.Hash(ctx, op.p.Password); err != nil {
			o.Rehash = "" // hashing failed: the old hash stays until the next sign-in
		}
	}
	return op.open(ctx, u, o)
}

// open stores the session, if the account still has the password hash that was checked.
func (op *signInOp) open(ctx context.Context, u store.User,
	o store.OpenSession) (store.User, flow.SessionDraft, error) {
	draft := flow.NewSession(&op.f, u.ID, flow.MethodPassword)
	if op.console {
		draft.Row.NotAfter = op.f.Now.Add(ConsoleLife)
	}
	o.Session = draft.Row
	o.Audit = op.f.Audit(store.ActionLogin, u.ID, draft.Row.ID, "provider", op.provider)
	u, err := op.f.Core.DB.OpenSession(ctx, o)
	if errors.Is(err, store.ErrNotFound) {
		return u, draft, errChangedMeanwhile
	}
	if err != nil {
		return u, draft, refusal.Failure("open session", op.guesses.RefusalOf(err))
	}
	flow.EnforceSessionLimit(ctx, &op.f, u.ID)
	return u, draft, nil
}

// identifier returns the e-mail address or phone number to look up, in the spelling in which it is stored. It does not
// check the form: a malformed one has no account.
func identifier(s *flow.Settings, p Password) (provider, who string, err error) {
	switch {
	case p.Email != "" && p.Phone != "":
		return "", "", refusal.NotValid("Only an email address or phone number should be provided on login.")
	case p.Email != "" && !s.Email.Enabled:
		return "", "", refusal.Unprocessable(refusal.CodeEmailProviderDisabled, "Email logins are disabled")
	case p.Phone != "" && !s.Phone.Enabled:
		return "", "", refusal.Unprocessable(refusal.CodePhoneProviderDisabled, "Phone logins are disabled")
	case p.Email != "":
		return "email", flow.StorableText(address.Fold(p.Email)), nil
	case p.Phone != "":
		return "phone", flow.StorableText(address.FoldPhone(p.Phone)), nil
	}
	return "", "", refusal.NotValid("missing email or phone")
}

// checkSignIn returns the refusal of a sign-in whose password is right; nil if the user may sign in. pending says that
// the password belongs to a sign-up that is not confirmed yet.
func checkSignIn(provider string, u store.User, pending bool, now time.Time) *refusal.Refusal {
	switch {
	case u.BannedUntil.After(now):
		return refusal.Invalid(refusal.CodeUserBanned, "User is banned")
	case provider == "email" && (pending || u.EmailConfirmedAt.IsZero()):
		return refusal.Invalid(refusal.CodeEmailNotConfirmed, "Email not confirmed")
	case provider == "phone" && (pending || u.PhoneConfirmedAt.IsZero()):
		return refusal.Invalid(refusal.CodePhoneNotConfirmed, "Phone not confirmed")
	}
	return nil
}

// ConsoleLife is the longest life of a sign-in at the admin console.
const ConsoleLife = 8 * time.Hour

// SignInConsole opens a session at the admin console, which gets no tokens. It runs the same statements and the same
// hash as SignInPassword. If the user may not administer, the answer is that of a wrong password, and the sign-in uses
// up one of the address's tries.
func (a *Accounts) SignInConsole(ctx context.Context, req flow.RequestInfo,
	p Password) (store.User, store.Session, error) {
	f := a.core.Begin(req)
	provider, who, err := identifier(f.Settings, p)
	if err != nil {
		return store.User{}, store.Session{}, err
	}
	op := signInOp{f: *f, p: p, provider: provider, console: true}
	op.guesses = flow.ConsoleGuesses(f, f.Aud(), who)
	u, draft, err := op.run(ctx)
	if err != nil {
		return u, store.Session{}, err
	}
	return u, flow.OpenedSession(f, &draft), nil
}

// reasonConsoleRole is the reason in the audit row if the password is right but the user has no admin role.
const reasonConsoleRole = "console_role"

// refuseConsole returns nil if the user may sign in at the console, else the refusal. r is the refusal that any sign-in
// of the user would get; nil if there is none.
func (op *signInOp) refuseConsole(ctx context.Context, u store.User, r *refusal.Refusal) error {
	reason := ""
	if r != nil {
		reason = r.Code
	} else if !slices.Contains(op.f.Settings.AdminRoles, u.Role) {
		reason = reasonConsoleRole
	}
	if reason != "" {
		return op.guesses.CountWrong(ctx, &op.f, u.ID, reason, errCredentials)
	}
	if !op.f.Settings.AdminRequireAAL2 {
		return nil
	}
	if err := op.f.Run(ctx, func(b *flow.Batch) { b.Factors(&u.Factors, u.ID) }); err != nil {
		return refusal.Failure("factors", err)
	}
	if !slices.ContainsFunc(u.Factors, store.Factor.Verified) {
		return op.guesses.RecordRefused(ctx, &op.f, u.ID, flow.ErrAdminAAL2)
	}
	return nil
}

// SignOutConsole ends a session of the admin console.
func (a *Accounts) SignOutConsole(ctx context.Context, req flow.RequestInfo, user, session uuid.UUID) error {
	f := a.core.Begin(req)
	_, err := f.Core.DB.SignOut(ctx, store.SignOut{User: user, Session: session, Scope: store.ScopeLocal, Now: f.Now,
		IP: f.Req.IP})
	return refusal.Failure("sign out", err)
}

package account

import (
	"context"
	"errors"
	"time"

	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/store"
)

// Password is a sign-in with a password.
type Password struct{ Email, Phone, Password string }

var errCredentials = invalid(CodeInvalidCredentials, "Invalid login credentials")

// SignInPassword opens a session: one statement, one hash, one statement, whether or not the address has an account and
// the password is right.
func (a *Accounts) SignInPassword(ctx context.Context, req RequestInfo, p Password) (Grant, error) {
	f := a.core.Begin(req)
	provider, who, err := f.settings.identifier(p)
	if err != nil {
		return Grant{}, err
	}
	op := signInOp{f: *f, p: p, provider: provider}
	op.guesses = passwordGuesses(f, f.aud(), who)
	for range passwordRounds {
		g, err := op.try(ctx)
		if !errors.Is(err, errChangedMeanwhile) {
			return g, err
		}
	}
	return Grant{}, unavailable(errChangedMeanwhile, time.Second)
}

// passwordRounds is how often a sign-in starts over because the account changed while its password was checked. A
// concurrent sign-in that renews the hash changes it once; the rest is for changes by the user.
const passwordRounds = 3

// signInOp is one call of SignInPassword.
type signInOp struct {
	f            flow
	guesses      guesses
	p            Password
	provider     string // email or phone
	hookNotified bool   // the hook was called for the right password
}

// try checks the password against the account as it is. errChangedMeanwhile: the account changed while the password was
// checked, and has to be read again.
func (op *signInOp) try(ctx context.Context) (Grant, error) {
	look := store.CredentialsFor{Aud: op.f.aud(), Tries: op.guesses.account, Place: op.guesses.place}
	if op.provider == "email" {
		look.Email = op.guesses.address
	} else {
		look.Phone = op.guesses.address
	}
	known, err := op.f.core.db.Credentials(ctx, look, op.f.now)
	if err != nil {
		return Grant{}, failure("credentials", err)
	}
	if err := op.guesses.check(&op.f, known.Tried); err != nil {
		return Grant{}, err
	}
	u, hash, pending := known.User, known.User.PasswordHash, false
	if hash == "" {
		hash, pending = known.PendingHash, known.PendingHash != ""
	}
	right, rehash, err := op.f.core.passwords.Check(ctx, hash, op.p.Password)
	if err != nil {
		return Grant{}, failure("check password", err)
	}
	if !right || !op.hookNotified {
		op.hookNotified = right
		if err := reportPassword(ctx, &op.f, u.ID, right); err != nil {
			return Grant{}, op.guesses.recordRejected(ctx, &op.f, u.ID, right, err)
		}
	}
	if !right {
		return Grant{}, op.guesses.countWrong(ctx, &op.f, u.ID, "password", errCredentials)
	}
	if r := checkSignIn(op.provider, u, pending, op.f.now); r != nil {
		if op.f.settings.HideUnconfirmed && r.Code != CodeUserBanned {
			return Grant{}, op.guesses.countWrong(ctx, &op.f, u.ID, r.Code, errCredentials)
		}
		return Grant{}, op.guesses.recordRefused(ctx, &op.f, u.ID, r)
	}
	o := store.OpenSession{IfPassword: hash, Tries: op.guesses.limitToCheck()}
	if rehash {
		if o.Rehash, err = op.f.core.passwords.Hash(ctx, op.p.Password); err != nil {
			o.Rehash = "" // the old hash stays until the next sign-in
		}
	}
	return op.open(ctx, u, o)
}

// open writes the session.
func (op *signInOp) open(ctx context.Context, u store.User, o store.OpenSession) (Grant, error) {
	draft := newSession(&op.f, u.ID, methodPassword)
	o.Session = draft.row
	o.Audit = op.f.audit(store.ActionLogin, u.ID, draft.row.ID, "provider", op.provider)
	u, err := op.f.core.db.OpenSession(ctx, o)
	if errors.Is(err, store.ErrNotFound) {
		return Grant{}, errChangedMeanwhile
	}
	if err != nil {
		return Grant{}, failure("open session", op.guesses.refusalOf(err))
	}
	enforceSessionLimit(ctx, &op.f, u.ID)
	g, err := grantNew(ctx, &op.f, u, &draft)
	if op.f.settings.Passwords.Policy != nil {
		g.Weak = op.f.settings.Passwords.Policy.Check(op.p.Password)
	}
	return g, err
}

// identifier returns the address to look up. It is folded, not checked: a malformed one is unknown.
func (s *Settings) identifier(p Password) (provider, who string, err error) {
	switch {
	case p.Email != "" && p.Phone != "":
		return "", "", notValid("Only an email address or phone number should be provided on login.")
	case p.Email != "" && !s.Email.Enabled:
		return "", "", unprocessable(CodeEmailProviderDisabled, "Email logins are disabled")
	case p.Phone != "" && !s.Phone.Enabled:
		return "", "", unprocessable(CodePhoneProviderDisabled, "Phone logins are disabled")
	case p.Email != "":
		return "email", storableText(address.Fold(p.Email)), nil
	case p.Phone != "":
		return "phone", storableText(address.FoldPhone(p.Phone)), nil
	}
	return "", "", notValid("missing email or phone")
}

// checkSignIn returns what refuses a sign-in with the right password.
func checkSignIn(provider string, u store.User, pending bool, now time.Time) *Refusal {
	switch {
	case u.BannedUntil.After(now):
		return invalid(CodeUserBanned, "User is banned")
	case provider == "email" && (pending || u.EmailConfirmedAt.IsZero()):
		return invalid(CodeEmailNotConfirmed, "Email not confirmed")
	case provider == "phone" && (pending || u.PhoneConfirmedAt.IsZero()):
		return invalid(CodePhoneNotConfirmed, "Phone not confirmed")
	}
	return nil
}

// traits returns the traits of an audit row; pairs are name and value in turns.
func traits(pairs ...string) []byte {
	if len(pairs) == 0 {
		return nil
	}
	m := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			m[pairs[i]] = pairs[i+1]
		}
	}
	if len(m) == 0 {
		return nil
	}
	return mustJSON(m)
}

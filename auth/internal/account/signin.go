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

// SignInPassword opens a session: one statement, one hash, one statement, whether or not anybody has that
// address and password.
func (a *Accounts) SignInPassword(ctx context.Context, req RequestInfo, p Password) (Grant, error) {
	return signInPassword(ctx, a.begin(req), p)
}

func signInPassword(ctx context.Context, f *flow, p Password) (Grant, error) {
	provider, who, err := f.settings.identifier(p)
	if err != nil {
		return Grant{}, err
	}
	in := passwordSignIn{f: f, guesses: passwordGuesses(f, f.aud(), who), p: p, provider: provider}
	for range passwordRounds {
		g, err := in.try(ctx)
		if !errors.Is(err, errMeanwhile) {
			return g, err
		}
	}
	return Grant{}, unavailable(errMeanwhile, time.Second)
}

// passwordRounds is how often a sign-in begins again when the account changed while its password was checked.
// Another sign-in that renews the hash changes it once; the rest is for what an owner may do in between.
const passwordRounds = 3

// passwordSignIn is one call of SignInPassword.
type passwordSignIn struct {
	f            *flow
	guesses      guesses
	p            Password
	provider     string // email or phone
	hookNotified bool   // the hook was told of the right password
}

// try checks the password against the account as it is. errMeanwhile: it changed while the password was checked,
// so that what is true of it has to be read again.
func (in *passwordSignIn) try(ctx context.Context) (Grant, error) {
	look := store.CredentialsFor{Aud: in.f.aud(), Tries: in.guesses.account, Place: in.guesses.place}
	if in.provider == "email" {
		look.Email = in.guesses.address
	} else {
		look.Phone = in.guesses.address
	}
	known, err := in.f.core.db.Credentials(ctx, look, in.f.now)
	if err != nil {
		return Grant{}, failure("credentials", err)
	}
	if err := in.guesses.judge(known.Tried); err != nil {
		return Grant{}, err
	}
	u, hash, pending := known.User, known.User.PasswordHash, false
	if hash == "" {
		hash, pending = known.PendingHash, known.PendingHash != ""
	}
	right, rehash, err := in.f.core.passwords.Check(ctx, hash, in.p.Password)
	if err != nil {
		return Grant{}, failure("check password", err)
	}
	if !right || !in.hookNotified {
		in.hookNotified = right
		if err := reportPassword(ctx, in.f, u.ID, right); err != nil {
			return Grant{}, in.guesses.rejected(ctx, u.ID, right, err)
		}
	}
	if !right {
		return Grant{}, in.guesses.wrong(ctx, u.ID, "password", errCredentials)
	}
	if r := mayEnter(in.provider, u, pending, in.f.now); r != nil {
		if in.f.settings.HideUnconfirmed && r.Code != CodeUserBanned {
			return Grant{}, in.guesses.wrong(ctx, u.ID, r.Code, errCredentials)
		}
		return Grant{}, in.guesses.refused(ctx, u.ID, r)
	}
	o := store.OpenSession{IfPassword: hash, Tries: in.guesses.judged()}
	if rehash {
		if o.Rehash, err = in.f.core.passwords.Hash(ctx, in.p.Password); err != nil {
			o.Rehash = "" // the old hash does for another time
		}
	}
	return in.open(ctx, u, o)
}

// open writes the session.
func (in *passwordSignIn) open(ctx context.Context, u store.User, o store.OpenSession) (Grant, error) {
	draft := newSession(in.f, u.ID, methodPassword)
	o.Session = draft.row
	o.Audit = in.f.audit(store.ActionLogin, u.ID, draft.row.ID, "provider", in.provider)
	u, err := in.f.core.db.OpenSession(ctx, o)
	if errors.Is(err, store.ErrNotFound) {
		return Grant{}, errMeanwhile
	}
	if err != nil {
		return Grant{}, failure("open session", in.guesses.used(err))
	}
	enforceSessionLimit(ctx, in.f, u.ID)
	g, err := grantNew(ctx, in.f, u, &draft)
	if in.f.settings.Passwords.Policy != nil {
		g.Weak = in.f.settings.Passwords.Policy.Check(in.p.Password)
	}
	return g, err
}

// identifier is which address is to be looked up. It is folded, not judged: a malformed one is unknown.
func (s *Settings) identifier(p Password) (provider, who string, err error) {
	switch {
	case p.Email != "" && p.Phone != "":
		return "", "", notValid("Only an email address or phone number should be provided on login.")
	case p.Email != "" && !s.Email.Enabled:
		return "", "", unprocessable(CodeEmailProviderDisabled, "Email logins are disabled")
	case p.Phone != "" && !s.Phone.Enabled:
		return "", "", unprocessable(CodePhoneProviderDisabled, "Phone logins are disabled")
	case p.Email != "":
		return "email", plain(address.Fold(p.Email)), nil
	case p.Phone != "":
		return "phone", plain(address.FoldPhone(p.Phone)), nil
	}
	return "", "", notValid("missing email or phone")
}

// mayEnter is what the owner of the right password is told.
func mayEnter(provider string, u store.User, pending bool, now time.Time) *Refusal {
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

// traits are an audit row's, as name and value in turns.
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
	return object(m)
}

package account

import (
	"context"
	"errors"
	"time"

	"gatehouse/auth/internal/address"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// Password is a sign-in with a password.
type Password struct{ Email, Phone, Password string }

var errCredentials = invalid(CodeInvalidCredentials, "Invalid login credentials")

// SignInPassword opens a session: one statement, one hash, one statement, whether or not anybody has that
// address and password.
func (a *Accounts) SignInPassword(ctx context.Context, c Client, p Password) (Grant, error) {
	s := a.live.Load()
	provider, who, err := s.identifier(p)
	if err != nil {
		return Grant{}, err
	}
	in := passwordSignIn{guesses: a.passwordGuesses(s, c, s.aud(c), who, a.now()), s: s, c: c, p: p, provider: provider}
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
	guesses
	s        *Settings
	c        Client
	p        Password
	provider string // email or phone
	told     bool   // the hook was told of the right password
}

// try checks the password against the account as it is. errMeanwhile: it changed while the password was checked,
// so that what is true of it has to be read again.
func (in *passwordSignIn) try(ctx context.Context) (Grant, error) {
	look := store.CredentialsFor{Aud: in.s.aud(in.c), Tries: in.account, Place: in.place}
	if in.provider == "email" {
		look.Email = in.who
	} else {
		look.Phone = in.who
	}
	known, err := in.db.Credentials(ctx, look, in.now)
	if err != nil {
		return Grant{}, failure("credentials", err)
	}
	if err := in.judge(known.Tried); err != nil {
		return Grant{}, err
	}
	u, hash, pending := known.User, known.User.PasswordHash, false
	if hash == "" {
		hash, pending = known.PendingHash, known.PendingHash != ""
	}
	right, rehash, err := in.passwords.Check(ctx, hash, in.p.Password)
	if err != nil {
		return Grant{}, failure("check password", err)
	}
	if !right || !in.told {
		in.told = right
		if err := in.judgePassword(ctx, in.s, in.c, u.ID, right, in.now); err != nil {
			return Grant{}, in.rejected(ctx, u.ID, right, err)
		}
	}
	if !right {
		return Grant{}, in.wrong(ctx, u.ID, "password", errCredentials)
	}
	if r := mayEnter(in.provider, u, pending, in.now); r != nil {
		if in.s.HideUnconfirmed && r.Code != CodeUserBanned {
			return Grant{}, in.wrong(ctx, u.ID, r.Code, errCredentials)
		}
		return Grant{}, in.refused(ctx, u.ID, r)
	}
	o := store.OpenSession{IfPassword: hash, Tries: in.judged()}
	if rehash {
		if o.Rehash, err = in.passwords.Hash(ctx, in.p.Password); err != nil {
			o.Rehash = "" // the old hash does for another time
		}
	}
	return in.open(ctx, u, o)
}

// open writes the session.
func (in *passwordSignIn) open(ctx context.Context, u store.User, o store.OpenSession) (Grant, error) {
	open := in.opening(in.s, in.c, u.ID, methodPassword, in.now)
	o.Session = open.NewSession
	o.Audit = store.Audit{At: in.now, Action: store.ActionLogin, Actor: u.ID, Session: open.ID, IP: in.c.IP, Traits: traits("provider", in.provider)}
	u, err := in.db.OpenSession(ctx, o)
	if errors.Is(err, store.ErrNotFound) {
		return Grant{}, errMeanwhile
	}
	if err != nil {
		return Grant{}, failure("open session", in.used(err))
	}
	in.crowdOut(ctx, in.s, u.ID, in.now)
	g, err := in.grantNew(ctx, in.s, in.c, u, &open, in.now)
	if in.s.Passwords.Policy != nil {
		g.Weak = in.s.Passwords.Policy.Check(in.p.Password)
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

// limitKey names a bucket. The address in it cannot be read back.
func (a *Accounts) limitKey(parts ...string) []byte { return a.root.MAC(secret.Limits, parts...)[:16] }

// traits are an audit row's, as name and value in turns.
func traits(pairs ...string) []byte {
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

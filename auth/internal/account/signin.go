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

// SignInPassword opens a session (spec core-http 1.13): one statement, one hash, one statement,
// whether or not anybody has that address and password.
func (a *Accounts) SignInPassword(ctx context.Context, c Client, p Password) (Grant, error) {
	s := a.live.Load()
	provider, who, err := s.identifier(p)
	if err != nil {
		return Grant{}, err
	}
	now := a.now()
	look := store.CredentialsFor{Aud: s.aud(c), Tries: a.tries(s, s.aud(c), who)}
	if provider == "email" {
		look.Email = who
	} else {
		look.Phone = who
	}
	known, err := a.db.Credentials(ctx, look, now)
	if err != nil {
		return Grant{}, failure("credentials", err)
	}
	if wait := look.Tries.Wait(known.Tries, now, 1); wait > 0 && s.Passwords.TriesPerAccount > 0 {
		return Grant{}, limited(CodeOverRequestRate, "Request rate limit reached", wait)
	}
	u, hash, pending := known.User, known.User.PasswordHash, false
	if hash == "" {
		hash, pending = known.PendingHash, known.PendingHash != ""
	}
	right, rehash, err := a.passwords.Check(ctx, hash, p.Password)
	if err != nil {
		return Grant{}, failure("check password", err)
	}
	if err := a.judgePassword(ctx, s, c, u.ID, right, now); err != nil {
		return Grant{}, a.rejectedPassword(ctx, c, look, u, right, err, now)
	}
	if !right {
		return Grant{}, a.failedPassword(ctx, c, look, now, u, "password")
	}
	if r := mayEnter(provider, u, pending, now); r != nil {
		if s.HideUnconfirmed && r.Code != CodeUserBanned {
			return Grant{}, a.failedPassword(ctx, c, look, now, u, r.Code)
		}
		return Grant{}, a.rightButRefused(ctx, c, look, u, r, now)
	}
	o := store.OpenSession{IfPassword: hash}
	if rehash {
		if o.Rehash, err = a.passwords.Hash(ctx, p.Password); err != nil {
			o.Rehash = "" // the old hash does for another time
		}
	}
	open := s.open(c, u.ID, methodPassword, now)
	o.Session = open.NewSession
	o.Audit = store.Audit{At: now, Action: store.ActionLogin, Actor: u.ID, Session: open.ID, IP: c.IP, Traits: traits("provider", provider)}
	u, err = a.db.OpenSession(ctx, o)
	if errors.Is(err, store.ErrNotFound) { // changed while we hashed
		return Grant{}, errCredentials
	}
	if err != nil {
		return Grant{}, failure("open session", err)
	}
	a.crowdOut(ctx, s, u.ID, now)
	g, err := a.grantNew(ctx, s, c, u, &open, now)
	if s.Passwords.Policy != nil {
		g.Weak = s.Passwords.Policy.Check(p.Password)
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

// tries is the bucket of wrong passwords for an address, known or not.
func (a *Accounts) tries(s *Settings, aud, who string) store.Limit {
	n := s.Passwords.TriesPerAccount
	if n <= 0 {
		n = 1 // off: counted by the same statements, and not judged
	}
	return store.Limit{Key: a.limitKey("password", aud, who), Size: float64(n), Refill: time.Duration(n) * time.Minute}
}

// limitKey names a bucket. The address in it cannot be read back.
func (a *Accounts) limitKey(parts ...string) []byte { return a.root.MAC(secret.Limits, parts...)[:16] }

func (a *Accounts) failedPassword(ctx context.Context, c Client, look store.CredentialsFor, now time.Time, u store.User, reason string) error {
	err := a.db.FailedPassword(ctx, store.FailedPassword{
		Tries: look.Tries, Now: now,
		Note:  a.passwordNote(look),
		Audit: store.Audit{At: now, Action: store.ActionLoginFailed, Actor: u.ID, IP: c.IP, Traits: traits("reason", reason)},
	})
	if err != nil {
		return failure("failed password", err)
	}
	return errCredentials
}

// passwordNote is the pause between two audit rows about an address' password, or anybody could fill the log.
func (a *Accounts) passwordNote(look store.CredentialsFor) store.Limit {
	return store.NewInterval(a.limitKey("password note", look.Email+look.Phone), time.Minute)
}

// rightButRefused notes a sign-in that failed although the password was right.
func (a *Accounts) rightButRefused(ctx context.Context, c Client, look store.CredentialsFor, u store.User, r *Refusal, now time.Time) error {
	b := a.db.Batch()
	b.AuditSeldom(a.passwordNote(look), store.Audit{At: now, Action: store.ActionLoginFailed, Actor: u.ID, IP: c.IP, Traits: traits("reason", r.Code)})
	if err := b.Send(ctx); err != nil {
		return failure("refused sign-in", err)
	}
	return r
}

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

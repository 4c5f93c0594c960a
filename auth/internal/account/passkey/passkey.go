// Package passkey holds the flows of passkeys: the user registers passkeys, signs in with them, lists, renames and
// removes them; an administrator lists and removes them.
package passkey

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/webauthn"
)

// Passkeys has the entry points of the flows of passkeys. Its methods may be called from any goroutine.
type Passkeys struct{ core *flow.Core }

// New returns the entry points of the flows in this package. They use the database, the keys and the settings in k.
func New(k *flow.Core) *Passkeys { return &Passkeys{k} }

// Ceremony is what a client needs to begin a WebAuthn ceremony, a registration or a sign-in. Options is encoded as JSON
// for the authenticator.
type Ceremony[T any] struct {
	Challenge uuid.UUID
	Options   T
	Expires   time.Time
}

// Answer is an authenticator's response to the options of a Ceremony.
type Answer struct {
	Challenge  uuid.UUID
	Credential []byte // JSON
}

var (
	errChallengeNotFound = refusal.Invalid(refusal.CodeWebAuthnChallengeNotFound, "Challenge not found or already used")
	errChallengeExpired  = refusal.Invalid(refusal.CodeWebAuthnChallengeExpired, "Challenge has expired")
	errUnreadable        = refusal.Invalid(refusal.CodeWebAuthnVerificationFailed, "Invalid credential response")
	errNotVerified       = refusal.Invalid(refusal.CodeWebAuthnVerificationFailed, "Credential verification failed")
	errLow               = refusal.Denied(refusal.CodeInsufficientAAL,
		"AAL2 session is required to manage passkeys when MFA is enabled")
	errTooMany = refusal.Unprocessable(refusal.CodeTooManyPasskeys, "Maximum number of passkeys reached")
)

// ErrNotFound is the refusal of a request about a passkey that the user does not have.
var ErrNotFound = refusal.Missing(refusal.CodeValidationFailed, "Passkey not found")

// begin returns a new challenge for a WebAuthn ceremony: its ID, its text for the authenticator and its expiry.
func begin(f *flow.Flow, c webauthn.Ceremony) (id uuid.UUID, challenge string, expires time.Time) {
	expires = f.Now.Add(f.Settings.WebAuthn.ChallengeLife).Truncate(time.Second)
	id = c.NewID(flow.ChallengeMACs(f), expires)
	return id, webauthn.Encode(c.Challenges(flow.ChallengeMACs(f), id)[0]), expires
}

// resume checks the ID of a challenge, which contains the expiry, and returns the expiry.
func resume(f *flow.Flow, c webauthn.Ceremony, id uuid.UUID) (time.Time, error) {
	expires, ok := c.Expiry(flow.ChallengeMACs(f), id)
	switch {
	case !ok:
		return expires, errChallengeNotFound
	case f.Now.After(expires):
		return expires, errChallengeExpired
	}
	return expires, nil
}

// policy returns what an authenticator's response must match.
func policy(f *flow.Flow, c webauthn.Ceremony, id uuid.UUID) *webauthn.Policy {
	required := f.Settings.Passkeys.UserVerification == flow.VerificationRequired
	return flow.WebAuthnPolicy(f, c, id, required)
}

// List returns a user's passkeys, oldest first.
func (a *Passkeys) List(ctx context.Context, user uuid.UUID) ([]store.Credential, error) {
	var all []store.Credential
	b := a.core.DB.Batch()
	b.WebAuthn(&all, user)
	err := b.Send(ctx)
	return passkeysOf(all), refusal.Failure("passkeys", err)
}

// AdminList returns a user's passkeys, oldest first.
func (a *Passkeys) AdminList(ctx context.Context, user uuid.UUID) ([]store.Credential, error) {
	if _, err := a.core.UserOf(ctx, user); err != nil {
		return nil, err
	}
	return a.List(ctx, user)
}

// passkeysOf returns the credentials that are passkeys, leaving out security keys.
func passkeysOf(all []store.Credential) []store.Credential {
	return slices.DeleteFunc(slices.Clone(all), func(c store.Credential) bool { return c.Factor != uuid.Nil })
}

// Rename gives one of the user's passkeys a new name.
func (a *Passkeys) Rename(ctx context.Context, req flow.RequestInfo, principal flow.Principal, id uuid.UUID,
	name string) (store.Credential, error) {
	f := a.core.Begin(req)
	c, err := f.Core.DB.RenamePasskey(ctx, principal.User.ID, id, flow.StorableText(name),
		f.Audit(store.ActionPasskeyUpdated, principal.User.ID, principal.Session.ID, "passkey_id", id.String()))
	if errors.Is(err, store.ErrNotFound) {
		return c, ErrNotFound
	}
	return c, refusal.Failure("rename a passkey", err)
}

// CheckLevel refuses a principal who has a verified second factor, but whose session is below aal2.
func CheckLevel(principal flow.Principal) error {
	if flow.IsBelowAAL2(principal.User, principal.Session) {
		return errLow
	}
	return nil
}

// Delete removes one of the user's passkeys, and ends the other sessions that the passkey opened.
func (a *Passkeys) Delete(ctx context.Context, req flow.RequestInfo, principal flow.Principal, id uuid.UUID) error {
	f := a.core.Begin(req)
	notify := flow.CanNotify(ctx, f, f.Settings.Email.Notify.PasskeyDeleted)
	err := flow.OnPrincipal(ctx, f, principal, func(tx *flow.Tx, u store.User, v store.Session) error {
		if flow.IsBelowAAL2(u, v) {
			return errLow
		}
		return remove(ctx, f, tx, removal{user: u, passkey: id, except: v.ID, notify: notify,
			audit: f.Audit(store.ActionPasskeyDeleted, u.ID, v.ID, "passkey_id", id.String())})
	})
	return refusal.Failure("delete a passkey", err)
}

// AdminDelete removes a passkey from a user who has lost it, and ends all sessions that the passkey opened.
func (a *Passkeys) AdminDelete(ctx context.Context, req flow.RequestInfo, by flow.Actor, user, id uuid.UUID) error {
	f := a.core.Begin(req)
	notify := flow.CanNotify(ctx, f, f.Settings.Email.Notify.PasskeyDeleted)
	err := flow.OnUser(ctx, f, user, func(tx *flow.Tx, u store.User) error {
		return remove(ctx, f, tx, removal{user: u, passkey: id, notify: notify,
			audit: by.Audit(f, store.ActionPasskeyDeleted, "user_id", user.String(), "passkey_id", id.String())})
	})
	return refusal.Failure("delete a passkey", err)
}

// removal says which passkey is removed from which user.
type removal struct {
	user            store.User
	passkey, except uuid.UUID
	notify          bool
	audit           store.Audit
}

// remove removes a passkey of a locked user and ends the sessions that it opened.
func remove(ctx context.Context, f *flow.Flow, tx *flow.Tx, r removal) error {
	var gone store.Credential
	err := tx.Run(ctx, func(b *flow.Batch) { b.DeletePasskey(&gone, r.user.ID, r.passkey, r.except, f.Now) })
	if err != nil {
		return err
	}
	if gone.ID == uuid.Nil {
		return ErrNotFound // the transaction is rolled back, so no session ends
	}
	b := tx.Batch()
	if r.notify {
		flow.NotifyUser(f, b, mail.PasskeyDeleted, r.user, mail.Vars{FriendlyName: gone.FriendlyName})
	}
	b.Audit(r.audit)
	return b.Send(ctx)
}

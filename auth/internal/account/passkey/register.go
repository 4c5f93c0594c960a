package passkey

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/webauthn"
)

// registration returns the WebAuthn ceremony of a registration. It is bound to the user's session: once the session has
// ended, its challenges are void.
func registration(f *flow.Flow, principal flow.Principal) webauthn.Ceremony {
	return webauthn.Ceremony{Kind: "registration", RPID: f.Settings.WebAuthn.RPID,
		Binding: []string{principal.User.ID.String(), principal.Session.ID.String()}}
}

// RegistrationOptions begins the registration of a passkey: it returns a challenge and the options for the
// authenticator.
func (a *Passkeys) RegistrationOptions(ctx context.Context, req flow.RequestInfo,
	principal flow.Principal) (Ceremony[webauthn.CreationOptions], error) {
	f := a.core.Begin(req)
	var out Ceremony[webauthn.CreationOptions]
	var all []store.Credential
	if err := f.Run(ctx, func(b *flow.Batch) { b.WebAuthn(&all, principal.User.ID) }); err != nil {
		return out, refusal.Failure("passkeys", err)
	}
	if len(passkeysOf(all)) >= f.Settings.Passkeys.MaxPerUser {
		return out, errTooMany
	}
	out.Options = flow.CreationOptions(f, principal.User, all, webauthn.Selection{ResidentKey: "required",
		RequireResidentKey: true, UserVerification: f.Settings.Passkeys.UserVerification})
	out.Options.Timeout = f.Settings.WebAuthn.ChallengeLife.Milliseconds()
	out.Challenge, out.Options.Challenge, out.Expires = begin(f, registration(f, principal))
	return out, nil
}

// providers maps AAGUIDs, which tell the kind of authenticator, to the names of the programs that keep most passkeys.
// An AAGUID is not attested, so only the passkey's default name depends on it.
var providers = map[string]string{
	"fbfc3007-154e-4ecc-8c0b-6e020557d7bd": "Apple Passwords",
	"ea9b8d66-4d01-1d21-3ce4-b6b48cb575d4": "Google Password Manager",
	"bada5566-a7aa-401f-bd96-45619a55120d": "1Password",
	"d548826e-79b4-db40-a3d8-11116f7e8349": "Bitwarden",
	"08987058-cadc-4b81-b6e1-30de50dcbe96": "Windows Hello",
	"9ddd1817-af5a-4672-a2b9-3e3dd95000a9": "Windows Hello",
	"6028b017-b1d4-4c02-b4b3-afcdafc96bb2": "Windows Hello",
}

// Register stores the passkey that an authenticator has made.
func (a *Passkeys) Register(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	p Answer) (store.Credential, error) {
	f := a.core.Begin(req)
	ceremony := registration(f, principal)
	expires, err := resume(f, ceremony, p.Challenge)
	if err != nil {
		return store.Credential{}, err
	}
	response, err := webauthn.ParseRegistration(p.Credential)
	if err != nil {
		return store.Credential{}, because(errUnreadable, err)
	}
	key, err := response.Verify(policy(f, ceremony, p.Challenge))
	if err != nil {
		return store.Credential{}, because(errNotVerified, err)
	}
	c := store.Credential{ID: uuid.New(), User: principal.User.ID, Key: key, CreatedAt: f.Now,
		FriendlyName: cmp.Or(providers[uuid.UUID(key.AAGUID).String()], "Passkey")}
	i := insertion{credential: &c,
		spending: store.Spending{Challenge: p.Challenge, Expires: expires, ServerNow: f.Core.ServerNow()},
		told:     flow.CanNotify(ctx, f, f.Settings.Email.Notify.PasskeyCreated)}
	err = flow.OnPrincipal(ctx, f, principal, func(tx *flow.Tx, u store.User, v store.Session) error {
		return i.run(ctx, f, tx, u, v)
	})
	if errors.Is(err, store.ErrCredentialExists) {
		err = flow.ErrCredentialExists
	}
	return c, refusal.Failure("register a passkey", err)
}

// because returns a copy of the refusal r with err as the reason for the log.
func because(r *refusal.Refusal, err error) error {
	out := *r
	out.Err = err
	return &out
}

// insertion holds the data for the transaction that stores a passkey.
type insertion struct {
	credential *store.Credential
	spending   store.Spending
	told       bool // the user is notified by mail
}

// run makes the checks again for the locked user, spends the challenge and stores the passkey.
func (i insertion) run(ctx context.Context, f *flow.Flow, tx *flow.Tx, u store.User, v store.Session) error {
	if flow.IsBelowAAL2(u, v) {
		return errLow
	}
	var all []store.Credential
	b := tx.Batch()
	b.SpendChallenge(i.spending)
	b.WebAuthn(&all, u.ID)
	if err := b.Send(ctx); errors.Is(err, store.ErrNotFound) {
		return errChallengeNotFound
	} else if err != nil {
		return err
	}
	if len(passkeysOf(all)) >= f.Settings.Passkeys.MaxPerUser {
		return errTooMany
	}
	// A user with a verified factor registers passkeys only at aal2, which was checked above. Bound records that, so
	// that a later sign-in with the passkey may reach aal2 without the factor.
	i.credential.Bound = slices.ContainsFunc(u.Factors, store.Factor.Verified)
	b = tx.Batch()
	b.InsertWebAuthn(*i.credential)
	if i.told {
		flow.NotifyUser(f, b, mail.PasskeyCreated, u, mail.Vars{FriendlyName: i.credential.FriendlyName})
	}
	b.Audit(f.Audit(store.ActionPasskeyCreated, u.ID, v.ID, "passkey_id", i.credential.ID.String()))
	return b.Send(ctx)
}

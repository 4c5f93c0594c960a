package passkey

import (
	"cmp"
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/webauthn"
)

// authentication returns the WebAuthn ceremony of a sign-in. It is bound to no user, since the user is not known yet.
func authentication(f *flow.Flow) webauthn.Ceremony {
	return webauthn.Ceremony{Kind: "authentication", RPID: f.Settings.WebAuthn.RPID, Binding: []string{f.Aud()}}
}

// SignInOptions begins a sign-in: it returns a challenge and the options for the authenticator. It does not use the
// database, since login pages request it whenever they are shown.
func (a *Passkeys) SignInOptions(req flow.RequestInfo) Ceremony[webauthn.RequestOptions] {
	f := a.core.Begin(req)
	out := Ceremony[webauthn.RequestOptions]{Options: webauthn.RequestOptions{RPID: f.Settings.WebAuthn.RPID,
		UserVerification: f.Settings.Passkeys.UserVerification,
		Timeout:          f.Settings.WebAuthn.ChallengeLife.Milliseconds()}}
	out.Challenge, out.Options.Challenge, out.Expires = begin(f, authentication(f))
	return out
}

// SignIn opens a session for the owner of a passkey. It takes one statement to read and one round trip to write.
// Answers that fail before the credential is looked up take no statement.
func (a *Passkeys) SignIn(ctx context.Context, req flow.RequestInfo, p Answer) (flow.Grant, error) {
	f := a.core.Begin(req)
	ceremony := authentication(f)
	expires, err := resume(f, ceremony, p.Challenge)
	if err != nil {
		return flow.Grant{}, err
	}
	response, err := webauthn.ParseAssertion(p.Credential)
	if err != nil {
		return flow.Grant{}, because(errUnreadable, err)
	}
	if err := response.Check(policy(f, ceremony, p.Challenge)); err != nil {
		return flow.Grant{}, because(errNotVerified, err)
	}
	op := signInOp{f: f, response: response, spending: store.Spending{Challenge: p.Challenge, Expires: expires,
		ServerNow: f.Core.ServerNow()}}
	if err := op.check(ctx); err != nil {
		return flow.Grant{}, err
	}
	return op.open(ctx)
}

// signInOp is the state of one call of SignIn, once the answer has passed the checks that need no database.
type signInOp struct {
	f        *flow.Flow
	response *webauthn.Assertion
	known    store.PasskeyOwner
	spending store.Spending
	spent    bool                // this call has spent the challenge
	key      webauthn.Credential // the credential as it is after the assertion
}

// check looks the credential up and verifies the assertion. Only then does it check whether the user may sign in, since
// only the owner of the passkey may learn that.
func (op *signInOp) check(ctx context.Context) (err error) {
	op.known, err = op.f.Core.DB.PasskeyOwner(ctx, op.response.ID, op.spending.Challenge, op.f.Aud())
	u := op.known.User
	switch {
	case err != nil:
		return refusal.Failure("passkey owner", err)
	case op.known.Spent && !op.spent:
		return errChallengeNotFound
	case u.ID == uuid.Nil:
		return because(errNotVerified, webauthn.UnknownCredential)
	case string(op.response.Handle) != u.ID.String():
		return op.failed(ctx, webauthn.FailedUserHandle)
	}
	if op.key, err = op.response.Verify(op.known.Passkey.Key); err != nil {
		return op.failed(ctx, err)
	}
	return checkOwner(u, op.f)
}

// checkOwner returns the refusal of a sign-in whose passkey is right; nil if the user may sign in.
func checkOwner(u store.User, f *flow.Flow) error {
	switch {
	case u.Email != "" && u.EmailConfirmedAt.IsZero():
		return refusal.Denied(refusal.CodeEmailNotConfirmed, "Email not confirmed")
	case u.Email == "" && u.Phone != "" && u.PhoneConfirmedAt.IsZero():
		return refusal.Denied(refusal.CodePhoneNotConfirmed, "Phone not confirmed")
	case u.BannedUntil.After(f.Now):
		return refusal.Denied(refusal.CodeUserBanned, "User is banned")
	}
	return nil
}

// failed writes an audit row about a failed sign-in with a known passkey, at most once a minute. It returns the same
// refusal as for an unknown passkey.
func (op *signInOp) failed(ctx context.Context, why error) error {
	reason, _ := errors.AsType[webauthn.Failure](why)
	id := op.known.Passkey.ID.String()
	if reason == webauthn.FailedSignCount {
		op.f.Core.Log.Warn("the counter of a passkey went back: it may have been copied", "passkey", id)
	}
	b := op.f.Batch()
	op.f.AuditSeldom(b, "passkey note", id, op.f.Audit(store.ActionLoginFailed, op.known.User.ID, uuid.Nil,
		"reason", string(reason), "passkey_id", id))
	if err := b.Send(ctx); err != nil {
		return refusal.Failure("note a failed sign-in", err)
	}
	return because(errNotVerified, why)
}

// open stores the session and spends the challenge.
func (op *signInOp) open(ctx context.Context) (flow.Grant, error) {
	f, passkey := op.f, op.known.Passkey
	passkey.Key = op.key
	draft := flow.NewSession(f, op.known.User.ID, flow.MethodPasskey)
	opened, err := f.Core.DB.OpenPasskeySession(ctx, store.OpenPasskeySession{Session: draft.Row, Passkey: passkey,
		Spending: op.spending, MayReachAAL2: op.key.UserVerified && f.Settings.Passkeys.AAL == flow.PasskeyAAL2,
		Audit: f.Audit(store.ActionLogin, op.known.User.ID, draft.Row.ID, "provider", "passkey", "passkey_id",
			passkey.ID.String())})
	switch {
	case err != nil:
		return flow.Grant{}, refusal.Failure("open session", err)
	case !opened.Spent:
		return flow.Grant{}, errChallengeNotFound
	case opened.AAL == 0: // the user or the passkey has changed in the meantime
		op.spent = true
		return flow.Grant{}, cmp.Or(op.check(ctx), error(errNotVerified))
	}
	draft.Row.AAL = opened.AAL
	flow.EnforceSessionLimit(ctx, f, op.known.User.ID)
	return flow.GrantNew(ctx, f, opened.User, &draft)
}

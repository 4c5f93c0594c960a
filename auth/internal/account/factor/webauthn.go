package factor

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/webauthn"
)

// These are the types of WebAuthn ceremonies, as the client library names them.
const (
	typeCreate  = "create"
	typeRequest = "request"
)

// keyCeremony returns the WebAuthn ceremony of a security key's challenge: a registration if the key is unverified,
// otherwise an assertion. So once the key is verified, further answers to its registration are void.
func keyCeremony(f *flow.Flow, factor store.Factor) (kind string, c webauthn.Ceremony) {
	kind = typeCreate
	if factor.Verified() {
		kind = typeRequest
	}
	return kind, webauthn.Ceremony{Kind: "factor " + kind, RPID: f.Settings.WebAuthn.RPID,
		Binding: []string{factor.ID.String()}}
}

// WebAuthnOptions returns the WebAuthn options of a security key's challenge, with their type: create or request.
func (a *Factors) WebAuthnOptions(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	factor store.Factor, challenge uuid.UUID) (kind string, options any, err error) {
	f := a.core.Begin(req)
	var all []store.Credential
	if err := f.Run(ctx, func(b *flow.Batch) { b.WebAuthn(&all, principal.User.ID) }); err != nil {
		return "", nil, refusal.Failure("webauthn credentials", err)
	}
	kind, c := keyCeremony(f, factor)
	text := webauthn.Encode(c.Challenges(flow.ChallengeMACs(f), challenge)[0])
	timeout := f.Settings.Factors.ChallengeLife.Milliseconds()
	if kind == typeCreate {
		o := flow.CreationOptions(f, principal.User, all, webauthn.Selection{ResidentKey: "discouraged",
			UserVerification: "preferred"})
		o.Challenge, o.Timeout = text, timeout
		return kind, o, nil
	}
	o := webauthn.RequestOptions{Challenge: text, Timeout: timeout, RPID: c.RPID, UserVerification: "preferred"}
	for _, k := range all {
		if k.Factor == factor.ID {
			o.AllowCredentials = append(o.AllowCredentials, webauthn.Describe(k.Key))
		}
	}
	return kind, o, nil
}

// keyAnswer is a security key's answer to a challenge. If kind is create, the field made has the answer; if it is
// request, the field signed has it.
type keyAnswer struct {
	op        *verifyFactorOp
	kind      string // create or request
	made      *webauthn.Registration
	signed    *webauthn.Assertion
	malformed error
	row       store.Credential // the row to insert for a new key, else the row in the database
}

// answerWithKey makes the operation check the answer of a security key instead of a code.
func (op *verifyFactorOp) answerWithKey(p *flow.WebAuthnAnswer) error {
	switch {
	case p == nil:
		return refusal.NotValid("WebAuthn config required")
	case p.Type != typeCreate && p.Type != typeRequest:
		return refusal.NotValid("WebAuthn type must be create or request")
	case len(p.Credential) == 0 || string(p.Credential) == "null":
		return refusal.NotValid("credential_response required")
	}
	k := &keyAnswer{op: op, kind: p.Type}
	if p.Type == typeCreate {
		k.made, k.malformed = webauthn.ParseRegistration(p.Credential)
	} else {
		k.signed, k.malformed = webauthn.ParseAssertion(p.Credential)
	}
	op.judge, op.done = k.judge, k.done
	return nil
}

// judge checks the answer while the user's row is locked. Wrong answers are not counted, since a signature cannot be
// guessed.
func (k *keyAnswer) judge(ctx context.Context, tx *flow.Tx, u store.User, session store.Session) error {
	op := k.op
	var all []store.Credential
	_, err := op.open(ctx, tx, func(b *flow.Batch) { b.WebAuthn(&all, u.ID) })
	if err != nil || tx.Refusal != nil {
		return err
	}
	if err := op.checkFactorLimit(u, session); err != nil {
		return err
	}
	if k.malformed != nil {
		r := refusal.NotValid("Invalid credential_response")
		r.Err = k.malformed
		return r
	}
	failure := k.verify(all)
	op.judged = true
	b := tx.Batch()
	if failure != nil {
		r := refusal.Unprocessable(refusal.CodeFactorVerificationFailed, "Invalid WebAuthn response")
		r.Err = failure
		tx.Refuse(r)
		b.MissChallenge(op.challenge)
		reason, _ := failure.(webauthn.Failure)
		b.Audit(op.audit(store.ActionVerificationFailed, "reason", string(reason)))
		return b.Send(ctx)
	}
	if k.kind == typeCreate {
		taken := false
		b.IsWebAuthnTaken(&taken, k.row.Key.ID)
		if err := b.Send(ctx); err != nil {
			return err
		}
		if taken {
			return flow.ErrCredentialExists
		}
		b = tx.Batch()
	}
	b.UseChallenge(op.challenge, op.f.Now)
	if k.kind == typeRequest { // store the signature counter before a hook is called, as the step of a TOTP code is
		b.UseWebAuthn(k.row.ID, k.row.Key, op.f.Now)
	}
	return b.Send(ctx)
}

// verify checks a parsed answer, and sets the row to store.
func (k *keyAnswer) verify(all []store.Credential) (err error) {
	op := k.op
	kind, c := keyCeremony(&op.f, op.factor)
	if kind != k.kind {
		return webauthn.FailedType
	}
	policy := flow.WebAuthnPolicy(&op.f, c, op.challenge, false)
	if kind == typeCreate {
		k.row = store.Credential{ID: uuid.New(), User: op.principal.User.ID, Factor: op.factor.ID, CreatedAt: op.f.Now}
		k.row.Key, err = k.made.Verify(policy)
		return err
	}
	if err := k.signed.Check(policy); err != nil {
		return err
	}
	for _, row := range all {
		if row.Factor == op.factor.ID {
			k.row = row
		}
	}
	switch {
	case k.row.ID == uuid.Nil:
		return webauthn.UnknownCredential
	case k.signed.Handle != nil && string(k.signed.Handle) != op.principal.User.ID.String():
		return webauthn.FailedUserHandle
	}
	if k.row.Key, err = k.signed.Verify(k.row.Key); err == webauthn.FailedSignCount {
		op.f.Core.Log.Warn("the counter of a security key went back: it may have been copied", "factor", op.factor.ID)
	}
	return err
}

// done stores a new credential. It adds to the batch that raises the session.
func (k *keyAnswer) done(b *flow.Batch) {
	if k.kind == typeCreate {
		k.row.LastUsedAt = k.op.f.Now
		b.InsertWebAuthn(k.row)
	}
	b.Audit(k.op.audit(store.ActionVerificationAttempted))
}

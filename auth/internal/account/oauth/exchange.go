package oauth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

var errNoFlow = refusal.Missing(refusal.CodeFlowStateNotFound, "invalid flow state, no valid flow state found")

// codeRetry is how long a PKCE code may be exchanged again without ending the session that it opened: a client that
// lost the answer may retry, or two tabs of a browser may exchange the same code.
const codeRetry = 10 * time.Second

// exchangeCodeOp is the state of one call of ExchangeCode.
type exchangeCodeOp struct {
	f        flow.Flow
	hash     []byte
	verifier string
	bearer   string

	// These fields are the results of the transaction; each try of the transaction sets them again.
	pkce store.Flow
	open flow.SessionDraft
	user store.User
}

// CodeExchange is a PKCE code, with the verifier that proves that the client requested it.
type CodeExchange struct {
	Code     string `json:"auth_code"`
	Verifier string `json:"code_verifier"`
	// Bearer is the request's access token; "" if there is none, or if it is a service's token.
	Bearer string `json:"-"`
}

// ExchangeCode opens a session for a PKCE code, if the client knows the code's verifier (RFC 7636 section 4.5). The
// first try uses up the code, even with a wrong verifier; only a try that ends in a 503 has changed nothing and may be
// repeated. If the code is sent again later with the right verifier, two clients have it: then the session that the
// code opened ends (RFC 9700 section 4.5).
func (a *Identities) ExchangeCode(ctx context.Context, req flow.RequestInfo, p CodeExchange) (flow.Grant, error) {
	f := a.core.Begin(req)
	if p.Code == "" || p.Verifier == "" {
		return flow.Grant{}, refusal.NotValid("invalid request: both auth code and code verifier should be non-empty")
	}
	op := exchangeCodeOp{f: *f, hash: flow.CodeHash(p.Code), verifier: p.Verifier, bearer: p.Bearer}
	if op.hash == nil {
		return flow.Grant{}, errNoFlow
	}
	err := f.Commit(ctx, func(tx *flow.Tx) error { return op.write(ctx, tx) })
	switch {
	case errors.Is(err, errLinksIdentity):
		return op.link(ctx)
	case err != nil:
		return flow.Grant{}, refusal.Failure("exchange a code", err)
	case op.user.ID == uuid.Nil:
		return flow.Grant{}, noSessionReason(ctx, f, op.pkce.User)
	}
	flow.EnforceSessionLimit(ctx, f, op.user.ID)
	g, err := flow.GrantNew(ctx, f, op.user, &op.open)
	if err != nil {
		return flow.Grant{}, err
	}
	giveTokens(f, &g, op.pkce)
	return g, nil
}

// write runs within the transaction: it uses up the code and opens the session.
func (op *exchangeCodeOp) write(ctx context.Context, tx *flow.Tx) error {
	refused, err := op.takeCode(ctx, tx, uuid.New())
	f := &op.pkce
	if err == nil && refused == nil && f.Linked != nil {
		if refused = op.checkBearer(); refused == nil {
			return errLinksIdentity
		}
	}
	if err != nil || refused != nil {
		tx.Refuse(refused)
		return err
	}
	op.open = flow.NewSession(&op.f, f.User, f.Method)
	op.open.SetID(f.Session)
	if f.AAL > 1 {
		op.open.Row.AAL, op.open.Row.AMR = f.AAL, joinAMR(op.open.Row.AMR, f.AMR)
	}
	op.user, err = tx.OpenSession(ctx, store.OpenSession{Session: op.open.Row,
		Audit: op.f.Audit(store.ActionLogin, f.User, f.Session, "provider_type", cmp.Or(f.Provider, "email"))})
	if errors.Is(err, store.ErrNotFound) {
		return nil // the transaction commits: the code is used up, and no session is opened
	}
	return err
}

// takeCode uses up the code and records the session that it opens. If the code opens no session, refused is the reason;
// the code is used up all the same.
func (op *exchangeCodeOp) takeCode(ctx context.Context, tx *flow.Tx, session uuid.UUID) (refused, err error) {
	op.pkce, err = tx.TakeFlow(ctx, op.hash, session, op.f.Now)
	f := &op.pkce
	switch {
	case errors.Is(err, store.ErrNotFound):
		return errNoFlow, op.recordMiss(ctx, tx, "unknown")
	case err != nil:
		return nil, err
	case !f.UsedAt.IsZero():
		return errNoFlow, op.endReused(ctx, tx)
	case f.Void:
		refused = errNoFlow
	case op.f.Now.After(f.IssuedAt.Add(op.f.Settings.FlowLife)):
		refused = refusal.Unprocessable(refusal.CodeFlowStateExpired, "invalid flow state, flow state has expired")
	case !proves(*f, op.verifier):
		return refusal.Invalid(refusal.CodeBadCodeVerifier, "code challenge does not match previously saved code verifier"),
			op.recordMiss(ctx, tx, "verifier")
	}
	f.Session = session
	return refused, nil
}

// recordMiss writes an audit row about a refused code, at most once a minute for each user, and for all unknown codes
// together.
func (op *exchangeCodeOp) recordMiss(ctx context.Context, tx *flow.Tx, reason string) error {
	b := tx.Batch()
	op.f.AuditSeldom(b, "code note", op.pkce.User.String(),
		op.f.Audit(store.ActionVerificationFailed, op.pkce.User, uuid.Nil, "type", "pkce", "reason", reason))
	return b.Send(ctx)
}

// endReused ends the session that a code opened, if the code is sent again after codeRetry. With a wrong verifier it
// ends nothing: then the code has leaked, but the verifier has not.
func (op *exchangeCodeOp) endReused(ctx context.Context, tx *flow.Tx) error {
	if !op.f.Now.After(op.pkce.UsedAt.Add(codeRetry)) || !proves(op.pkce, op.verifier) {
		return nil
	}
	return tx.Run(ctx, func(b *flow.Batch) { b.EndByReuse(op.pkce.Session, op.f.Now, op.f.Req.IP) })
}

// noSessionReason returns why a code opened no session: whether the user is banned or deleted.
func noSessionReason(ctx context.Context, f *flow.Flow, user uuid.UUID) error {
	u, err := f.Core.DB.User(ctx, user)
	switch {
	case errors.Is(err, store.ErrNotFound) || err == nil && !u.DeletedAt.IsZero():
		return errNoFlow
	case err != nil:
		return refusal.Failure("user", err)
	case u.BannedUntil.After(f.Now):
		return refusal.Denied(refusal.CodeUserBanned, "User is banned")
	}
	return errNoFlow // the user was banned when the session was to be opened, and is not any more
}

// proves reports whether a verifier matches the PKCE challenge of a flow (RFC 7636 section 4.6).
func proves(f store.Flow, verifier string) bool {
	got := verifier
	if f.ChallengeMethod == "s256" {
		sum := sha256.Sum256([]byte(verifier))
		got = base64.RawURLEncoding.EncodeToString(sum[:])
	}
	return subtle.ConstantTimeCompare([]byte(got), []byte(f.Challenge)) == 1
}

package account

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// pendingLink is an identity that waits, sealed in a flow, to be linked.
type pendingLink struct {
	Profile    provider.Profile `json:"profile"`
	RedirectTo string           `json:"redirect_to"`
}

// issueLinkingCode answers a callback that links an identity: the browser gets a code, and nothing is linked
// until the client that asked exchanges it. The URL that begins the linking can be opened by anybody, and
// would hang the identity of whoever does on the asker's account.
func (op *oauthOp) issueLinkingCode(ctx context.Context, out OAuthResult) (OAuthResult, error) {
	f, hash := op.issueFlow(op.linkUser)
	text, err := json.Marshal(pendingLink{op.profile, op.f.req.RedirectTo})
	if err != nil {
		return out, fmt.Errorf("account: profile of %s: %w", op.profile.Provider, err)
	}
	f.Linked, f.ProviderTokens = op.f.core.root.Seal(secret.ExternalStates, text, f.ID[:]), nil // the profile has them
	f.LinkingSession, f.LinkingAAL = op.linkSession, op.linkAAL
	b := op.f.batch()
	b.InsertIssuedFlow(f, hash)
	if err := b.Send(ctx); errors.Is(err, store.ErrUserGone) {
		return out, errTargetGone
	} else if err != nil {
		return out, failure("external", err)
	}
	out.Code, out.User = op.code, op.linkUser
	return out, nil
}

// errLinksIdentity ends the transaction of a sign-in that turned out to link an identity; the code stays unused.
var errLinksIdentity = errors.New("account: the code links an identity")

// checkBearer refuses a bearer who is another user than the one who asked for the link. No bearer is needed: the
// client library sends none, and the verifier proves who asked.
func (op *exchangeCodeOp) checkBearer() error {
	var claims token.Claims
	if user, _, err := op.f.core.readIDs(&claims, op.bearer, op.f.now); err == nil && user != op.pkce.User {
		return denied(CodeBadJWT, "The access token is not of the user who asked for the linking")
	}
	return nil
}

// link links the identity that waits in the flow, and opens the session.
func (op *exchangeCodeOp) link(ctx context.Context) (Grant, error) {
	f := op.pkce
	text, _, err := op.f.core.root.Open(secret.ExternalStates, f.Linked, f.ID[:])
	if err != nil {
		return Grant{}, fmt.Errorf("account: linked profile: %w", err)
	}
	var waits pendingLink
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&waits); err != nil {
		return Grant{}, fmt.Errorf("account: linked profile: %w", err)
	}
	op.f.req.RedirectTo = waits.RedirectTo
	own := *op.f // its time and audience are apart
	link := oauthOp{f: &own, profile: waits.Profile, names: []string{waits.Profile.Provider}, strict: true,
		linkUser: f.User, linkSession: f.LinkingSession, linkAAL: f.LinkingAAL, exchange: op}
	if via, err := op.f.settings.provider(waits.Profile.Provider); err == nil {
		link.names, link.optional = append(link.names, via.Aliases()...), via.EmailOptional()
	}
	out, err := link.finish(ctx, OAuthResult{})
	if err != nil {
		return Grant{}, op.spendCode(ctx, err)
	}
	return *out.Grant, nil
}

// spendCode uses the code up that led to a refusal which trying again would not change.
func (op *exchangeCodeOp) spendCode(ctx context.Context, refusal error) error {
	r, ok := errors.AsType[*Refusal](refusal)
	if !ok || r.Kind != Denied && r.Kind != Unprocessable && r.Kind != Invalid {
		return refusal
	}
	if err := op.f.inTx(ctx, func(tx *store.Tx) error { return op.takeCode(ctx, tx, uuid.New()) }); err != nil {
		return failure("exchange a code", err)
	}
	return refusal
}

// linkByCode uses the code up and links the identity in one transaction.
func (op *oauthOp) linkByCode(ctx context.Context, tx *store.Tx) error {
	if err := op.exchange.takeCode(ctx, tx, uuid.New()); err != nil {
		return err
	}
	if op.exchange.refusal != nil { // another exchange, or what ends codes, came between
		return op.exchange.refusal
	}
	return op.linkIdentity(ctx, tx)
}

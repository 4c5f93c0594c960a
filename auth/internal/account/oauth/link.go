package oauth

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/provider"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

var (
	errManualLinking   = refusal.Missing(refusal.CodeManualLinkingDisabled, "Manual linking is disabled")
	errLinkedElsewhere = refusal.Unprocessable(refusal.CodeIdentityAlreadyExists,
		"Identity is already linked to another user")
	errLinkedHere = refusal.Unprocessable(refusal.CodeIdentityAlreadyExists, "Identity is already linked")

	errLinkingNeedsPKCE = refusal.NotValid("Linking needs a code challenge: use the PKCE flow (flowType: 'pkce')")
)

// checkLinking checks whether a user may link and unlink identities.
func checkLinking(s *flow.Settings, u store.User, v store.Session) error {
	if !s.External.ManualLinking {
		return errManualLinking
	}
	return checkLinkingLevel(s, u, v)
}

// checkLinkingLevel refuses a session at aal1 if the user has a second factor: a linked identity replaces the first
// factor.
func checkLinkingLevel(s *flow.Settings, u store.User, v store.Session) error {
	if s.External.LinkingAAL2 && flow.IsBelowAAL2(u, v) {
		return refusal.Denied(refusal.CodeInsufficientAAL,
			"AAL2 session is required to link or unlink an identity when MFA is enabled.")
	}
	return nil
}

// linkIdentity links an identity to the account of the user who requested it. It checks the user again, who may have
// been deleted, banned or signed out since the request.
func (op *oauthOp) linkIdentity(ctx context.Context, tx *flow.Tx) error {
	old, err := tx.LockUser(ctx, op.LinkUser)
	if errors.Is(err, store.ErrNotFound) || err == nil && !old.DeletedAt.IsZero() {
		return errTargetGone
	}
	if err != nil {
		return err
	}
	op.f.Req.Aud = old.Aud
	var found []store.Match
	var from store.Session
	b := tx.Batch()
	op.find(b, &found)
	b.Identities(&old.Identities, old.ID)
	b.Factors(&old.Factors, old.ID)
	b.Session(&from, old.ID, op.LinkSession)
	if err := b.Send(ctx); err != nil {
		return err
	}
	from.AAL = min(from.AAL, op.LinkAAL)
	switch {
	case old.BannedUntil.After(op.f.Now):
		return refusal.Denied(refusal.CodeUserBanned, "User is banned")
	case op.LinkSession != uuid.Nil && (from.ID == uuid.Nil || from.Ended()):
		return flow.SessionNotFound()
	case op.LinkSession != uuid.Nil && op.f.Settings.IsExpired(from, op.f.Now):
		return refusal.Denied(refusal.CodeSessionExpired, "Session is no longer valid")
	}
	if err := checkLinkingLevel(op.f.Settings, old, from); err != nil {
		return err
	}
	if len(found) > 0 && found[0].How == store.BySubject {
		if found[0].User == old.ID {
			return errLinkedHere
		}
		return errLinkedElsewhere
	}
	op.level, op.methods = from.AAL, from.AMR
	w := &oauthTx{f: &op.f, op: op, b: tx.Batch(), old: old,
		patch: store.UserPatch{ID: old.ID, Now: op.f.Now, ProvidersFromIdentities: true}}
	w.findIdentity()
	w.note(store.ActionIdentityLinked, "identity_id", w.identity.ID.String(), "provider", w.identity.Provider,
		"provider_id", w.identity.ProviderID)
	if op.emails.has(old.Email) { // a session of the account has requested the linking, so no session ends
		flow.NoteProof(&w.patch, old, old.Email)
	}
	if old.Email == "" {
		if err := w.adoptEmail(found); err != nil {
			return err
		}
	}
	w.deleteAbandoned(resolveAccount(found, op.emails).abandoned)
	w.updateUser()
	return w.finish(ctx)
}

// adoptEmail gives a user without an address the address of the linked identity. An address that the provider has not
// verified is only pending, as in a change of address: until it is confirmed by mail, it belongs to no account and
// blocks no other account.
func (w *oauthTx) adoptEmail(found []store.Match) error {
	best := w.op.emails.best
	switch {
	case best == "":
		w.patch.IsAnonymous = new(false) // the linked identity is a way to sign in, so the user is no longer anonymous
		return nil
	case w.isTaken(found):
		return refusal.Invalid(refusal.CodeEmailExists, flow.ErrEmailExists.Msg)
	case w.op.emails.bestVerified() || w.f.Settings.Email.Autoconfirm:
		w.email = emailOutcome{adopt: best, confirm: true, unproven: !w.op.emails.bestVerified()}
		w.patch.EmailUnproven = &w.email.unproven
		w.patch.UserMetadata.Set = flow.MustJSON(map[string]any{"email": best, "email_verified": true})
		w.patch.Email, w.patch.EmailConfirmedAt, w.patch.IsAnonymous = &best, &w.f.Now, new(false)
		w.old.Email = best
		return nil
	}
	if w.op.quota == nil || w.op.confirmTo != best {
		w.op.confirmTo = best
		w.op.quota = flow.MailQuota(w.f, "email_change", w.f.Settings.Email.Interval, w.old.Aud, best)
		return errRaced
	}
	wanted := w.old
	wanted.NewEmail = best
	msgs, err := flow.NewEmailChange(w.f, wanted, nil)
	w.outgoing = msgs
	w.patch.NewEmail, w.patch.EmailChangeSentAt, w.patch.CurrentEmailProven, w.patch.NewEmailProven = &best, &w.f.Now,
		new(false), new(false)
	w.email.refuse = true
	w.refuse(refusal.CodeEmailNotConfirmed, confirmationSent)
	return err
}

// isTaken reports whether another user has the identity's best address.
func (w *oauthTx) isTaken(found []store.Match) bool {
	return slices.ContainsFunc(found, func(m store.Match) bool {
		return m.How != store.BySubject && m.Email == w.op.emails.best && m.User != w.old.ID
	})
}

// joinAMR joins the amr lists of two sessions, with the newer session's methods first.
func joinAMR(newer, older json.RawMessage) json.RawMessage {
	var a, b []token.AMR
	if json.Unmarshal(newer, &a) != nil || json.Unmarshal(older, &b) != nil {
		return newer
	}
	for _, m := range b {
		if m.Method != methodOAuth {
			a = append(a, m)
		}
	}
	return flow.MustJSON(a)
}

// pendingLink is an identity that will be linked when the code of a flow is exchanged. It is stored in the flow,
// encrypted.
type pendingLink struct {
	Profile    provider.Profile `json:"profile"`
	RedirectTo string           `json:"redirect_to"`
}

// issueLinkingCode answers a callback that links an identity. The browser gets a code, and the identity is linked only
// when the client that requested the linking exchanges the code. Otherwise, if another person opened the URL that
// begins the linking, that person's identity would be linked to the requester's account.
func (op *oauthOp) issueLinkingCode(ctx context.Context, out OAuthResult) (OAuthResult, error) {
	op.f.Tick() // the provider may have taken long to answer
	f, hash := op.issueFlow(op.LinkUser)
	text, err := json.Marshal(pendingLink{op.Profile, op.f.Req.RedirectTo})
	if err != nil {
		return out, fmt.Errorf("account: profile of %s: %w", op.Profile.Provider, err)
	}
	// ProviderTokens stays empty, since the encrypted profile in Linked has the provider's tokens.
	f.Linked, f.ProviderTokens = op.f.Core.Root.Seal(secret.ExternalStates, text, f.ID[:]), nil
	f.LinkingSession, f.LinkingAAL = op.LinkSession, op.LinkAAL
	if err := op.f.Run(ctx, func(b *flow.Batch) { b.InsertIssuedFlow(f, hash) }); errors.Is(err, store.ErrUserGone) {
		return out, errTargetGone
	} else if err != nil {
		return out, refusal.Failure("external", err)
	}
	out.Code, out.User = op.code, op.LinkUser
	return out, nil
}

// errLinksIdentity ends the transaction of an exchange if its code links an identity. The code stays unused.
var errLinksIdentity = errors.New("account: the code links an identity")

// checkBearer refuses the access token of a user other than the one who requested the linking. A token is not required:
// the client library sends none, and the verifier proves that the same client requested the linking.
func (op *exchangeCodeOp) checkBearer() error {
	var claims token.Claims
	if user, _, err := op.f.Core.ReadIDs(&claims, op.bearer, op.f.Now); err == nil && user != op.pkce.User {
		return refusal.Denied(refusal.CodeBadJWT, "The access token is not of the user who asked for the linking")
	}
	return nil
}

// link links the identity that is pending in the flow, and opens the session.
func (op *exchangeCodeOp) link(ctx context.Context) (flow.Grant, error) {
	f := op.pkce
	text, _, err := op.f.Core.Root.Open(secret.ExternalStates, f.Linked, f.ID[:])
	if err != nil {
		return flow.Grant{}, fmt.Errorf("account: linked profile: %w", err)
	}
	var waits pendingLink
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&waits); err != nil {
		return flow.Grant{}, fmt.Errorf("account: linked profile: %w", err)
	}
	op.f.Req.RedirectTo = waits.RedirectTo
	link := oauthOp{f: op.f, Arrival: Arrival{Profile: waits.Profile, LinkUser: f.User, LinkSession: f.LinkingSession,
		LinkAAL: f.LinkingAAL}, names: []string{waits.Profile.Provider}, exchange: op}
	if via, err := enabledProvider(op.f.Settings, waits.Profile.Provider); err == nil {
		link.names, link.Optional = append(link.names, via.Aliases()...), via.EmailOptional()
	}
	out, err := link.finish(ctx, OAuthResult{})
	if err != nil {
		return flow.Grant{}, op.spendCode(ctx, err)
	}
	return *out.Grant, nil
}

// spendCode uses up the code after its exchange has failed with the error refused, unless a retry might succeed. It
// returns refused.
func (op *exchangeCodeOp) spendCode(ctx context.Context, refused error) error {
	r, ok := errors.AsType[*refusal.Refusal](refused)
	if !ok || r.Kind != refusal.KindDenied && r.Kind != refusal.KindUnprocessable && r.Kind != refusal.KindInvalid {
		return refused
	}
	err := op.f.Commit(ctx, func(tx *flow.Tx) error {
		_, err := op.takeCode(ctx, tx, uuid.New())
		return err
	})
	return cmp.Or(refusal.Failure("exchange a code", err), refused)
}

// linkByCode uses up the code and links the identity, in one transaction.
func (op *oauthOp) linkByCode(ctx context.Context, tx *flow.Tx) error {
	refused, err := op.exchange.takeCode(ctx, tx, uuid.New())
	if err != nil || refused != nil { // the code was used, or it expired, in the meantime
		return cmp.Or(err, refused)
	}
	return op.linkIdentity(ctx, tx)
}

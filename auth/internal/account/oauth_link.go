package account

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

var (
	errManualLinking   = missing(CodeManualLinkingDisabled, "Manual linking is disabled")
	errLinkedElsewhere = unprocessable(CodeIdentityAlreadyExists, "Identity is already linked to another user")
	errLinkedHere      = unprocessable(CodeIdentityAlreadyExists, "Identity is already linked")

	errLinkingNeedsPKCE = notValid("Linking needs a code challenge: use the PKCE flow (flowType: 'pkce')")
)

// checkLinking says whether a caller may change the identities of his account at all.
func (s *Settings) checkLinking(u store.User, v store.Session) error {
	if !s.External.ManualLinking {
		return errManualLinking
	}
	return s.checkLinkingLevel(u, v)
}

// checkLinkingLevel wants the second factor of who has one: another identity is a way in without the first.
func (s *Settings) checkLinkingLevel(u store.User, v store.Session) error {
	if s.External.LinkingAAL2 && isBelowAAL2(u, v) {
		return denied(CodeInsufficientAAL, "AAL2 session is required to link or unlink an identity when MFA is enabled.")
	}
	return nil
}

// linkIdentity links an identity to the account of whoever asked for it. What he was when he asked is
// looked at again: he may be gone, banned or signed out by now.
func (op *oauthOp) linkIdentity(ctx context.Context, tx *store.Tx) error {
	old, err := tx.LockUser(ctx, op.linkUser)
	if errors.Is(err, store.ErrNotFound) || err == nil && !old.DeletedAt.IsZero() {
		return errTargetGone
	}
	if err != nil {
		return err
	}
	op.f.req.Aud = old.Aud
	var found []store.Match
	var from store.Session
	b := tx.Batch()
	op.find(b, &found)
	b.Identities(&old.Identities, old.ID)
	b.Factors(&old.Factors, old.ID)
	b.Session(&from, old.ID, op.linkSession)
	if err := b.Send(ctx); err != nil {
		return err
	}
	from.AAL = min(from.AAL, op.linkAAL)
	switch {
	case old.BannedUntil.After(op.f.now):
		return denied(CodeUserBanned, "User is banned")
	case op.linkSession != uuid.Nil && (from.ID == uuid.Nil || from.Ended()):
		return sessionNotFound()
	case op.linkSession != uuid.Nil && op.f.settings.isExpired(from, op.f.now):
		return denied(CodeSessionExpired, "Session is no longer valid")
	}
	if err := op.f.settings.checkLinkingLevel(old, from); err != nil {
		return err
	}
	if len(found) > 0 && found[0].How == store.BySubject {
		if found[0].User == old.ID {
			return errLinkedHere
		}
		return errLinkedElsewhere
	}
	op.level, op.methods = from.AAL, from.AMR
	w := &oauthTx{f: op.f, op: op, b: tx.Batch(), old: old, patch: store.UserPatch{ID: old.ID, Now: op.f.now, ProvidersFromIdentities: true}}
	w.findIdentity()
	w.note(store.ActionIdentityLinked, "identity_id", w.identity.ID.String(), "provider", w.identity.Provider, "provider_id", w.identity.ProviderID)
	if old.Email == "" {
		if err := w.adoptEmail(found); err != nil {
			return err
		}
	}
	w.deleteAbandoned(resolveAccount(found, op.emails).abandoned)
	w.updateUser(accountDecision{resolution: userLinked, user: old.ID})
	return w.finish(ctx)
}

// adoptEmail gives a user without any address the provider's. One that is not verified only waits, as a
// change of address does: until its mail is answered it is nobody's, and keeps nobody from it.
func (w *oauthTx) adoptEmail(found []store.Match) error {
	best := w.op.emails.best
	switch {
	case best == "":
		w.patch.IsAnonymous = ptr(false) // he can come back by the identity
		return nil
	case w.isTaken(found):
		return invalid(CodeEmailExists, errEmailExists.Msg)
	case w.op.emails.bestVerified() || w.f.settings.Email.Autoconfirm:
		w.email = emailOutcome{adopt: best, confirm: true}
		w.patch.UserMetadata.Set = mustJSON(map[string]any{"email": best, "email_verified": true})
		w.patch.Email, w.patch.EmailConfirmedAt, w.patch.IsAnonymous = &best, &w.f.now, ptr(false)
		w.old.Email = best
		return nil
	}
	if w.op.quota == nil || w.op.confirmTo != best {
		w.op.confirmTo = best
		w.op.quota = mailQuota(w.f, "email_change", w.f.settings.Email.Interval, w.old.Aud, best)
		return errRaced
	}
	wanted := w.old
	wanted.NewEmail = best
	msgs, err := newEmailChange(w.f, wanted, nil)
	w.outgoing = msgs
	w.patch.NewEmail, w.patch.EmailChangeSentAt, w.patch.CurrentEmailProven, w.patch.NewEmailProven = &best, &w.f.now, ptr(false), ptr(false)
	w.email.refuse = true
	w.op.refusal = unprocessable(CodeEmailNotConfirmed, fmt.Sprintf("Unverified email with %s. A confirmation email has been sent to your %s email", w.op.profile.Provider, w.op.profile.Provider))
	return err
}

// isTaken says that somebody else has the address.
func (w *oauthTx) isTaken(found []store.Match) bool {
	for _, m := range found {
		if m.How != store.BySubject && m.Email == w.op.emails.best && m.User != w.old.ID {
			return true
		}
	}
	return false
}

// joinAMR puts what is newest first.
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
	return mustJSON(a)
}

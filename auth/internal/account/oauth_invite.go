package account

import (
	"context"
	"errors"

	"gatehouse/auth/internal/store"
)

// acceptInvite is an invitation that is accepted by signing in with a provider: one of the addresses that
// it has verified must be the invited one.
func (op *oauthOp) acceptInvite(ctx context.Context, tx *store.Tx) error {
	t, err := tx.RedeemLink(ctx, op.invite, []store.Kind{store.KindInvite}, op.f.now)
	if errors.Is(err, store.ErrNotFound) {
		return missing(CodeInviteNotFound, "Invite not found")
	}
	if err != nil {
		return err
	}
	old, err := tx.LockUser(ctx, t.User)
	if err != nil {
		return err
	}
	var found []store.Match
	b := tx.Batch()
	b.Matches(&found, op.names, op.profile.Subject, old.Aud, nil)
	b.Identities(&old.Identities, old.ID)
	if err := b.Send(ctx); err != nil {
		return err
	}
	if !op.emails.has(old.Email) {
		return notValid("Invited email does not match emails from external provider")
	}
	if len(found) > 0 && found[0].How == store.BySubject && found[0].User != old.ID {
		return errLinkedElsewhere
	}
	if err := op.checkStillAllowed(old); err != nil {
		return err
	}
	op.emails.best = old.Email
	w := &oauthTx{f: op.f, op: op, b: tx.Batch(), old: old, patch: store.UserPatch{ID: old.ID, Now: op.f.now, ProvidersFromIdentities: true},
		email: emailOutcome{confirm: true, claim: old.EmailConfirmedAt.IsZero()}}
	w.findIdentity()
	w.note(store.ActionInviteAccepted, "provider", op.profile.Provider)
	if err := w.reconcile(accountDecision{resolution: userLinked, user: old.ID}); err != nil {
		return err
	}
	w.patch.UserMetadata.Set = w.data
	w.deleteAbandoned(resolveAccount(found, op.emails).abandoned)
	w.updateUser(accountDecision{resolution: userLinked, user: old.ID})
	return w.finish(ctx)
}

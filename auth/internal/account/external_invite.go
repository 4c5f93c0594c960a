package account

import (
	"context"
	"errors"

	"gatehouse/auth/internal/store"
)

// accept is an invitation that is accepted by signing in with a provider: one of the addresses that
// it has verified must be the invited one.
func (e *entry) accept(ctx context.Context, tx *store.Tx) error {
	t, err := tx.RedeemLink(ctx, e.invite, []store.Kind{store.KindInvite}, e.f.now)
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
	b.Matches(&found, e.names, e.profile.Subject, old.Aud, nil)
	b.Identities(&old.Identities, old.ID)
	if err := b.Send(ctx); err != nil {
		return err
	}
	if !e.mails.has(old.Email) {
		return notValid("Invited email does not match emails from external provider")
	}
	if len(found) > 0 && found[0].How == store.BySubject && found[0].User != old.ID {
		return errLinkedElsewhere
	}
	if err := e.mayStay(old); err != nil {
		return err
	}
	e.mails.best = old.Email
	w := &arrival{f: e.f, op: e, b: tx.Batch(), old: old, patch: store.UserPatch{ID: old.ID, Now: e.f.now, ProvidersFromIdentities: true},
		settlement: settlement{confirm: true, claim: old.EmailConfirmedAt.IsZero()}}
	w.arrive()
	w.note(store.ActionInviteAccepted, "provider", e.profile.Provider)
	if err := w.settled(decision{outcome: link, user: old.ID}); err != nil {
		return err
	}
	w.patch.UserMetadata.Set = w.data
	w.evict(decide(found, e.mails).abandoned)
	w.change(decision{outcome: link, user: old.ID})
	return w.finish(ctx)
}

package account

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
)

// displaceUnproven takes an address that was just proven from an account that never proved it: its identity of the
// address and what was sent there go, and the account too when nothing else is left of it.
func (w *verifyTx) displaceUnproven(ctx context.Context, tx *store.Tx) error {
	var other store.User
	provider, b := "email", tx.Batch()
	if w.t.Kind == store.KindPhoneChange {
		provider = "phone"
		b.UserByPhone(&other, w.u.Aud, w.t.Address)
	} else {
		b.UserByEmail(&other, w.u.Aud, w.u.NewEmail)
	}
	if err := b.Send(ctx); err != nil || other.ID == uuid.Nil || other.ID == w.u.ID {
		return err
	}
	address := other.Email
	if provider == "phone" {
		address = other.Phone
	}
	locked, err := tx.LockUser(ctx, other.ID)
	if errors.Is(err, store.ErrNotFound) {
		return nil // it is gone already
	}
	if err != nil || !isUnproven(locked, provider, address) {
		return err // confirmed by now: the unique index refuses the change
	}
	b = tx.Batch()
	b.Identities(&locked.Identities, locked.ID) // those that LockUser returns may be older than the lock
	if err := b.Send(ctx); err != nil {
		return err
	}
	b = tx.Batch()
	action := w.removeAddress(b, locked, provider)
	b.Audit(w.f.audit(action, w.u.ID, uuid.Nil, "user_id", locked.ID.String(), "reason", "address_proven"))
	return b.Send(ctx)
}

// isUnproven says that a user has an address without a proof of it.
func isUnproven(u store.User, provider, address string) bool {
	if provider == "phone" {
		return u.Phone == address && u.PhoneConfirmedAt.IsZero()
	}
	return u.Email == address && u.EmailConfirmedAt.IsZero()
}

// removeAddress removes an address from a user, or the user who has nothing else, and says which.
func (w *verifyTx) removeAddress(b *store.Batch, u store.User, provider string) store.Action {
	elsewhere := u.Phone
	if provider == "phone" {
		elsewhere = u.Email
	}
	rest := slices.ContainsFunc(u.Identities, func(i store.Identity) bool { return i.Provider != provider })
	if elsewhere == "" && !rest {
		b.DeleteUser(u.ID)
		b.CancelMessages(u.ID, w.f.now)
		return store.ActionUserDeleted
	}
	p := store.UserPatch{ID: u.ID, Now: w.f.now, ProvidersFromIdentities: true}
	p.UserMetadata.Delete, p.UserMetadata.Set = []string{provider}, mustJSON(map[string]bool{provider + "_verified": false})
	kinds := []store.Kind{store.KindSMS, store.KindPhoneChange}
	if provider == "phone" {
		p.Phone = ptr("")
	} else {
		p.Email, p.NewEmail, p.ConfirmationSentAt, p.RecoverySentAt = ptr(""), ptr(""), &time.Time{}, &time.Time{}
		kinds = []store.Kind{store.KindInvite, store.KindRecovery, store.KindMagicLink, store.KindEmailChangeCurrent, store.KindEmailChangeNew}
	}
	for _, i := range u.Identities {
		if i.Provider == provider {
			b.DeleteIdentity(i.ID)
		}
	}
	b.UpdateUser(p)
	b.DeleteTokens(u.ID, append(kinds, store.KindSignup, store.KindReauthentication)...)
	return store.ActionUserModified
}

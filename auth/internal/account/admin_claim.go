package account

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// AdminClaim gives an account to the owner of its confirmed address alone: every other way into it is removed, and a
// recovery mail is sent. It is for an owner who confirmed an account that a stranger had prepared: recovery alone
// leaves the stranger's phone, factors and identities in place.
func (a *Accounts) AdminClaim(ctx context.Context, req RequestInfo, by Actor, id uuid.UUID) error {
	return adminClaim(ctx, a.begin(req), by, id)
}

func adminClaim(ctx context.Context, f *flow, by Actor, id uuid.UUID) error {
	if err := f.settings.checkMailSendable("recovery"); err != nil {
		return err
	}
	f.req.RedirectTo = f.settings.SiteURL
	var msg outgoing
	err := f.inTx(ctx, func(tx *store.Tx) error {
		u, err := tx.LockUser(ctx, id)
		switch {
		case err != nil:
			return err
		case !u.DeletedAt.IsZero():
			return store.ErrNotFound
		case u.Email == "" || u.EmailConfirmedAt.IsZero():
			return unprocessable(CodeEmailNotConfirmed,
				"The user has no confirmed e-mail address to send the recovery to")
		}
		if msg, err = newMail(f, mailSpec{
			kind: store.KindRecovery, mail: mail.Recovery, link: mail.LinkRecovery, to: u.Email,
			vars: mail.Vars{Email: u.Email, Data: u.UserMetadata},
		}); err != nil {
			return err
		}
		b := tx.Batch()
		dropAccess(b, u, f.now)
		b.CancelMessages(id, f.now)
		insertOutgoing(b, id, nil, msg)
		b.Audit(by.audit(f, store.ActionUserModified, "user_id", id.String(), "reason", "claim"))
		return b.Send(ctx)
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return errNoUser
	case err != nil:
		return failure("claim", err)
	}
	return f.send(ctx, msg)
}

// dropAccess removes everything from an account but its address, metadata and bans.
func dropAccess(b *store.Batch, u store.User, now time.Time) {
	none := time.Time{}
	p := store.UserPatch{
		ID: u.ID, Now: now, PasswordHash: ptr(""), Phone: ptr(""), PhoneConfirmedAt: &none, IsAnonymous: ptr(false),
		NewEmail: ptr(""), NewPhone: ptr(""), CurrentEmailProven: ptr(false), NewEmailProven: ptr(false),
		RecoverySentAt:     &now,
		ConfirmationSentAt: &none, EmailChangeSentAt: &none, PhoneChangeSentAt: &none, ReauthenticationSentAt: &none,
		UserMetadata: store.MetadataPatch{Delete: []string{"phone"},
			Set: mustJSON(map[string]any{"phone_verified": false})}, ProvidersFromIdentities: true,
	}
	own := ownIdentity(u.ID, "email", u.Email, nil, p)
	if at := slices.IndexFunc(u.Identities, func(i store.Identity) bool { return i.Provider == "email" }); at >= 0 {
		own = &u.Identities[at]
	} else {
		b.PutIdentity(*own)
	}
	b.DeleteIdentitiesBut(u.ID, own.ID, true)
	b.UpdateUser(p)
	b.EndSessions(store.EndSessions{User: u.ID, Reason: store.EndedClaimed, At: now})
	b.DeleteTokens(u.ID)
	b.DeleteFlows(u.ID)
	b.DeleteFactors(u.ID) // with their challenges
	b.DeletePlaces(u.ID)
}

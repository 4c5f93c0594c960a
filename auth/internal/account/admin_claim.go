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
func (a *Users) AdminClaim(ctx context.Context, req RequestInfo, by Actor, id uuid.UUID) error {
	f := a.core.Begin(req)
	if err := f.settings.checkMailSendable("recovery"); err != nil {
		return err
	}
	f.req.RedirectTo = f.settings.SiteURL
	err := f.commit(ctx, func(tx *tx) error {
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
		msg, err := newMail(f, mailSpec{
			kind: store.KindRecovery, mail: mail.Recovery, link: mail.LinkRecovery, to: u.Email,
			vars: mail.Vars{Email: u.Email, Data: u.UserMetadata},
		})
		if err != nil {
			return err
		}
		b := tx.Batch()
		dropAccess(b, u, f.now)
		b.CancelMessages(id, f.now)
		insertOutgoing(b, id, nil, msg)
		b.Audit(by.audit(f, store.ActionUserModified, "user_id", id.String(), "reason", "claim"))
		return b.Send(ctx)
	})
	if errors.Is(err, store.ErrNotFound) {
		return errNoUser
	}
	return failure("claim", err)
}

// dropOthers puts into a patch what an account loses when the owner of an address gets it: the password, unless the
// owner chose one, the address of the other kind, and pending changes.
func dropOthers(p *store.UserPatch, provider string) {
	if p.PasswordHash == nil {
		p.PasswordHash = new("")
	}
	if provider == "email" {
		p.Phone, p.PhoneConfirmedAt, p.UserMetadata.Delete = new(""), &time.Time{}, []string{"phone"}
	} else {
		p.Email, p.EmailConfirmedAt, p.UserMetadata.Delete = new(""), &time.Time{}, []string{"email"}
	}
	dropChanges(p)
	p.ProvidersFromIdentities = true
}

// clearSent forgets when the user was last written to.
func clearSent(p *store.UserPatch) {
	p.ConfirmationSentAt, p.RecoverySentAt, p.ReauthenticationSentAt = &time.Time{}, &time.Time{}, &time.Time{}
	p.EmailChangeSentAt, p.PhoneChangeSentAt = &time.Time{}, &time.Time{}
}

// dropChanges ends every pending change. A change left here could be sent again, to an address that another person
// may have named.
func dropChanges(p *store.UserPatch) {
	p.NewEmail, p.NewPhone, p.CurrentEmailProven, p.NewEmailProven = new(""), new(""), new(false), new(false)
}

// dropAccess removes everything from an account but its address, metadata and bans.
func dropAccess(b *batch, u store.User, now time.Time) {
	p := store.UserPatch{ID: u.ID, Now: now, IsAnonymous: new(false),
		UserMetadata: store.MetadataPatch{Set: mustJSON(map[string]any{"phone_verified": false})}}
	clearSent(&p)
	p.RecoverySentAt = &now
	dropOthers(&p, "email")
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

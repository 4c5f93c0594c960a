package admin

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
)

// AdminClaim leaves only the owner of its confirmed address in an account: it removes every other way in, and sends a
// recovery mail. It is for an owner who confirmed an account that a stranger had prepared: a recovery alone would leave
// the stranger's phone, factors and identities.
func (a *Users) AdminClaim(ctx context.Context, req flow.RequestInfo, by flow.Actor, id uuid.UUID) error {
	f := a.core.Begin(req)
	if err := f.Settings.CheckMailSendable("recovery"); err != nil {
		return err
	}
	f.Req.RedirectTo = f.Settings.SiteURL
	err := flow.OnUser(ctx, f, id, func(tx *flow.Tx, u store.User) error {
		switch {
		case !u.DeletedAt.IsZero():
			return flow.ErrNoUser
		case u.Email == "" || u.EmailConfirmedAt.IsZero():
			return refusal.Unprocessable(refusal.CodeEmailNotConfirmed,
				"The user has no confirmed e-mail address to send the recovery to")
		}
		msg, err := flow.NewMail(f, flow.MailSpec{
			Kind: store.KindRecovery, Mail: mail.Recovery, Link: mail.LinkRecovery, To: u.Email,
			Vars: mail.Vars{Email: u.Email, Data: u.UserMetadata},
		})
		if err != nil {
			return err
		}
		b := tx.Batch()
		dropAccess(b, u, f.Now)
		b.CancelMessages(id, f.Now)
		flow.InsertOutgoing(b, id, nil, msg)
		b.Audit(by.Audit(f, store.ActionUserModified, "user_id", id.String(), "reason", "claim"))
		return b.Send(ctx)
	})
	return refusal.Failure("claim", err)
}

// dropAccess removes everything from an account except its address, metadata and bans.
func dropAccess(b *flow.Batch, u store.User, now time.Time) {
	p := store.UserPatch{ID: u.ID, Now: now, IsAnonymous: new(false),
		UserMetadata: store.MetadataPatch{Set: flow.MustJSON(map[string]any{"phone_verified": false})}}
	flow.ClearSent(&p)
	p.RecoverySentAt = &now
	flow.DropOthers(&p, "email")
	own := flow.OwnIdentity(u.ID, "email", u.Email, nil, p)
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

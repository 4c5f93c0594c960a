// Package admin holds the flows of administrators: they list, create, change, claim and delete users, inspect the
// outbox and read the audit log.
package admin

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// Users has the entry points of the flows of administrators. Its methods may be called from any goroutine.
type Users struct{ core *flow.Core }

// New returns the entry points of the flows in this package. They use the database, the keys and the settings in k.
func New(k *flow.Core) *Users { return &Users{k} }

// AdminUsers returns one page of users and, if the filter requests it, how many users match. A filter without an
// audience selects the default audience.
func (a *Users) AdminUsers(ctx context.Context, f store.UsersFilter) ([]store.User, int, error) {
	if f.Aud == "" {
		f.Aud = a.core.Live().Audience
	}
	f.Text, f.Email, f.Phone = flow.StorableText(f.Text), flow.StorableText(f.Email), flow.StorableText(f.Phone)
	page, total, err := a.core.DB.Users(ctx, f)
	return page, total, refusal.Failure("users", err)
}

// AdminUser returns a user of any audience, even a soft-deleted one.
func (a *Users) AdminUser(ctx context.Context, id uuid.UUID) (store.User, error) {
	return a.core.UserOf(ctx, id)
}

// UserSessions returns a user's sessions, newest first.
func (a *Users) UserSessions(ctx context.Context, id uuid.UUID) ([]store.Session, error) {
	if _, err := a.AdminUser(ctx, id); err != nil {
		return nil, err
	}
	list, err := a.core.DB.Sessions(ctx, id)
	return list, refusal.Failure("sessions", err)
}

// AdminEndSession ends one session of a user. PKCE codes that were issued but not yet exchanged stay valid.
func (a *Users) AdminEndSession(ctx context.Context, req flow.RequestInfo, by flow.Actor, user, session uuid.UUID) error {
	f := a.core.Begin(req)
	err := f.Core.DB.EndSession(ctx, store.EndSession{User: user, Session: session, Reason: store.EndedByAdmin,
		Audit: by.Audit(f, store.ActionSessionEnded, "user_id", user.String(), "session_id", session.String())})
	if errors.Is(err, store.ErrNotFound) {
		if _, err := a.AdminUser(ctx, user); err != nil {
			return err
		}
		return flow.ErrNoSession
	}
	return refusal.Failure("end session", err)
}

// AdminEndSessions ends all sessions of a user, and voids PKCE codes that were issued but not yet exchanged.
func (a *Users) AdminEndSessions(ctx context.Context, req flow.RequestInfo, by flow.Actor, user uuid.UUID) error {
	f := a.core.Begin(req)
	err := flow.OnUser(ctx, f, user, func(tx *flow.Tx, _ store.User) error {
		b := tx.Batch()
		b.EndSessions(store.EndSessions{User: user, Reason: store.EndedByAdmin, At: f.Now})
		b.Audit(by.Audit(f, store.ActionSessionEnded, "user_id", user.String()))
		return b.Send(ctx)
	})
	return refusal.Failure("end sessions", err)
}

// AdminOutbox returns one page of the mails and SMS in the outbox, newest first, without their contents.
func (a *Users) AdminOutbox(ctx context.Context, m store.MessageFilter) ([]store.Message, error) {
	list, err := a.core.DB.Messages(ctx, m, a.core.Begin(flow.RequestInfo{}).Now)
	return list, refusal.Failure("outbox", err)
}

// AdminResend makes a message due now if it is pending, or if it has failed and its link or code is still valid.
func (a *Users) AdminResend(ctx context.Context, id uuid.UUID) (store.Message, error) {
	m, err := a.core.DB.ResendMessage(ctx, id, a.core.Begin(flow.RequestInfo{}).Now)
	if errors.Is(err, store.ErrNotFound) {
		return m, refusal.Missing(refusal.CodeNotFound,
			"No such message can be sent: it was sent, or its link or code is no longer good")
	}
	if err == nil {
		a.core.Wake()
	}
	return m, refusal.Failure("resend", err)
}

// AuditLog returns one page of the audit log, newest first, and how many rows match the filter.
func (a *Users) AuditLog(ctx context.Context, f store.AuditFilter) ([]store.AuditRow, int, error) {
	f.Author = flow.StorableText(f.Author)
	page, total, err := a.core.DB.AuditLog(ctx, f)
	return page, total, refusal.Failure("audit log", err)
}

// AdminDelete deletes a user with all data. If soft is set, the user's ID stays without personal data, and the
// addresses become free for other users. Pending mails to the user are dropped.
func (a *Users) AdminDelete(ctx context.Context, req flow.RequestInfo, by flow.Actor, id uuid.UUID, soft bool) error {
	f := a.core.Begin(req)
	err := flow.OnUser(ctx, f, id, func(tx *flow.Tx, u store.User) error {
		b := tx.Batch()
		switch {
		case !soft:
			b.DeleteUser(id)
			b.CancelMessages(id, f.Now)
		case u.DeletedAt.IsZero():
			b.EraseUser(store.EraseUser{ID: id, Now: f.Now, Email: erasedAddress(f, id, u.Email),
				Phone: erasedAddress(f, id, u.Phone)[:15]})
			b.CancelMessages(id, f.Now)
		}
		b.Audit(by.Audit(f, store.ActionUserDeleted, "user_id", id.String()))
		return b.Send(ctx)
	})
	return refusal.Failure("delete user", err)
}

// erasedAddress returns the text that replaces the address of a softly deleted user. It is a MAC, since a plain hash of
// a phone number could be reversed by trying all numbers.
func erasedAddress(f *flow.Flow, id uuid.UUID, who string) string {
	return base64.RawURLEncoding.EncodeToString(f.Core.Root.MAC(secret.FauxUser, "deleted", id.String(), who))
}

// AdminClaim makes an account accessible only to the owner of its confirmed address: it removes every other way to sign
// in, and mails a recovery link to the owner. It is for an owner who has confirmed an account that a stranger had
// prepared: a recovery alone would leave the stranger's phone, factors and identities in the account.
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

// dropAccess adds the statements that remove everything from an account except its address, metadata and bans.
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
	b.DeleteFactors(u.ID) // their challenges are deleted too
	b.DeletePlaces(u.ID)
}

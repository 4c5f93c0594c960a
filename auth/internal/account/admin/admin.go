// Package admin holds the flows of administrators: list, create, change, claim and delete users, see the outbox and
// read the audit log.
package admin

import (
	"context"
	"encoding/base64"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// Users has the entry points of the flows of administrators. Its methods may be called from any goroutine.
type Users struct{ core *flow.Core }

// New returns the flows over what they share.
func New(k *flow.Core) *Users { return &Users{k} }

// AdminUsers returns one page of users, and their total if the filter requests it. A filter without an audience selects
// the default audience.
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

// AdminEndSession ends one session of a user. Codes that were issued and not yet exchanged stay valid.
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

// AdminEndSessions ends all sessions of a user, and voids codes that were issued and not yet exchanged.
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

// AdminOutbox returns one page of the mails and SMS, newest first, without their contents.
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

// AuditLog returns one page of the log, newest first, and how many rows the filter finds.
func (a *Users) AuditLog(ctx context.Context, f store.AuditFilter) ([]store.AuditRow, int, error) {
	f.Author = flow.StorableText(f.Author)
	page, total, err := a.core.DB.AuditLog(ctx, f)
	return page, total, refusal.Failure("audit log", err)
}

// AdminDelete deletes a user with all data. If soft, the ID stays without personal data, and the addresses become free.
// Pending mails to the user are dropped.
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

// erasedAddress returns what replaces an erased address. It is a MAC: a plain digest of a phone number could be
// reversed by trying all numbers.
func erasedAddress(f *flow.Flow, id uuid.UUID, who string) string {
	return base64.RawURLEncoding.EncodeToString(f.Core.Root.MAC(secret.FauxUser, "deleted", id.String(), who))
}

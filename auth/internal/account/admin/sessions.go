package admin

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// AdminEndSession ends one session of a user; codes that were issued and not yet exchanged stay good.
func (a *Users) AdminEndSession(ctx context.Context, req flow.RequestInfo, by flow.Actor, user, session uuid.UUID) error {
	f := a.core.Begin(req)
	err := f.Core.DB.EndSession(ctx, store.EndSession{User: user, Session: session, Reason: store.EndedByAdmin,
		Audit: by.Audit(f, store.ActionSessionEnded, "user_id", user.String(), "session_id", session.String())})
	if errors.Is(err, store.ErrNotFound) {
		return refusal.Missing(refusal.CodeSessionNotFound, "Session not found")
	}
	return refusal.Failure("end session", err)
}

// AdminEndSessions ends all sessions of a user, with the codes that were issued and not yet exchanged.
func (a *Users) AdminEndSessions(ctx context.Context, req flow.RequestInfo, by flow.Actor, user uuid.UUID) error {
	f := a.core.Begin(req)
	err := f.Commit(ctx, func(tx *flow.Tx) error {
		if _, err := tx.LockUser(ctx, user); err != nil {
			return err
		}
		b := tx.Batch()
		b.EndSessions(store.EndSessions{User: user, Reason: store.EndedByAdmin, At: f.Now})
		b.Audit(by.Audit(f, store.ActionSessionEnded, "user_id", user.String()))
		return b.Send(ctx)
	})
	if errors.Is(err, store.ErrNotFound) {
		return flow.ErrNoUser
	}
	return refusal.Failure("end sessions", err)
}

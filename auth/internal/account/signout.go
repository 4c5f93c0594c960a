package account

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

var scopes = map[string]store.Scope{"": store.ScopeGlobal, "global": store.ScopeGlobal, "local": store.ScopeLocal,
	"others": store.ScopeOthers}

// SignOut ends sessions, in one round trip. given says whether there was a scope at all: without one only the refresh
// tokens are deleted. A valid token is accepted even if its session is gone or its user is banned: the caller wants to
// be signed out, and is.
func (a *Accounts) SignOut(ctx context.Context, req RequestInfo, bearer, scope string, given bool) error {
	f := a.core.Begin(req)
	var claims token.Claims
	user, session, err := f.core.readIDs(&claims, bearer, f.now)
	if err != nil {
		return err
	}
	how, ok := scopes[scope]
	if !ok {
		return notValid(fmt.Sprintf("Unsupported logout scope %.100q", scope))
	}
	if !given {
		how = store.ScopeTokens
	}
	if session == uuid.Nil && (how == store.ScopeLocal || how == store.ScopeOthers) {
		return notValid("Logout scope \"" + scope + "\" needs a token with a session")
	}
	_, err = f.core.db.SignOut(ctx, store.SignOut{User: user, Session: session, Scope: how, Now: f.now, IP: f.req.IP})
	return failure("sign out", err)
}

// Sessions returns the user's own, newest first, with the ended ones that are still kept.
func (a *Accounts) Sessions(ctx context.Context, principal Principal) ([]store.Session, error) {
	list, err := a.core.db.Sessions(ctx, principal.User.ID)
	return list, failure("sessions", err)
}

// EndSession ends one of the user's own sessions, possibly the current one.
func (a *Accounts) EndSession(ctx context.Context, req RequestInfo, principal Principal, session uuid.UUID) error {
	f := a.core.Begin(req)
	err := f.core.db.EndSession(ctx,
		store.EndSession{User: principal.User.ID, Session: session, Reason: store.EndedByUser,
			Audit: f.audit(store.ActionSessionEnded, principal.User.ID, principal.Session.ID, "session_id",
				session.String())})
	if errors.Is(err, store.ErrNotFound) {
		return missing(CodeSessionNotFound, "Session not found")
	}
	return failure("end session", err)
}

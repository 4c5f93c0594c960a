package account

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

var scopes = map[string]store.Scope{"": store.ScopeGlobal, "global": store.ScopeGlobal, "local": store.ScopeLocal,
	"others": store.ScopeOthers}

// SignOut ends sessions, in one round trip. given says whether the request names a scope: if not, the sessions lose
// only their refresh tokens. A valid access token is accepted even if its session is gone or its user is banned, since
// the caller is then signed out as requested.
func (a *Accounts) SignOut(ctx context.Context, req flow.RequestInfo, bearer, scope string, given bool) error {
	f := a.core.Begin(req)
	var claims token.Claims
	user, session, err := f.Core.ReadIDs(&claims, bearer, f.Now)
	if err != nil {
		return err
	}
	how, ok := scopes[scope]
	if !ok {
		return refusal.NotValid(fmt.Sprintf("Unsupported logout scope %.100q", scope))
	}
	if !given {
		how = store.ScopeTokens
	}
	if session == uuid.Nil && (how == store.ScopeLocal || how == store.ScopeOthers) {
		return refusal.NotValid("Logout scope \"" + scope + "\" needs a token with a session")
	}
	_, err = f.Core.DB.SignOut(ctx, store.SignOut{User: user, Session: session, Scope: how, Now: f.Now, IP: f.Req.IP})
	return refusal.Failure("sign out", err)
}

// Sessions returns the user's own sessions, newest first, including ended sessions that have not been deleted yet.
func (a *Accounts) Sessions(ctx context.Context, principal flow.Principal) ([]store.Session, error) {
	list, err := a.core.DB.Sessions(ctx, principal.User.ID)
	return list, refusal.Failure("sessions", err)
}

// EndSession ends one of the user's own sessions, possibly the current one.
func (a *Accounts) EndSession(ctx context.Context, req flow.RequestInfo, principal flow.Principal,
	session uuid.UUID) error {
	f := a.core.Begin(req)
	err := f.Core.DB.EndSession(ctx,
		store.EndSession{User: principal.User.ID, Session: session, Reason: store.EndedByUser,
			Audit: f.Audit(store.ActionSessionEnded, principal.User.ID, principal.Session.ID, "session_id",
				session.String())})
	if errors.Is(err, store.ErrNotFound) {
		return flow.ErrNoSession
	}
	return refusal.Failure("end session", err)
}

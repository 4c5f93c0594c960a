package account

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// ConsoleLife is how long a sign-in at the admin console lasts at most.
const ConsoleLife = 8 * time.Hour

// SignInConsole opens a session at the admin console, without tokens. It runs the same statements and the same hash as
// SignInPassword. An account that may not administer is answered, and counted, like a wrong password.
func (a *Accounts) SignInConsole(ctx context.Context, req flow.RequestInfo,
	p Password) (store.User, store.Session, error) {
	f := a.core.Begin(req)
	provider, who, err := identifier(f.Settings, p)
	if err != nil {
		return store.User{}, store.Session{}, err
	}
	op := signInOp{f: *f, p: p, provider: provider, console: true}
	op.guesses = flow.ConsoleGuesses(f, f.Aud(), who)
	u, draft, err := op.run(ctx)
	if err != nil {
		return u, store.Session{}, err
	}
	return u, flow.OpenedSession(f, &draft), nil
}

// reasonConsoleRole is the reason in the audit log if the password is right but the user has no administrator's role.
const reasonConsoleRole = "console_role"

// refuseConsole returns nil if the user may sign in at the console, else the answer. r is the refusal of any sign-in of
// the user; nil if there is none.
func (op *signInOp) refuseConsole(ctx context.Context, u store.User, r *refusal.Refusal) error {
	reason := ""
	if r != nil {
		reason = r.Code
	} else if !slices.Contains(op.f.Settings.AdminRoles, u.Role) {
		reason = reasonConsoleRole
	}
	if reason != "" {
		return op.guesses.CountWrong(ctx, &op.f, u.ID, reason, errCredentials)
	}
	if !op.f.Settings.AdminRequireAAL2 {
		return nil
	}
	if err := op.f.Run(ctx, func(b *flow.Batch) { b.Factors(&u.Factors, u.ID) }); err != nil {
		return refusal.Failure("factors", err)
	}
	if !slices.ContainsFunc(u.Factors, store.Factor.Verified) {
		return op.guesses.RecordRefused(ctx, &op.f, u.ID, flow.ErrAdminAAL2)
	}
	return nil
}

// SignOutConsole ends a session of the console.
func (a *Accounts) SignOutConsole(ctx context.Context, req flow.RequestInfo, user, session uuid.UUID) error {
	f := a.core.Begin(req)
	_, err := f.Core.DB.SignOut(ctx, store.SignOut{User: user, Session: session, Scope: store.ScopeLocal, Now: f.Now,
		IP: f.Req.IP})
	return refusal.Failure("sign out", err)
}

package account

import (
	"context"
	"errors"
	"time"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// refreshRetry is when a client may try again: the client library waits 200 ms and more by itself.
const refreshRetry = time.Second

// Refresh rotates a refresh token, in one statement (docs/tokens.md#refresh-tokens). Every answer that is not about the
// token itself is a 503: any other makes the client library drop its session.
func (a *Accounts) Refresh(ctx context.Context, req RequestInfo, text string) (Grant, error) {
	f := a.core.Begin(req)
	r, err := f.core.codec.Parse(text)
	switch {
	case errors.Is(err, token.ErrRefreshForm) && !isFormerForm(f, text):
		return Grant{}, notValid("Refresh token is not valid")
	case err != nil:
		return Grant{}, errRefreshNotFound
	}
	if !f.core.rotations.allow(r.Session, f.settings.Sessions.RefreshBurst, f.now) {
		return Grant{}, unavailable(errors.New("account: refresh: too many rotations of one session"), refreshRetry)
	}
	made, err := customClaimsOfRefresh(ctx, f, r.Session)
	if err != nil {
		return Grant{}, err
	}
	out, err := f.core.db.Refresh(ctx, store.Refresh{
		Session: r.Session, SecretHash: r.SecretHash(), Counter: r.Counter, Now: f.now, UserAgent: f.req.UserAgent,
		IP:           f.req.IP,
		CreatedAfter: ago(f.now, f.settings.Sessions.Timebox), ActiveAfter: ago(f.now, f.settings.Sessions.Inactivity),
		LowAfter: ago(f.now, f.settings.Sessions.AllowLowAAL), SinglePerUser: f.settings.Sessions.SinglePerUser,
		ServerNow: f.core.serverNow(),
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Grant{}, errRefreshNotFound
	case err != nil:
		return Grant{}, unavailable(err, refreshRetry)
	}
	if !out.Rotated {
		err = f.settings.refreshRefusal(out, r.Counter, f.now)
	}
	if errors.Is(err, errReused) && f.settings.Sessions.Rotation {
		if err := f.core.db.EndByReuse(ctx, r.Session, f.now, f.req.IP); err != nil {
			return Grant{}, unavailable(err, refreshRetry)
		}
	}
	if err != nil {
		return Grant{}, err
	}
	if out.Rotated {
		f.core.rotations.take(r.Session, f.settings.Sessions.RefreshBurst, f.now)
	}
	if made == nil && f.settings.Hooks.Claims != nil { // the hook's read found a ban, say, that was lifted since
		return Grant{}, unavailable(errNoClaims, refreshRetry)
	}
	r.Counter = out.Session.Counter
	g, err := signGrant(f, out.User, out.Session, &r, made)
	if err != nil {
		return Grant{}, unavailable(err, refreshRetry)
	}
	return g, nil
}

// ago returns the earliest time within a limit; zero without one.
func ago(now time.Time, limit time.Duration) time.Time {
	if limit <= 0 {
		return time.Time{}
	}
	return now.Add(-limit)
}

var (
	errRefreshNotFound = invalid(CodeRefreshTokenNotFound, "Invalid Refresh Token: Refresh Token Not Found")
	errNoClaims        = errors.New("account: refresh: the hook of access tokens was not called")
	errReused          = invalid(CodeRefreshTokenAlreadyUsed, "Invalid Refresh Token: Already Used")
)

// refreshRefusal says why nothing was rotated; nil means that the child token is handed out once more.
func (s *Settings) refreshRefusal(out store.Refreshed, counter uint64, now time.Time) error {
	const expired = "Invalid Refresh Token: Session Expired"
	v := out.Session
	switch {
	case out.User.BannedUntil.After(now):
		return invalid(CodeUserBanned, "Invalid Refresh Token: User Banned")
	case v.Ended() || !out.User.DeletedAt.IsZero():
		return errRefreshNotFound
	case s.isOutlived(v, now):
		return invalid(CodeSessionExpired, expired)
	case s.isExpired(v, now):
		return invalid(CodeSessionExpired, expired+" (Inactivity)")
	case s.isBelowAAL2TooLong(out.User, v, now):
		return invalid(CodeSessionExpired, expired+" (Low AAL: User Needs MFA Verification)")
	case out.NewerLogin:
		return invalid(CodeSessionExpired, expired+" (Revoked by Newer Login)")
	case counter >= v.Counter:
		// Ours by its MAC and never issued: the database was restored to an older state.
		return errRefreshNotFound
	case counter+1 == v.Counter && (!s.Sessions.Rotation || out.RotatedAgo <= s.Sessions.ReuseInterval):
		return nil
	}
	return errReused
}

package account

import (
	"context"
	"errors"
	"time"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// Refresh rotates a refresh token with one statement (docs/tokens.md#refresh-tokens). Every failure that is not about
// the token itself is a 503, since at any other status the client library drops its session.
func (a *Accounts) Refresh(ctx context.Context, req flow.RequestInfo, text string) (flow.Grant, error) {
	f := a.core.Begin(req)
	r, err := f.Core.Codec.Parse(text)
	switch {
	case errors.Is(err, token.ErrRefreshForm) && !isFormerForm(f, text):
		return flow.Grant{}, refusal.NotValid("Refresh token is not valid")
	case err != nil:
		return flow.Grant{}, errRefreshNotFound
	}
	if !f.Core.Rotations.Allow(r.Session, f.Settings.Sessions.RefreshBurst, f.Now) {
		return flow.Grant{}, refusal.Unavailable(errors.New("account: refresh: too many rotations of one session"),
			flow.RefreshRetry)
	}
	made, err := flow.CustomClaimsOfRefresh(ctx, f, r.Session)
	if err != nil {
		return flow.Grant{}, err
	}
	out, err := f.Core.DB.Refresh(ctx, store.Refresh{
		Session: r.Session, SecretHash: r.SecretHash(), Counter: r.Counter, Now: f.Now, UserAgent: f.Req.UserAgent,
		IP:           f.Req.IP,
		CreatedAfter: ago(f.Now, f.Settings.Sessions.Timebox), ActiveAfter: ago(f.Now, f.Settings.Sessions.Inactivity),
		LowAfter: ago(f.Now, f.Settings.Sessions.AllowLowAAL), SinglePerUser: f.Settings.Sessions.SinglePerUser,
		ServerNow: f.Core.ServerNow(),
	})
	switch {
	case errors.Is(err, store.ErrNotFound):
		return flow.Grant{}, errRefreshNotFound
	case err != nil:
		return flow.Grant{}, refusal.Unavailable(err, flow.RefreshRetry)
	}
	if !out.Rotated {
		err = refreshRefusal(f.Settings, out, r.Counter, f.Now)
	}
	if errors.Is(err, errReused) && f.Settings.Sessions.Rotation {
		if err := f.Core.DB.EndByReuse(ctx, r.Session, f.Now, f.Req.IP); err != nil {
			return flow.Grant{}, refusal.Unavailable(err, flow.RefreshRetry)
		}
	}
	if err != nil {
		return flow.Grant{}, err
	}
	if out.Rotated {
		f.Core.Rotations.Take(r.Session, f.Settings.Sessions.RefreshBurst, f.Now)
	}
	// A hook of access tokens is configured, but it was not called, perhaps because the user was still banned just
	// before the refresh. Without the hook's claims no access token may be signed.
	if made == nil && f.Settings.Hooks.Claims != nil {
		return flow.Grant{}, refusal.Unavailable(errNoClaims, flow.RefreshRetry)
	}
	r.Counter = out.Session.Counter
	g, err := flow.SignGrant(f, out.User, out.Session, &r, made)
	if err != nil {
		return flow.Grant{}, refusal.Unavailable(err, flow.RefreshRetry)
	}
	return g, nil
}

// ago returns the time now minus limit. If limit is 0 or less, which means that nothing is limited, it returns the zero
// time.
func ago(now time.Time, limit time.Duration) time.Time {
	if limit <= 0 {
		return time.Time{}
	}
	return now.Add(-limit)
}

var (
	errRefreshNotFound = refusal.Invalid(refusal.CodeRefreshTokenNotFound,
		"Invalid Refresh Token: Refresh Token Not Found")
	errNoClaims = errors.New("account: refresh: the hook of access tokens was not called")
	errReused   = refusal.Invalid(refusal.CodeRefreshTokenAlreadyUsed, "Invalid Refresh Token: Already Used")
)

// refreshRefusal returns why a refresh token was not rotated. It returns nil if the answer may contain the session's
// current refresh token once more: the given token is the one just before it, and either it was used at most
// ReuseInterval ago or rotation is off.
func refreshRefusal(s *flow.Settings, out store.Refreshed, counter uint64, now time.Time) error {
	const expired = "Invalid Refresh Token: Session Expired"
	v := out.Session
	switch {
	case out.User.BannedUntil.After(now):
		return refusal.Invalid(refusal.CodeUserBanned, "Invalid Refresh Token: User Banned")
	case v.Ended() || !out.User.DeletedAt.IsZero():
		return errRefreshNotFound
	case s.IsOutlived(v, now):
		return refusal.Invalid(refusal.CodeSessionExpired, expired)
	case s.IsExpired(v, now):
		return refusal.Invalid(refusal.CodeSessionExpired, expired+" (Inactivity)")
	case s.IsBelowAAL2TooLong(out.User, v, now):
		return refusal.Invalid(refusal.CodeSessionExpired, expired+" (Low AAL: User Needs MFA Verification)")
	case out.NewerLogin:
		return refusal.Invalid(refusal.CodeSessionExpired, expired+" (Revoked by Newer Login)")
	case counter >= v.Counter:
		// The MAC is valid, but the token is unknown: the database was restored from a backup that is older than the
		// token.
		return errRefreshNotFound
	case counter+1 == v.Counter && (!s.Sessions.Rotation || out.RotatedAgo <= s.Sessions.ReuseInterval):
		return nil
	}
	return errReused
}

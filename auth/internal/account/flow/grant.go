package flow

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// These are the values of the access token's claim amr (authentication method) that several packages use. Further
// values are defined in the packages that use them.
const (
	MethodPassword  = "password"
	MethodOTP       = "otp"
	MethodAnonymous = "anonymous"
	MethodPasskey   = "passkey"
)

// SessionDraft is a session with its first refresh token, before it is stored.
type SessionDraft struct {
	Row    store.NewSession
	First  token.Refresh
	method string
}

// NewSession prepares a session of the user, who has signed in by the given method, a value of the claim amr. It stores
// nothing.
func NewSession(f *Flow, user uuid.UUID, method string) SessionDraft {
	o := SessionDraft{method: method, First: token.Refresh{Session: uuid.New(), Secret: token.NewRefreshSecret()}}
	o.Row = store.NewSession{
		ID: o.First.Session, User: user, SecretHash: o.First.SecretHash(), At: f.Now,
		UserAgent: f.Req.UserAgent, IP: f.Req.IP, Tag: cmp.Or(f.Settings.Sessions.Tags...), AAL: 1,
		AMR: MustJSON([]token.AMR{{Method: method, Timestamp: f.Now.Unix()}}), Place: PlaceMAC(f),
	}
	return o
}

// SetID gives the draft the ID of a session that is stored already.
func (o *SessionDraft) SetID(id uuid.UUID) { o.Row.ID, o.First.Session = id, id }

// EnforceSessionLimit ends the user's sessions that exceed SESSIONS_MAX_PER_USER. If it fails, the user is signed in
// all the same: the next sign-in enforces the limit again.
func EnforceSessionLimit(ctx context.Context, f *Flow, user uuid.UUID) {
	if f.Settings.Sessions.MaxPerUser <= 0 {
		return
	}
	b := f.Batch()
	b.EnforceSessionLimit(user, f.Settings.Sessions.MaxPerUser, f.Now)
	if err := b.Send(ctx); err != nil {
		f.Core.Log.Warn("surplus sessions were not ended", "user", user, "error", err)
	}
}

// OpenedSession counts a sign-in whose session has just been stored, and returns the stored session.
func OpenedSession(f *Flow, o *SessionDraft) store.Session {
	if f.Core.signedIn != nil {
		f.Core.signedIn(o.method)
	}
	return o.stored()
}

// stored returns the session as the database has it once the draft is stored.
func (o *SessionDraft) stored() store.Session {
	return store.Session{ID: o.Row.ID, UserID: o.Row.User, CreatedAt: o.Row.At, RefreshedAt: o.Row.At, AAL: o.Row.AAL,
		AMR: o.Row.AMR, NotAfter: o.Row.NotAfter}
}

// claims returns the claims of an access token for session v of user u, whose factors must have been read.
func (s *Settings) claims(u store.User, v store.Session, now time.Time) (token.Claims, error) {
	expires := now.Add(s.AccessLife)
	if box := v.CreatedAt.Add(s.Sessions.Timebox); s.Sessions.Timebox > 0 && box.Before(expires) {
		expires = box
	}
	if end := v.CreatedAt.Add(s.Sessions.AllowLowAAL); s.Sessions.AllowLowAAL > 0 &&
		IsBelowAAL2(u, v) && end.Before(expires) {
		expires = end
	}
	if !v.NotAfter.IsZero() && v.NotAfter.Before(expires) {
		expires = v.NotAfter
	}
	// Clients treat an expiry in 0 seconds as no session.
	seconds := max(1, expires.Unix()-now.Unix())
	claims := token.Claims{
		Issuer: s.Issuer, Subject: u.ID.String(), Audience: u.Aud, ExpiresAt: now.Unix() + seconds,
		IssuedAt: now.Unix(),
		ID:       token.NewID(),
		Email:    u.Email, Phone: u.Phone, AppMetadata: u.AppMetadata, UserMetadata: u.UserMetadata, Role: u.Role,
		AAL: fmt.Sprintf("aal%d", v.AAL), SessionID: v.ID.String(), IsAnonymous: u.IsAnonymous,
	}
	if err := json.Unmarshal(v.AMR, &claims.AMR); err != nil {
		return claims, fmt.Errorf("account: amr of session %s: %w", v.ID, err)
	}
	return claims, nil
}

// SignGrant signs the access token of session v and encodes its refresh token r. made has the claims that the
// operator's hook of access tokens returned. If made is nil, the claims come from u, whose factors must have been read,
// and v.
func SignGrant(f *Flow, u store.User, v store.Session, r *token.Refresh, made *CustomClaims) (Grant, error) {
	var access []byte
	var expires int64
	if made != nil {
		var err error
		if access, err = f.Core.Keys.Load().SignPayload(nil, made.text); err != nil {
			return Grant{}, fmt.Errorf("account: sign: %w", err)
		}
		expires = made.expires
	} else {
		claims, err := f.Settings.claims(u, v, f.Now)
		if err != nil {
			return Grant{}, err
		}
		if access, err = f.Core.Keys.Load().Sign(nil, &claims); err != nil {
			return Grant{}, fmt.Errorf("account: sign: %w", err)
		}
		expires = claims.ExpiresAt
	}
	return Grant{
		AccessToken: string(access), RefreshToken: string(f.Core.Codec.Append(nil, r)),
		ExpiresAt: time.Unix(expires, 0).UTC(), ExpiresIn: int(max(1, expires-f.Now.Unix())), User: u, Session: v.ID,
	}, nil
}

// CustomClaims asks the hook of access tokens for the claims of the session. The session need not be stored yet.
func (o *SessionDraft) CustomClaims(ctx context.Context, f *Flow, u store.User) (*CustomClaims, error) {
	return CustomClaimsOf(ctx, f, u, o.stored(), "")
}

// Grant counts the sign-in and returns the tokens of the session, which has just been stored. made has the claims of
// the hook of access tokens; nil: there is no such hook.
func (o *SessionDraft) Grant(f *Flow, u store.User, made *CustomClaims) (Grant, error) {
	return SignGrant(f, u, OpenedSession(f, o), &o.First, made)
}

// GrantNew asks the hook of access tokens for claims, and returns the tokens of the session, which has just been
// stored. If the hook fails or refuses, it ends the session.
func GrantNew(ctx context.Context, f *Flow, u store.User, draft *SessionDraft) (Grant, error) {
	made, err := draft.CustomClaims(ctx, f, u)
	if err != nil {
		b := f.Batch()
		b.EndSessions(store.EndSessions{User: u.ID, Only: draft.Row.ID, Reason: store.EndedByHook, At: f.Now})
		if err := b.Send(context.WithoutCancel(ctx)); err != nil {
			f.Core.Log.Warn("a session that got no token was not ended", "session", draft.Row.ID, "error", err)
		}
		return Grant{}, err
	}
	return draft.Grant(f, u, made)
}

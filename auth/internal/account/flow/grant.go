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

// Some amr methods of a session.
const (
	MethodPassword  = "password"
	MethodOTP       = "otp"
	MethodAnonymous = "anonymous"
	MethodPasskey   = "passkey"
)

// SessionDraft is a session that is not stored yet, with its first refresh token.
type SessionDraft struct {
	Row    store.NewSession
	First  token.Refresh
	method string
}

// NewSession prepares a session. Nothing is stored yet.
func NewSession(f *Flow, user uuid.UUID, method string) SessionDraft {
	o := SessionDraft{method: method, First: token.Refresh{Session: uuid.New(), Secret: token.NewRefreshSecret()}}
	o.Row = store.NewSession{
		ID: o.First.Session, User: user, SecretHash: o.First.SecretHash(), At: f.Now,
		UserAgent: f.Req.UserAgent, IP: f.Req.IP, Tag: cmp.Or(f.Settings.Sessions.Tags...), AAL: 1,
		AMR: MustJSON([]token.AMR{{Method: method, Timestamp: f.Now.Unix()}}), Place: PlaceMAC(f),
	}
	return o
}

// SetID gives the session an ID that is stored elsewhere already.
func (o *SessionDraft) SetID(id uuid.UUID) { o.Row.ID, o.First.Session = id, id }

// EnforceSessionLimit ends the sessions that exceed the limit per user. A failure does not keep the user from signing
// in: the next sign-in enforces the limit again.
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

// OpenedSession counts the sign-in and returns the session as it is stored.
func OpenedSession(f *Flow, o *SessionDraft) store.Session {
	if f.Core.signedIn != nil {
		f.Core.signedIn(o.method)
	}
	return o.stored()
}

// stored returns the session as it is stored.
func (o *SessionDraft) stored() store.Session {
	return store.Session{ID: o.Row.ID, UserID: o.Row.User, CreatedAt: o.Row.At, RefreshedAt: o.Row.At, AAL: o.Row.AAL,
		AMR: o.Row.AMR, NotAfter: o.Row.NotAfter}
}

// claims returns the claims of a session's access token; u must have its factors.
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
	// Clients take 0 seconds for no session.
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

// SignGrant signs the access token of a session and encodes the refresh token. made has the claims from the hook of
// access tokens; if it is nil, the claims come from the user, with factors, and the session as they are stored now.
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

// CustomClaims is CustomClaimsOf for the session, before or after it is stored.
func (o *SessionDraft) CustomClaims(ctx context.Context, f *Flow, u store.User) (*CustomClaims, error) {
	return CustomClaimsOf(ctx, f, u, o.stored(), "")
}

// Grant is SignGrant for the session, which has just been stored: it counts the sign-in.
func (o *SessionDraft) Grant(f *Flow, u store.User, made *CustomClaims) (Grant, error) {
	return SignGrant(f, u, OpenedSession(f, o), &o.First, made)
}

// GrantNew is Grant with the claims of the hook. The session is ended if no token can be given for it.
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

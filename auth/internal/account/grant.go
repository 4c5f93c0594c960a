package account

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// The amr methods of a session.
const (
	methodPassword  = "password"
	methodOTP       = "otp"
	methodAnonymous = "anonymous"
)

// sessionDraft is a session that is about to be stored, with its first refresh token.
type sessionDraft struct {
	row    store.NewSession
	first  token.Refresh
	method string
}

// newSession prepares a session. Nothing is stored yet.
func newSession(f *flow, user uuid.UUID, method string) sessionDraft {
	o := sessionDraft{method: method, first: token.Refresh{Session: uuid.New(), Secret: token.NewRefreshSecret()}}
	o.row = store.NewSession{
		ID: o.first.Session, User: user, SecretHash: o.first.SecretHash(), At: f.now,
		UserAgent: f.req.UserAgent, IP: f.req.IP, Tag: f.settings.tag(), AAL: 1,
		AMR: mustJSON([]token.AMR{{Method: method, Timestamp: f.now.Unix()}}), Place: placeMAC(f),
	}
	return o
}

// setID gives the session an ID that was stored elsewhere before.
func (o *sessionDraft) setID(id uuid.UUID) { o.row.ID, o.first.Session = id, id }

func (s *Settings) tag() string {
	if len(s.Sessions.Tags) == 0 {
		return ""
	}
	return s.Sessions.Tags[0]
}

// enforceSessionLimit ends the sessions that exceed the limit per user. A failure does not keep the user from signing
// in: the next sign-in enforces the limit again.
func enforceSessionLimit(ctx context.Context, f *flow, user uuid.UUID) {
	if f.settings.Sessions.MaxPerUser <= 0 {
		return
	}
	b := f.batch()
	b.EnforceSessionLimit(user, f.settings.Sessions.MaxPerUser, f.now)
	if err := b.Send(ctx); err != nil {
		f.core.log.Warn("surplus sessions were not ended", "user", user, "error", err)
	}
}

// openedSession counts the sign-in and returns the session as it will be read back.
func openedSession(f *flow, o *sessionDraft) store.Session {
	if f.core.signedIn != nil {
		f.core.signedIn(o.method)
	}
	return o.stored()
}

// stored returns the session as it will be read back.
func (o *sessionDraft) stored() store.Session {
	return store.Session{ID: o.row.ID, UserID: o.row.User, CreatedAt: o.row.At, RefreshedAt: o.row.At, AAL: o.row.AAL,
		AMR: o.row.AMR, NotAfter: o.row.NotAfter}
}

// claims returns those of a session's access token; u has its factors.
func (s *Settings) claims(u store.User, v store.Session, now time.Time) (token.Claims, error) {
	expires := now.Add(s.AccessLife)
	if box := v.CreatedAt.Add(s.Sessions.Timebox); s.Sessions.Timebox > 0 && box.Before(expires) {
		expires = box
	}
	if end := v.CreatedAt.Add(s.Sessions.AllowLowAAL); s.Sessions.AllowLowAAL > 0 &&
		isBelowAAL2(u, v) && end.Before(expires) {
		expires = end
	}
	if !v.NotAfter.IsZero() && v.NotAfter.Before(expires) {
		expires = v.NotAfter
	}
	// Clients take 0 for no session at all.
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

// signGrant signs the access token of a session and encodes the refresh token. All claims come from what the database
// holds now, u with its factors, unless the hook of access tokens made them: made is nil without it.
func signGrant(f *flow, u store.User, v store.Session, r *token.Refresh, made *customClaims) (Grant, error) {
	var access []byte
	var expires int64
	if made != nil {
		var err error
		if access, err = f.core.keys.Load().SignPayload(nil, made.text); err != nil {
			return Grant{}, fmt.Errorf("account: sign: %w", err)
		}
		expires = made.expires
	} else {
		claims, err := f.settings.claims(u, v, f.now)
		if err != nil {
			return Grant{}, err
		}
		if access, err = f.core.keys.Load().Sign(nil, &claims); err != nil {
			return Grant{}, fmt.Errorf("account: sign: %w", err)
		}
		expires = claims.ExpiresAt
	}
	return Grant{
		AccessToken: string(access), RefreshToken: string(f.core.codec.Append(nil, r)),
		ExpiresAt: time.Unix(expires, 0).UTC(), ExpiresIn: int(max(1, expires-f.now.Unix())), User: u, Session: v.ID,
	}, nil
}

// grantNew is signGrant for a session that has just been stored. The session is ended if no token can be given for it.
func grantNew(ctx context.Context, f *flow, u store.User, draft *sessionDraft) (Grant, error) {
	v := draft.stored()
	made, err := customClaimsOf(ctx, f, u, v, "")
	if err != nil {
		b := f.batch()
		b.EndSessions(store.EndSessions{User: u.ID, Only: v.ID, Reason: store.EndedByHook, At: f.now})
		if err := b.Send(context.WithoutCancel(ctx)); err != nil {
			f.core.log.Warn("a session that got no token was not ended", "session", v.ID, "error", err)
		}
		return Grant{}, err
	}
	return signGrant(f, u, openedSession(f, draft), &draft.first, made)
}

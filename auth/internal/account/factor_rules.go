package account

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// A session is of aal1 however it was opened, and of aal2 from when a factor was verified in it until that
// factor goes. An access token acts at the lower of its own level and its session's: a token issued before the
// session was raised stays at aal1, and one issued before the factor was removed is worth no more than the session.

// factorMethod is the amr method of a factor.
func factorMethod(k store.FactorKind) string {
	if k == store.FactorPhone {
		return "mfa/phone"
	}
	return string(k)
}

// hasFactor says that a user can reach aal2. Known only of a user who was read with his factors.
func hasFactor(u store.User) bool {
	return slices.ContainsFunc(u.Factors, store.Factor.Verified)
}

// isBelowAAL2 says that a session is below the level that its user can reach.
func isBelowAAL2(u store.User, v store.Session) bool { return v.AAL < 2 && hasFactor(u) }

// levelOf is the session as its access token may act in it.
func levelOf(v store.Session, c *token.Claims) store.Session {
	if c.AAL != "aal2" {
		v.AAL = min(v.AAL, 1)
	}
	return v
}

// isBelowAAL2TooLong says that a session has been below that level for too long (SESSIONS_ALLOW_LOW_AAL).
func (s *Settings) isBelowAAL2TooLong(u store.User, v store.Session, now time.Time) bool {
	return s.Sessions.AllowLowAAL > 0 && now.After(v.CreatedAt.Add(s.Sessions.AllowLowAAL)) && isBelowAAL2(u, v)
}

var (
	errPrincipalGone = denied(CodeUserNotFound, "User from sub claim in JWT does not exist")
	errNoFactor      = missing(CodeFactorNotFound, "Factor not found")
)

// factorOf finds one of a user's own factors: somebody else's is as unknown as none.
func factorOf(u store.User, id uuid.UUID) (store.Factor, error) {
	for _, factor := range u.Factors {
		if factor.ID == id {
			return factor, nil
		}
	}
	return store.Factor{}, errNoFactor
}

// lockPrincipal locks the caller and reads what he and his session are now: since he was let in, somebody may
// have put him out, or taken a factor from him.
func lockPrincipal(ctx context.Context, f *flow, tx *store.Tx, principal Principal, reads ...func(*store.Batch)) (store.User, store.Session, error) {
	var v store.Session
	u, err := tx.LockUser(ctx, principal.User.ID)
	if errors.Is(err, store.ErrNotFound) {
		return u, v, errPrincipalGone
	}
	if err != nil {
		return u, v, err
	}
	b := tx.Batch()
	b.Factors(&u.Factors, u.ID)
	for _, read := range reads {
		read(b)
	}
	if principal.Session.ID != uuid.Nil {
		b.Session(&v, u.ID, principal.Session.ID)
	}
	if err := b.Send(ctx); err != nil {
		return u, v, err
	}
	switch {
	case !u.DeletedAt.IsZero():
		return u, v, errPrincipalGone
	case u.BannedUntil.After(f.now):
		return u, v, denied(CodeUserBanned, "User is banned")
	case principal.Session.ID == uuid.Nil:
		return u, v, nil
	case v.ID == uuid.Nil || v.Ended():
		return u, v, sessionNotFound()
	case f.settings.isExpired(v, f.now):
		return u, v, denied(CodeSessionExpired, "Session is no longer valid")
	}
	return u, levelOf(v, &principal.Claims), nil
}

// withMethod puts a method in front, newest first; the one of the same name goes. The other entries stay as
// they are.
func withMethod(old json.RawMessage, method string, now time.Time) json.RawMessage {
	list := []json.RawMessage{mustJSON(token.AMR{Method: method, Timestamp: now.Unix()})}
	var entries []json.RawMessage
	_ = json.Unmarshal(old, &entries) // it came out of PostgreSQL
	for _, e := range entries {
		var m token.AMR
		if json.Unmarshal(e, &m) == nil && m.Method != method {
			list = append(list, e)
		}
	}
	return mustJSON(list)
}

// factorNotification is the mail about a factor, if it is on and there is somebody to tell.
func factorNotification(f *flow, on bool, kind mail.Kind, u store.User, factor store.Factor) (store.NewMessage, bool) {
	if !on || u.Email == "" {
		return store.NewMessage{}, false
	}
	m := notification(f, kind, u.Email, mail.Vars{Email: u.Email, FactorType: string(factor.Kind), Data: u.UserMetadata})
	m.User = u.ID
	return m, true
}

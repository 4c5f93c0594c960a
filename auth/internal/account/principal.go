package account

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// Access says what a bearer token is used for.
type Access uint8

// Full access needs a live session. Reading the user needs only one that lost nothing but its refresh token: what POST
// /logout without a scope leaves of it.
const (
	Full Access = iota
	ReadUser
	// AnyAudience is Full with a token of any audience: the operation itself answers a mismatch.
	AnyAudience
)

// Principal is the user on whose behalf a request is made.
type Principal struct {
	User store.User // with identities and factors
	// Session has a Nil ID when the token names none. Its AAL is the level at which the token acts.
	Session store.Session
	Claims  token.Claims
}

// Actor is the administrator: a service, with a role and no ID, or a user with such a role.
type Actor struct {
	ID      uuid.UUID
	Session uuid.UUID
	Role    string
}

// String names the actor: the user's ID, or the role of a service.
func (a Actor) String() string {
	if a.ID != uuid.Nil {
		return a.ID.String()
	}
	return a.Role
}

// Authenticate checks an access token and what it names, in one statement and in the order of
// docs/api.md#checks-and-their-order. bearer is the token alone, "" without one; aud is the request's X-JWT-AUD, which
// must be the token's unless access is AnyAudience.
func (k *Core) Authenticate(ctx context.Context, bearer, aud string, access Access) (Principal, error) {
	s, now := k.live.Load(), k.now()
	var c Principal
	user, session, err := k.readIDs(&c.Claims, bearer, now)
	if err != nil && user == uuid.Nil {
		return Principal{}, err
	}
	c.User, c.Session, err = k.readPrincipal(ctx, user, session, err)
	if err != nil {
		return Principal{}, err
	}
	if session != uuid.Nil {
		if c.Session.Ended() && (access != ReadUser || !c.Session.Readable()) {
			return Principal{}, sessionNotFound()
		}
		if s.isExpired(c.Session, now) || s.isBelowAAL2TooLong(c.User, c.Session, now) {
			return Principal{}, denied(CodeSessionExpired, "Session is no longer valid")
		}
	}
	if c.User.BannedUntil.After(now) {
		return Principal{}, denied(CodeUserBanned, "User is banned")
	}
	if access != AnyAudience && s.isOtherAudience(aud, &c.Claims) {
		return Principal{}, notValid("Token audience doesn't match request audience")
	}
	c.Session = levelOf(c.Session, &c.Claims)
	return c, nil
}

// isOtherAudience reports whether a request works in another audience than its token's. The request's is the one that
// it names, else the default if the token has none. Tokens of admin roles belong to no audience.
func (s *Settings) isOtherAudience(asked string, c *token.Claims) bool {
	return !slices.Contains(s.AdminRoles, c.Role) && cmp.Or(asked, c.Audience, s.Audience) != c.Audience
}

// readIDs checks the token and returns the IDs in it. If only the session's is malformed, the user's is returned with
// the error: that the user exists is checked first.
func (k *Core) readIDs(c *token.Claims, bearer string, now time.Time) (user, session uuid.UUID, err error) {
	if err := k.verifyToken(c, bearer, now); err != nil {
		return user, session, err
	}
	if c.Subject == "" {
		return user, session, denied(CodeBadJWT, "invalid claim: missing sub claim")
	}
	if user, err = uuid.Parse(c.Subject); err != nil || len(c.Subject) != 36 {
		return uuid.Nil, session, invalid(CodeBadJWT, "invalid claim: sub claim must be a UUID")
	}
	if user == uuid.Nil { // of no user, as some make tokens for services
		return uuid.Nil, session, errPrincipalGone
	}
	if c.SessionID != "" {
		if session, err = uuid.Parse(c.SessionID); err != nil || len(c.SessionID) != 36 {
			return user, uuid.Nil, denied(CodeBadJWT, "invalid claim: session_id claim must be a UUID")
		}
	}
	return user, session, nil
}

func (k *Core) verifyToken(c *token.Claims, bearer string, now time.Time) error {
	if bearer == "" {
		return &Refusal{Kind: Unauthenticated, Code: CodeNoAuthorization,
			Msg: "This endpoint requires a valid Bearer token"}
	}
	if _, err := k.keys.Load().Verify(c, bearer, now); err != nil {
		return denied(CodeBadJWT, "invalid JWT: unable to parse or verify signature, "+err.Error())
	}
	return nil
}

// readPrincipal reads user and session; malformed is the error about the session's ID, if any.
func (k *Core) readPrincipal(ctx context.Context, user, session uuid.UUID,
	malformed error) (store.User, store.Session, error) {
	u, sess, err := k.db.Caller(ctx, user, session)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return u, sess, denied(CodeUserNotFound, "User from sub claim in JWT does not exist")
	case err != nil:
		return u, sess, failure("caller", err)
	case malformed != nil:
		return u, sess, malformed
	case session != uuid.Nil && (sess.ID == uuid.Nil || !u.DeletedAt.IsZero()):
		return u, sess, sessionNotFound()
	case !u.DeletedAt.IsZero():
		return u, sess, denied(CodeUserNotFound, "User from sub claim in JWT does not exist")
	}
	return u, sess, nil
}

func sessionNotFound() *Refusal {
	return denied(CodeSessionNotFound, "Session from session_id claim in JWT does not exist")
}

// isExpired reports whether a session is past its end by the rules: not_after, time box, inactivity.
func (s *Settings) isExpired(v store.Session, now time.Time) bool {
	return s.isOutlived(v, now) || s.Sessions.Inactivity > 0 && now.After(v.RefreshedAt.Add(s.Sessions.Inactivity))
}

// isOutlived is isExpired without the inactivity.
func (s *Settings) isOutlived(v store.Session, now time.Time) bool {
	return !v.NotAfter.IsZero() && !now.Before(v.NotAfter) ||
		s.Sessions.Timebox > 0 && now.After(v.CreatedAt.Add(s.Sessions.Timebox))
}

// IsAdmin reports whether AuthenticateAdmin accepts the token. Tokens of other roles, which every client sends, are
// rejected without the database. The error says that the answer is unknown.
func (k *Core) IsAdmin(ctx context.Context, bearer string) (bool, error) {
	var c token.Claims
	if bearer == "" || k.verifyToken(&c, bearer, k.now()) != nil ||
		!slices.Contains(k.live.Load().AdminRoles, c.Role) {
		return false, nil
	}
	_, err := k.AuthenticateAdmin(ctx, bearer)
	if r, ok := errors.AsType[*Refusal](err); ok && r.Kind != Failed && r.Kind != Unavailable {
		return false, nil
	}
	return err == nil, err
}

// AuthenticateAdmin checks a token whose role may administer. A service token names no session; a token with
// a session is only as good as its user and session, and needs aal2 when the user has a verified factor or
// AdminRequireAAL2 is set. With a refusal of a signed token comes what the token says of its bearer.
func (k *Core) AuthenticateAdmin(ctx context.Context, bearer string) (Actor, error) {
	s, now := k.live.Load(), k.now()
	var c token.Claims
	if err := k.verifyToken(&c, bearer, now); err != nil {
		return Actor{}, err
	}
	actor, reached := Actor{Role: c.Role}, true
	refused := func(err error) (Actor, error) { return actor, err }
	if c.SessionID != "" && c.SessionID != uuid.Nil.String() {
		user, session, err := k.readIDs(&c, bearer, now)
		if err != nil && user == uuid.Nil {
			return Actor{}, err
		}
		u, v, err := k.readPrincipal(ctx, user, session, err)
		actor.ID, actor.Session = u.ID, v.ID
		switch {
		case err != nil:
			return Actor{}, err
		case v.Ended():
			return refused(sessionNotFound())
		case s.isExpired(v, now) || s.isBelowAAL2TooLong(u, v, now):
			return refused(denied(CodeSessionExpired, "Session is no longer valid"))
		case u.BannedUntil.After(now):
			return refused(denied(CodeUserBanned, "User is banned"))
		}
		v = levelOf(v, &c)
		reached = v.AAL >= 2 || !hasFactor(u) && !s.AdminRequireAAL2
	}
	switch {
	case !slices.Contains(s.AdminRoles, c.Role):
		return refused(denied(CodeNotAdmin, "User not allowed"))
	case !reached:
		return refused(denied(CodeInsufficientAAL, "AAL2 session is required to administer users"))
	}
	return actor, nil
}

// RecordAdminRefusal records that a route of administrators was refused, at most once a minute for a user, or a role.
func (k *Core) RecordAdminRefusal(ctx context.Context, req RequestInfo, who Actor, code string) {
	f := k.Begin(req)
	row := f.audit(store.ActionAdminRefused, who.ID, who.Session, "reason", code)
	if who.ID == uuid.Nil {
		row.ActorRole = who.Role
	}
	b := f.batch()
	f.auditSeldom(b, "admin note", who.String(), row)
	if err := b.Send(ctx); err != nil {
		f.core.log.Warn("a refused administrator's route is not in the audit log", "error", err)
	}
}

// A session is of aal1 however it was opened, and of aal2 from when a factor was verified in it until that factor is
// removed. An access token acts at the lower of its own level and its session's: a token issued before the session was
// raised stays at aal1, and one issued before the factor was removed is worth no more than the session.

// hasFactor reports whether a user can reach aal2. u must have been read with its factors.
func hasFactor(u store.User) bool { return slices.ContainsFunc(u.Factors, store.Factor.Verified) }

// isBelowAAL2 reports whether a session is below the level that its user can reach.
func isBelowAAL2(u store.User, v store.Session) bool { return v.AAL < 2 && hasFactor(u) }

// levelOf returns the session at the level that its access token may act at.
func levelOf(v store.Session, c *token.Claims) store.Session {
	if c.AAL != "aal2" {
		v.AAL = min(v.AAL, 1)
	}
	return v
}

// isBelowAAL2TooLong reports whether a session has been below that level for longer than SESSIONS_ALLOW_LOW_AAL.
func (s *Settings) isBelowAAL2TooLong(u store.User, v store.Session, now time.Time) bool {
	return s.Sessions.AllowLowAAL > 0 && now.After(v.CreatedAt.Add(s.Sessions.AllowLowAAL)) && isBelowAAL2(u, v)
}

var errPrincipalGone = denied(CodeUserNotFound, "User from sub claim in JWT does not exist")

// lockPrincipal locks the user and reads the current user and session: since the request was authenticated, the session
// may have ended or a factor may have been removed.
func lockPrincipal(ctx context.Context, f *flow, tx *tx, principal Principal,
	reads ...func(*batch)) (store.User, store.Session, error) {
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

package flow

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// Access says what an access token is used for, which decides how Authenticate checks it.
type Access uint8

// Full access needs a session that has not ended. ReadUser, to read the user, also accepts a session that has lost only
// its refresh token, which POST /logout without a scope does.
const (
	Full Access = iota
	ReadUser
	// AnyAudience has the checks of Full, but accepts tokens of any audience. The operation itself refuses an audience
	// that does not match.
	AnyAudience
)

// Principal is the user on whose behalf a request is made. The request's access token names the user.
type Principal struct {
	User store.User // with identities and factors
	// Session is the token's session; its ID is Nil if the token names none. Session.AAL is the assurance level (1 or
	// 2) at which the token acts.
	Session store.Session
	Claims  token.Claims
}

// Actor is the administrator of a request: a service, whose token has a role and no user, or a user with an
// administrator's role.
type Actor struct {
	ID      uuid.UUID
	Session uuid.UUID
	Role    string
}

// String names the actor for logs: the user's ID or, for a service, its role.
func (a Actor) String() string {
	if a.ID != uuid.Nil {
		return a.ID.String()
	}
	return a.Role
}

// Authenticate checks an access token, and the user and session that it names, with one statement and in the order of
// docs/api.md#checks-and-their-order. bearer is the token without "Bearer "; "" if there is none. aud is the request's
// header X-JWT-AUD, which must name the token's audience unless access is AnyAudience.
func (k *Core) Authenticate(ctx context.Context, bearer, aud string, access Access) (Principal, error) {
	s, now := k.live.Load(), k.now()
	var c Principal
	user, session, err := k.ReadIDs(&c.Claims, bearer, now)
	if err != nil && user == uuid.Nil {
		return Principal{}, err
	}
	c.User, c.Session, err = k.readPrincipal(ctx, user, session, err)
	if err != nil {
		return Principal{}, err
	}
	if session != uuid.Nil {
		if c.Session.Ended() && (access != ReadUser || !c.Session.Readable()) {
			return Principal{}, SessionNotFound()
		}
		if s.IsExpired(c.Session, now) || s.IsBelowAAL2TooLong(c.User, c.Session, now) {
			return Principal{}, refusal.Denied(refusal.CodeSessionExpired, "Session is no longer valid")
		}
	}
	if c.User.BannedUntil.After(now) {
		return Principal{}, refusal.Denied(refusal.CodeUserBanned, "User is banned")
	}
	if access != AnyAudience && s.IsOtherAudience(aud, &c.Claims) {
		return Principal{}, refusal.NotValid("Token audience doesn't match request audience")
	}
	c.Session = levelOf(c.Session, &c.Claims)
	return c, nil
}

// IsOtherAudience reports whether the audience of a request differs from the audience of its token c. asked is the
// audience that the request names; "" stands for the token's audience or, if the token has none, for the default.
// Tokens of admin roles belong to no audience.
func (s *Settings) IsOtherAudience(asked string, c *token.Claims) bool {
	return !slices.Contains(s.AdminRoles, c.Role) && cmp.Or(asked, c.Audience, s.Audience) != c.Audience
}

// ReadIDs verifies the access token bearer, reads its claims into c and returns the IDs in them. If only the session's
// ID is malformed, it returns the user's ID with the error, so that the caller can report first that the user does not
// exist.
func (k *Core) ReadIDs(c *token.Claims, bearer string, now time.Time) (user, session uuid.UUID, err error) {
	if err := k.verifyToken(c, bearer, now); err != nil {
		return user, session, err
	}
	if c.Subject == "" {
		return user, session, refusal.Denied(refusal.CodeBadJWT, "invalid claim: missing sub claim")
	}
	if user, err = uuid.Parse(c.Subject); err != nil || len(c.Subject) != 36 {
		return uuid.Nil, session, refusal.Invalid(refusal.CodeBadJWT, "invalid claim: sub claim must be a UUID")
	}
	if user == uuid.Nil { // some operators make tokens without a user for services
		return uuid.Nil, session, ErrPrincipalGone
	}
	if c.SessionID != "" {
		if session, err = uuid.Parse(c.SessionID); err != nil || len(c.SessionID) != 36 {
			return user, uuid.Nil, refusal.Denied(refusal.CodeBadJWT, "invalid claim: session_id claim must be a UUID")
		}
	}
	return user, session, nil
}

func (k *Core) verifyToken(c *token.Claims, bearer string, now time.Time) error {
	if bearer == "" {
		return &refusal.Refusal{Kind: refusal.KindUnauthenticated, Code: refusal.CodeNoAuthorization,
			Msg: "This endpoint requires a valid Bearer token"}
	}
	if _, err := k.Keys.Load().Verify(c, bearer, now); err != nil {
		return refusal.Denied(refusal.CodeBadJWT, "invalid JWT: unable to parse or verify signature, "+err.Error())
	}
	return nil
}

// readPrincipal reads a user and one of the user's sessions. malformed is the error about the session's ID, if it could
// not be parsed; it is returned only if the user exists.
func (k *Core) readPrincipal(ctx context.Context, user, session uuid.UUID,
	malformed error) (store.User, store.Session, error) {
	u, sess, err := k.DB.Caller(ctx, user, session)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return u, sess, refusal.Denied(refusal.CodeUserNotFound, "User from sub claim in JWT does not exist")
	case err != nil:
		return u, sess, refusal.Failure("caller", err)
	case malformed != nil:
		return u, sess, malformed
	case session != uuid.Nil && (sess.ID == uuid.Nil || !u.DeletedAt.IsZero()):
		return u, sess, SessionNotFound()
	case !u.DeletedAt.IsZero():
		return u, sess, refusal.Denied(refusal.CodeUserNotFound, "User from sub claim in JWT does not exist")
	}
	return u, sess, nil
}

// SessionNotFound returns the refusal of an access token whose session does not exist or has ended.
func SessionNotFound() *refusal.Refusal {
	return refusal.Denied(refusal.CodeSessionNotFound, "Session from session_id claim in JWT does not exist")
}

// ErrNoSession is the refusal of a request whose path names a session that the user does not have.
var ErrNoSession = refusal.Missing(refusal.CodeSessionNotFound, "Session not found")

// IsExpired reports whether a session has reached its end: not_after, the longest life (SESSIONS_TIMEBOX) or the
// longest time without a refresh (SESSIONS_INACTIVITY_TIMEOUT).
func (s *Settings) IsExpired(v store.Session, now time.Time) bool {
	return s.IsOutlived(v, now) || s.Sessions.Inactivity > 0 && now.After(v.RefreshedAt.Add(s.Sessions.Inactivity))
}

// IsOutlived makes the checks of IsExpired except the check of inactivity.
func (s *Settings) IsOutlived(v store.Session, now time.Time) bool {
	return !v.NotAfter.IsZero() && !now.Before(v.NotAfter) ||
		s.Sessions.Timebox > 0 && now.After(v.CreatedAt.Add(s.Sessions.Timebox))
}

// IsAdmin reports whether AuthenticateAdmin accepts the token. It needs no query to reject tokens without an admin
// role, such as the tokens of ordinary users. It returns an error if the database could not be queried.
func (k *Core) IsAdmin(ctx context.Context, bearer string) (bool, error) {
	var c token.Claims
	if bearer == "" || k.verifyToken(&c, bearer, k.now()) != nil ||
		!slices.Contains(k.live.Load().AdminRoles, c.Role) {
		return false, nil
	}
	_, err := k.AuthenticateAdmin(ctx, bearer)
	if r, ok := errors.AsType[*refusal.Refusal](err); ok && r.Kind != refusal.KindFailed &&
		r.Kind != refusal.KindUnavailable {
		return false, nil
	}
	return err == nil, err
}

// AuthenticateAdmin checks a token whose role may administer. A service's token names no session. A token with a
// session needs a valid user and session, and aal2 if the user has a verified factor or AdminRequireAAL2 is set. If it
// refuses a token whose signature is valid, it also returns the Actor that the token names.
func (k *Core) AuthenticateAdmin(ctx context.Context, bearer string) (Actor, error) {
	s, now := k.live.Load(), k.now()
	var c token.Claims
	if err := k.verifyToken(&c, bearer, now); err != nil {
		return Actor{}, err
	}
	actor, reached := Actor{Role: c.Role}, true
	refused := func(err error) (Actor, error) { return actor, err }
	if c.SessionID != "" && c.SessionID != uuid.Nil.String() {
		user, session, err := k.ReadIDs(&c, bearer, now)
		if err != nil && user == uuid.Nil {
			return Actor{}, err
		}
		u, v, err := k.readPrincipal(ctx, user, session, err)
		actor.ID, actor.Session = u.ID, v.ID
		if err != nil {
			return Actor{}, err
		}
		if err := s.checkLive(u, v, now); err != nil {
			return refused(err)
		}
		reached = s.reachesAdmin(u, levelOf(v, &c))
	}
	if err := s.checkAdmin(c.Role, reached); err != nil {
		return refused(err)
	}
	return actor, nil
}

// checkLive returns why session v of user u cannot be used at the time now; nil if it can.
func (s *Settings) checkLive(u store.User, v store.Session, now time.Time) error {
	switch {
	case v.Ended():
		return SessionNotFound()
	case s.IsExpired(v, now) || s.IsBelowAAL2TooLong(u, v, now):
		return refusal.Denied(refusal.CodeSessionExpired, "Session is no longer valid")
	case u.BannedUntil.After(now):
		return refusal.Denied(refusal.CodeUserBanned, "User is banned")
	}
	return nil
}

// reachesAdmin reports whether a session's assurance level suffices to administer.
func (s *Settings) reachesAdmin(u store.User, v store.Session) bool {
	return v.AAL >= 2 || !hasFactor(u) && !s.AdminRequireAAL2
}

// checkAdmin returns why a user with this role cannot administer, or nil; reached is the result of reachesAdmin.
func (s *Settings) checkAdmin(role string, reached bool) error {
	switch {
	case !slices.Contains(s.AdminRoles, role):
		return refusal.Denied(refusal.CodeNotAdmin, "User not allowed")
	case !reached:
		return ErrAdminAAL2
	}
	return nil
}

// ErrAdminAAL2 is the refusal of an administrator's session at aal1 where aal2 is required.
var ErrAdminAAL2 = refusal.Denied(refusal.CodeInsufficientAAL, "AAL2 session is required to administer users")

// AuthenticateConsole checks a session of the admin console, with one statement, by the rules of AuthenticateAdmin. The
// session's assurance level is lowered to aal if it is higher. The user's role is the role that is stored now. If the
// error is ErrAdminAAL2, the principal is returned too, since the user may then verify a factor. The Actor is returned
// as soon as the user is known.
func (k *Core) AuthenticateConsole(ctx context.Context, user, session uuid.UUID, aal int) (Principal, Actor, error) {
	s, now := k.live.Load(), k.now()
	u, v, err := k.readPrincipal(ctx, user, session, nil)
	if err != nil {
		return Principal{}, Actor{}, err
	}
	v.AAL = min(v.AAL, aal)
	actor := Actor{ID: u.ID, Session: v.ID, Role: u.Role}
	if err := s.checkLive(u, v, now); err != nil {
		return Principal{}, actor, err
	}
	// The claim aal2 says that no access token lowers the level of the session v: there is none at the console.
	p := Principal{User: u, Session: v, Claims: token.Claims{Role: u.Role, AAL: "aal2"}}
	err = s.checkAdmin(u.Role, s.reachesAdmin(u, v))
	if err != nil && err != error(ErrAdminAAL2) {
		return Principal{}, actor, err
	}
	return p, actor, err
}

// RecordAdminRefusal writes an audit row that a request for an admin route was refused with code, at most once a minute
// for each user or role.
func (k *Core) RecordAdminRefusal(ctx context.Context, req RequestInfo, who Actor, code string) {
	f := k.Begin(req)
	row := f.Audit(store.ActionAdminRefused, who.ID, who.Session, "reason", code)
	if who.ID == uuid.Nil {
		row.ActorRole = who.Role
	}
	if err := f.Run(ctx, func(b *Batch) { f.AuditSeldom(b, "admin note", who.String(), row) }); err != nil {
		f.Core.Log.Warn("a refused administrator's route is not in the audit log", "error", err)
	}
}

// A session begins at assurance level aal1. It has aal2 from when a factor is verified in it until the factor is
// removed. An access token acts at the lower of its own level and the session's: a token issued before the session was
// raised stays at aal1, and a token issued before the factor was removed acts at the session's level.

// hasFactor reports whether a user has a verified factor, and so can reach aal2. u's factors must have been read.
func hasFactor(u store.User) bool { return slices.ContainsFunc(u.Factors, store.Factor.Verified) }

// IsBelowAAL2 reports whether session v is at aal1 although user u has a verified factor.
func IsBelowAAL2(u store.User, v store.Session) bool { return v.AAL < 2 && hasFactor(u) }

// levelOf returns v with its AAL lowered to the level of the access token c.
func levelOf(v store.Session, c *token.Claims) store.Session {
	if c.AAL != "aal2" {
		v.AAL = min(v.AAL, 1)
	}
	return v
}

// IsBelowAAL2TooLong reports whether a session of a user who can reach aal2 has been below it for longer than
// SESSIONS_ALLOW_LOW_AAL.
func (s *Settings) IsBelowAAL2TooLong(u store.User, v store.Session, now time.Time) bool {
	return s.Sessions.AllowLowAAL > 0 && now.After(v.CreatedAt.Add(s.Sessions.AllowLowAAL)) && IsBelowAAL2(u, v)
}

// ErrPrincipalGone is the refusal of an access token whose user does not exist any more.
var ErrPrincipalGone = refusal.Denied(refusal.CodeUserNotFound, "User from sub claim in JWT does not exist")

// LockPrincipal locks the principal's row in the transaction and reads user and session again: since the request was
// authenticated, the session may have ended or a factor may have been removed. reads add statements to the same round
// trip.
func LockPrincipal(ctx context.Context, f *Flow, tx *Tx, principal Principal,
	reads ...func(*Batch)) (store.User, store.Session, error) {
	var v store.Session
	u, err := tx.LockUser(ctx, principal.User.ID)
	if errors.Is(err, store.ErrNotFound) {
		return u, v, ErrPrincipalGone
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
		return u, v, ErrPrincipalGone
	case u.BannedUntil.After(f.Now):
		return u, v, refusal.Denied(refusal.CodeUserBanned, "User is banned")
	case principal.Session.ID == uuid.Nil:
		return u, v, nil
	case v.ID == uuid.Nil || v.Ended():
		return u, v, SessionNotFound()
	case f.Settings.IsExpired(v, f.Now):
		return u, v, refusal.Denied(refusal.CodeSessionExpired, "Session is no longer valid")
	}
	return u, levelOf(v, &principal.Claims), nil
}

// OnPrincipal runs do in a transaction, with the user and the session that LockPrincipal returns.
func OnPrincipal(ctx context.Context, f *Flow, principal Principal,
	do func(*Tx, store.User, store.Session) error) error {
	return f.Commit(ctx, func(tx *Tx) error {
		u, v, err := LockPrincipal(ctx, f, tx, principal)
		if err != nil {
			return err
		}
		return do(tx, u, v)
	})
}

// Audit returns an audit row about an action of the administrator. pairs are alternating names and values of traits.
func (by Actor) Audit(f *Flow, action store.Action, pairs ...string) store.Audit {
	a := f.Audit(action, by.ID, by.Session, pairs...)
	if by.ID == uuid.Nil {
		a.ActorRole = by.Role
	}
	return a
}

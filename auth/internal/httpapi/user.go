package httpapi

import (
	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
)

// getUser handles GET /user.
func (s *Server) getUser(c *call, principal flow.Principal) error {
	return c.userView(principal.User, nil)
}

// putUser changes the caller's own account.
func (s *Server) putUser(c *call, principal flow.Principal) error {
	if err := s.limit(c, byUser); err != nil {
		return err
	}
	var in flow.UserUpdate
	if err := c.decode(&in); err != nil {
		return err
	}
	return c.userView(s.accounts.UpdateUser(c.ctx(), c.requestInfo(), principal, in))
}

// getReauthenticate sends a nonce for a new password. Since this GET has an effect, a HEAD request is refused.
func (s *Server) getReauthenticate(c *call, principal flow.Principal) error {
	if err := c.noHead(); err != nil {
		return err
	}
	if err := s.limit(c, byReauthenticate); err != nil {
		return err
	}
	return c.empty(s.accounts.Reauthenticate(c.ctx(), c.requestInfo(), principal))
}

// getSessions lists the caller's sessions, including ended sessions that have not been deleted yet.
func (s *Server) getSessions(c *call, principal flow.Principal) error {
	list, err := s.accounts.Sessions(c.ctx(), principal)
	return c.sessionsView(principal.Session.ID, list, err)
}

// deleteSession ends one of the caller's own sessions. The session of another user is answered as not found.
func (s *Server) deleteSession(c *call, principal flow.Principal, id uuid.UUID) error {
	return c.noContent(s.accounts.EndSession(c.ctx(), c.requestInfo(), principal, id))
}

// getUserSessions lists a user's sessions for an administrator.
func (s *Server) getUserSessions(c *call, _ flow.Actor, id uuid.UUID) error {
	list, err := s.users.UserSessions(c.ctx(), id)
	return c.sessionsView(uuid.Nil, list, err)
}

// deleteUserSessions ends all sessions of a user.
func (s *Server) deleteUserSessions(c *call, by flow.Actor, id uuid.UUID) error {
	return c.noContent(s.users.AdminEndSessions(c.ctx(), c.requestInfo(), by, id))
}

// deleteUserSession ends one session of a user.
func (s *Server) deleteUserSession(c *call, by flow.Actor, user, id uuid.UUID) error {
	return c.noContent(s.users.AdminEndSession(c.ctx(), c.requestInfo(), by, user, id))
}

// deleteIdentity unlinks an identity from the caller's account.
func (s *Server) deleteIdentity(c *call, principal flow.Principal) error {
	return c.empty(s.oauth.UnlinkIdentity(c.ctx(), c.requestInfo(), principal, c.r.PathValue("identity_id"),
		c.aud()))
}

// postLogout ends sessions. The flow must know whether the request names a scope, since a missing scope and an empty
// one differ.
func (s *Server) postLogout(c *call) error {
	scope := c.param("scope")
	given := c.query.Has("scope")
	return c.noContent(s.accounts.SignOut(c.ctx(), c.requestInfo(), c.bearer(), scope, given))
}

package httpapi

import (
	"github.com/google/uuid"

	"gatehouse/auth/internal/account"
)

// getSessions lists the caller's present and past sessions.
func (s *Server) getSessions(c *call, principal account.Principal) error {
	list, err := s.accounts.Sessions(c.ctx(), principal)
	if err != nil {
		return err
	}
	return c.sessionsView(list, principal.Session.ID)
}

// deleteSession ends one of the user's own sessions; another's is not found.
func (s *Server) deleteSession(c *call, principal account.Principal) error {
	id, err := c.pathID("id")
	if err != nil {
		return err
	}
	if err := s.accounts.EndSession(c.ctx(), c.requestInfo(), principal, id); err != nil {
		return err
	}
	return c.noContent()
}

// getUserSessions shows them to an administrator.
func (s *Server) getUserSessions(c *call, _ account.Actor) error {
	id, err := c.pathID("user_id")
	if err != nil {
		return err
	}
	list, err := s.accounts.UserSessions(c.ctx(), id)
	if err != nil {
		return err
	}
	return c.sessionsView(list, uuid.Nil)
}

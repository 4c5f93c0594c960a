package httpapi

import "gatehouse/auth/internal/account"

// deleteIdentity removes one identity from the caller's account.
func (s *Server) deleteIdentity(c *call, principal account.Principal) error {
	if err := s.accounts.UnlinkIdentity(c.ctx(), c.requestInfo(), principal, c.r.PathValue("identity_id"),
		c.aud()); err != nil {
		return err
	}
	return c.empty()
}

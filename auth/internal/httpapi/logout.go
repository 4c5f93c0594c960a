package httpapi

// postLogout ends sessions. Whether scope was given at all makes a difference, so that the flow is
// told.
func (s *Server) postLogout(c *call) error {
	scope := c.param("scope")
	given := c.query.Has("scope")
	if err := s.accounts.SignOut(c.ctx(), c.requestInfo(), c.bearer(), scope, given); err != nil {
		return err
	}
	return c.noContent()
}

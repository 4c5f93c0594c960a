package httpapi

// postLogout ends sessions. A missing scope and an empty one differ, so the flow gets both.
func (s *Server) postLogout(c *call) error {
	scope := c.param("scope")
	given := c.query.Has("scope")
	if err := s.accounts.SignOut(c.ctx(), c.requestInfo(), c.bearer(), scope, given); err != nil {
		return err
	}
	return c.noContent()
}

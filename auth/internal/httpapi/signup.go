package httpapi

import "gatehouse/auth/internal/account/flow"

// postSignup creates an account with an address, or an anonymous one.
func (s *Server) postSignup(c *call) error {
	var in flow.SignUp
	if err := c.decode(&in); err != nil {
		return err
	}
	by := bySignup
	if in.Email == "" && in.Phone == "" {
		by = byAnonymous
	}
	// If anonymous users are disabled, the flow reports that before any limit.
	if by == bySignup || c.live.flows.Anonymous {
		if err := s.limit(c, by); err != nil {
			return err
		}
	}
	if err := c.knownAud(); err != nil {
		return err
	}
	if by == byAnonymous {
		return c.grantView(s.accounts.SignUpAnonymous(c.ctx(), c.requestInfo(), in.Data))
	}
	out, err := s.accounts.SignUp(c.ctx(), s.sender(c), in)
	if err != nil {
		return err
	}
	if out.Grant != nil {
		return c.grantView(*out.Grant, nil)
	}
	return c.userView(out.User, nil)
}

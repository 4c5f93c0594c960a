package httpapi

import "gatehouse/auth/internal/account/flow"

// postSignup creates an account, with an address or anonymous.
func (s *Server) postSignup(c *call) error {
	var in struct {
		Email    string     `json:"email"`
		Phone    string     `json:"phone"`
		Password string     `json:"password"`
		Data     jsonObject `json:"data"`
		Channel  string     `json:"channel"`
		pkce
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	by := bySignup
	if in.Email == "" && in.Phone == "" {
		by = byAnonymous
	}
	if by == bySignup || c.live.Shown.Anonymous { // if anonymous users are disabled, the flow reports that first
		if err := s.limit(c, by); err != nil {
			return err
		}
	}
	if err := c.knownAud(); err != nil {
		return err
	}
	if by == byAnonymous {
		return c.grantView(s.accounts.SignUpAnonymous(c.ctx(), c.requestInfo(), in.Data.message()))
	}
	out, err := s.accounts.SignUp(c.ctx(), s.sender(c), flow.SignUp{
		Email: in.Email, Phone: in.Phone, Password: in.Password, Data: in.Data.message(), Channel: in.Channel,
		Challenge: in.challenge(),
	})
	if err != nil {
		return err
	}
	if out.Grant != nil {
		return c.grantView(*out.Grant, nil)
	}
	return c.userView(out.User, nil)
}

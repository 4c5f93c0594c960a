package httpapi

import "gatehouse/auth/internal/account"

// getUser handles GET /user.
func (s *Server) getUser(c *call, principal account.Principal) error {
	return c.userView(&principal.User)
}

// putUser changes a user at the user's own request.
func (s *Server) putUser(c *call, principal account.Principal) error {
	if err := s.limit(c, byUser); err != nil {
		return err
	}
	var in struct {
		Email           string     `json:"email"`
		Phone           string     `json:"phone"`
		Password        *string    `json:"password"`
		CurrentPassword *string    `json:"current_password"`
		Nonce           string     `json:"nonce"`
		Data            jsonObject `json:"data"`
		AppMetadata     jsonObject `json:"app_metadata"`
		Channel         string     `json:"channel"`
		pkce
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	u, err := s.accounts.UpdateUser(c.ctx(), c.requestInfo(), principal, account.UserUpdate{
		Email: in.Email, Phone: in.Phone, Password: in.Password, CurrentPassword: in.CurrentPassword, Nonce: in.Nonce,
		Data: in.Data.message(), AppMetadata: in.AppMetadata.message(), Channel: in.Channel, Challenge: in.challenge(),
	})
	if err != nil {
		return err
	}
	return c.userView(&u)
}

// getReauthenticate sends a nonce. It is a GET with an effect, which a HEAD must not have.
func (s *Server) getReauthenticate(c *call, principal account.Principal) error {
	if err := c.noHead(); err != nil {
		return err
	}
	if err := s.limit(c, byReauthenticate); err != nil {
		return err
	}
	if err := s.accounts.Reauthenticate(c.ctx(), c.requestInfo(), principal); err != nil {
		return err
	}
	return c.empty()
}

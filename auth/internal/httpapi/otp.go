package httpapi

import (
	"gatehouse/auth/internal/account/flow"
)

// postOTP sends a link or digits to sign in with.
func (s *Server) postOTP(c *call) error {
	var in struct {
		Email      string     `json:"email"`
		Phone      string     `json:"phone"`
		CreateUser *bool      `json:"create_user"`
		Data       jsonObject `json:"data"`
		Channel    string     `json:"channel"`
		pkce
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	create := in.CreateUser == nil || *in.CreateUser
	if create {
		if err := c.knownAud(); err != nil {
			return err
		}
	}
	return c.empty(s.accounts.SendOTP(c.ctx(), s.sender(c), flow.OTP{
		Email: in.Email, Phone: in.Phone, CreateUser: create, Data: in.Data.message(), Channel: in.Channel,
		Challenge: in.challenge(),
	}))
}

// postMagicLink is the older form of /otp, with its own text for a body that is not JSON.
func (s *Server) postMagicLink(c *call) error {
	var in struct {
		Email string     `json:"email"`
		Data  jsonObject `json:"data"`
		pkce
	}
	if err := c.decode(&in); err != nil {
		return reworded(err, "Could not read verification params: ")
	}
	if err := c.knownAud(); err != nil {
		return err
	}
	return c.empty(s.accounts.MagicLink(c.ctx(), s.sender(c),
		flow.MagicLink{Email: in.Email, Data: in.Data.message(), Challenge: in.challenge()}))
}

// postRecover sends a link to set a new password.
func (s *Server) postRecover(c *call) error {
	var in struct {
		Email string `json:"email"`
		pkce
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	return c.empty(s.accounts.Recover(c.ctx(), s.sender(c),
		flow.Recover{Email: in.Email, Challenge: in.challenge()}))
}

// postResend sends another mail or SMS of what is pending.
func (s *Server) postResend(c *call) error {
	var in struct {
		Type  string `json:"type"`
		Email string `json:"email"`
		Phone string `json:"phone"`
		pkce
	}
	if err := c.decode(&in); err != nil {
		return err
	}
	id, err := s.accounts.Resend(c.ctx(), s.sender(c),
		flow.Resend{Type: in.Type, Email: in.Email, Phone: in.Phone, Challenge: in.challenge()})
	if err != nil {
		return err
	}
	return c.json(200, append(appendID([]byte(`{"message_id":`), id), '}'))
}

package httpapi

import (
	"cmp"

	"gatehouse/auth/internal/account/flow"
)

// postOTP sends a magic link or a one-time code to sign in with.
func (s *Server) postOTP(c *call) error {
	in := flow.OTP{CreateUser: true}
	if err := c.decode(&in); err != nil {
		return err
	}
	if in.CreateUser {
		if err := c.knownAud(); err != nil {
			return err
		}
	}
	return c.empty(s.accounts.SendOTP(c.ctx(), s.sender(c), in))
}

// postMagicLink does what postOTP does, at an older route, and has another error text for a body that is not JSON.
// postMagicLink and postRecover report that a feature is switched off before they report errors in the body.
func (s *Server) postMagicLink(c *call) error {
	var in flow.MagicLink
	if err := c.decode(&in); err != nil {
		return cmp.Or(c.live.flows.Email.CheckMagicLink(), reworded(err, "Could not read verification params: "))
	}
	if err := c.knownAud(); err != nil {
		return err
	}
	return c.empty(s.accounts.MagicLink(c.ctx(), s.sender(c), in))
}

// postRecover mails a link to set a new password.
func (s *Server) postRecover(c *call) error {
	var in flow.Recover
	if err := c.decode(&in); err != nil {
		return cmp.Or(c.live.flows.Email.CheckRecovery(), err)
	}
	return c.empty(s.accounts.Recover(c.ctx(), s.sender(c), in))
}

// postResend sends the mail or SMS of a pending operation again.
func (s *Server) postResend(c *call) error {
	var in flow.Resend
	if err := c.decode(&in); err != nil {
		return err
	}
	id, err := s.accounts.Resend(c.ctx(), s.sender(c), in)
	if err != nil {
		return err
	}
	return c.json(200, append(appendID([]byte(`{"message_id":`), id), '}'))
}

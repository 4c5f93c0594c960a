package httpapi

import (
	"gatehouse/auth/internal/account/flow"

	"gatehouse/auth/internal/jsontext"
)

// postInvite creates a user and mails an invitation.
func (s *Server) postInvite(c *call, by flow.Actor) error {
	var in flow.Invitation
	if err := c.decode(&in); err != nil {
		return err
	}
	return c.userView(s.accounts.Invite(c.ctx(), c.requestInfo(), by, in))
}

// postGenerateLink creates a link without sending it. The answer is one object that has the members of both the user
// and the link.
func (s *Server) postGenerateLink(c *call, by flow.Actor) error {
	var in flow.LinkRequest
	if err := c.decode(&in); err != nil {
		return err
	}
	client := c.requestInfo()
	client.RedirectTo = c.target(in.RedirectTo)
	l, err := s.accounts.GenerateLink(c.ctx(), client, by, in)
	if err != nil {
		return err
	}
	b := AppendUser(make([]byte, 0, 2048), &l.User)
	b = jsontext.AppendString(append(b[:len(b)-1], `,"action_link":`...), l.ActionLink)
	b = jsontext.AppendString(append(b, `,"email_otp":`...), l.EmailOTP)
	b = jsontext.AppendString(append(b, `,"hashed_token":`...), l.HashedToken)
	b = jsontext.AppendString(append(b, `,"verification_type":`...), l.VerificationType)
	b = jsontext.AppendString(append(b, `,"redirect_to":`...), l.RedirectTo)
	return c.json(200, append(b, '}'))
}

package httpapi

import (
	"github.com/google/uuid"

	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
)

// getAdminFactors lists a user's second factors.
func (s *Server) getAdminFactors(c *call, _ flow.Actor, user uuid.UUID) error {
	list, err := s.factors.AdminFactors(c.ctx(), user)
	if err != nil {
		return err
	}
	return c.json(200, appendList(make([]byte, 0, 16+len(list)*320), list, appendFactor))
}

func (s *Server) deleteAdminFactor(c *call, by flow.Actor, user, id uuid.UUID) error {
	f, err := s.factors.AdminDeleteFactor(c.ctx(), c.requestInfo(), by, user, id)
	if err != nil {
		return err
	}
	return c.json(200, appendFactor(make([]byte, 0, 320), &f))
}

// putAdminFactor changes the name or the phone number of a second factor.
func (s *Server) putAdminFactor(c *call, by flow.Actor, user, id uuid.UUID) error {
	in := factor.FactorUpdate{Factor: id}
	if err := c.decode(&in); err != nil {
		return err
	}
	f, err := s.factors.AdminUpdateFactor(c.ctx(), c.requestInfo(), by, user, in)
	if err != nil {
		return err
	}
	return c.json(200, appendFactor(make([]byte, 0, 320), &f))
}

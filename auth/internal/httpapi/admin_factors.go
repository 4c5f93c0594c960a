package httpapi

import (
	"github.com/google/uuid"

	"gatehouse/auth/internal/account/factor"
	"gatehouse/auth/internal/account/flow"
)

// getAdminFactors lists a user's factors.
func (s *Server) getAdminFactors(c *call, _ flow.Actor, user uuid.UUID) error {
	list, err := s.factors.AdminFactors(c.ctx(), user)
	if err != nil {
		return err
	}
	return c.json(200, appendList(make([]byte, 0, 16+len(list)*320), list, appendFactor))
}

// pathFactor returns the ids of a path that names a user and one of the user's factors.
func (c *call) pathFactor() (user, id uuid.UUID, err error) {
	if user, err = c.pathID("user_id"); err == nil {
		id, err = c.pathID("factor_id")
	}
	return user, id, err
}

func (s *Server) deleteAdminFactor(c *call, by flow.Actor) error {
	user, id, err := c.pathFactor()
	if err != nil {
		return err
	}
	f, err := s.factors.AdminDeleteFactor(c.ctx(), c.requestInfo(), by, user, id)
	if err != nil {
		return err
	}
	return c.json(200, appendFactor(make([]byte, 0, 320), &f))
}

// putAdminFactor gives a factor another name or number.
func (s *Server) putAdminFactor(c *call, by flow.Actor) error {
	user, id, err := c.pathFactor()
	if err != nil {
		return err
	}
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

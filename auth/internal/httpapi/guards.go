package httpapi

import (
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/account/refusal"
)

// limited is a guard that counts the request against the client's rate limit before the body is read.
func (s *Server) limited(by routeLimit, h handler) handler {
	return func(c *call) error {
		if err := s.limit(c, by); err != nil {
			return err
		}
		return h(c)
	}
}

// user is a guard that requires a user's access token.
func (s *Server) user(access flow.Access, h func(*call, flow.Principal) error) handler {
	return func(c *call) error {
		principal, err := s.core.Authenticate(c.ctx(), c.bearer(), c.aud(), access)
		if err != nil {
			return err
		}
		c.user = principal.User.ID
		return h(c, principal)
	}
}

// admin is a guard that requires a token with an admin role, or a sign-in at the console.
func (s *Server) admin(h func(*call, flow.Actor) error) handler {
	return func(c *call) error {
		actor, err := c.administrator()
		if err != nil {
			s.recordRefusal(c, actor, err)
			return err
		}
		c.user, c.byAdmin = actor.ID, true
		return h(c, actor)
	}
}

// administrator returns the administrator who is signed in at the console or, at the public port, the administrator
// whom the token names.
func (c *call) administrator() (flow.Actor, error) {
	if c.actor != nil {
		return *c.actor, nil
	}
	return c.srv.core.AuthenticateAdmin(c.ctx(), c.bearer())
}

// isAdmin reports whether an administrator has sent the request, on a route that does not require one.
func (c *call) isAdmin() (bool, error) {
	if c.actor != nil {
		return true, nil
	}
	return c.srv.core.IsAdmin(c.ctx(), c.bearer())
}

// maxRefusedAdmins is for how many subjects (users and roles) this process records refusals in a minute. All replicas
// together write one row for each subject.
const maxRefusedAdmins = 1000

// recordRefusal records in the audit log that a route for administrators refused a token whose signature is valid.
func (s *Server) recordRefusal(c *call, who flow.Actor, err error) {
	r, ok := errors.AsType[*refusal.Refusal](err)
	if ok && r.Kind == refusal.KindDenied && who.String() != "" && s.refusedAdmins.first(who.String(), s.now()) {
		s.core.RecordAdminRefusal(c.ctx(), c.requestInfo(), who, r.Code)
	}
}

// pathID parses a UUID in the path. It accepts only the canonical spelling.
func (c *call) pathID(name string) (uuid.UUID, error) {
	text := c.r.PathValue(name)
	id, err := uuid.Parse(text)
	if err != nil || len(text) != 36 {
		return uuid.Nil, newProblem(404, refusal.CodeValidationFailed, name+" must be an UUID")
	}
	return id, nil
}

// withID parses an ID in the path and passes it to the handler h.
func withID[P any](name string, h func(*call, P, uuid.UUID) error) func(*call, P) error {
	return func(c *call, by P) error {
		id, err := c.pathID(name)
		if err != nil {
			return err
		}
		return h(c, by, id)
	}
}

// knownUser wraps the handler h of a route whose path names a user. If h refuses the request and the user does not
// exist, the answer says that the user does not exist, whatever the reason of h was. The user is looked up only after h
// has refused.
func (s *Server) knownUser(h func(*call, flow.Actor, uuid.UUID) error) func(*call, flow.Actor, uuid.UUID) error {
	return func(c *call, by flow.Actor, id uuid.UUID) error {
		err := h(c, by, id)
		if err == nil {
			return nil
		}
		if status := c.problemOf(err).status; status == 400 || status == 422 {
			if _, missing := s.users.AdminUser(c.ctx(), id); errors.Is(missing, flow.ErrNoUser) {
				return missing
			}
		}
		return err
	}
}

// withIDs does what withID does, for two IDs.
func withIDs[P any](first, second string, h func(*call, P, uuid.UUID, uuid.UUID) error) func(*call, P) error {
	return withID(first, func(c *call, by P, a uuid.UUID) error {
		b, err := c.pathID(second)
		if err != nil {
			return err
		}
		return h(c, by, a, b)
	})
}

// knownAud refuses an audience that is not configured, on routes that may create an account. Otherwise a client could
// choose the claim aud of its own tokens.
func (c *call) knownAud() error {
	if aud := c.aud(); aud != "" && aud != c.live.flows.Audience {
		return invalidRequest("The audience of the X-JWT-AUD header is not one of this service")
	}
	return nil
}

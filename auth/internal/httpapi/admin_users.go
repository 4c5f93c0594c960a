package httpapi

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/store"
)

// getUsers lists the users of an audience: in numbered pages with a total, or after a cursor, which costs the same for
// each page.
func (s *Server) getUsers(c *call, _ flow.Actor) error {
	if err := c.knownParams("page", "per_page", "limit", "cursor", "sort", "filter", "email", "phone",
		"id"); err != nil {
		return err
	}
	f := store.UsersFilter{Aud: c.aud(), Text: c.param("filter"), Email: strings.ToLower(c.param("email")),
		Phone: strings.TrimPrefix(c.param("phone"), "+")}
	f.Aud = cmp.Or(f.Aud, c.live.flows.Audience)
	var err error
	if f.ID, err = c.paramID("id"); err != nil {
		return err
	}
	if c.param("limit") != "" || c.param("cursor") != "" {
		return s.usersBehind(c, f)
	}
	p, err := c.page()
	if err != nil {
		return err
	}
	if f.OldestFirst, err = c.sort(); err != nil {
		return err
	}
	f.Offset, f.Limit, f.Count = p.offset(), p.size, true
	users, total, err := s.users.AdminUsers(c.ctx(), f)
	if err != nil {
		return err
	}
	c.links(p, total)
	return c.json(200, append(appendUsers(users, f.Aud), '}'))
}

// usersBehind answers with the users that come after a cursor. It reads one more user than it returns, to know whether
// the list continues.
func (s *Server) usersBehind(c *call, f store.UsersFilter) error {
	limit, err := c.count("limit", defaultPerPage, maxPerPage)
	if err != nil {
		return err
	}
	if f.After, err = c.after(); err != nil {
		return err
	}
	if f.OldestFirst, err = c.sort(); err != nil {
		return err
	}
	f.Limit = limit + 1
	users, _, err := s.users.AdminUsers(c.ctx(), f)
	if err != nil {
		return err
	}
	next := ""
	if len(users) > limit {
		users = users[:limit]
		next = cursor(users[limit-1].CreatedAt, users[limit-1].ID)
	}
	return c.json(200, appendPagination(appendUsers(users, f.Aud), next))
}

func appendUsers(users []store.User, aud string) []byte {
	b := appendList(append(make([]byte, 0, 64+len(users)*768), `{"users":`...), users, AppendUser)
	return jsontext.AppendString(append(b, `,"aud":`...), aud)
}

// sort parses the query's sort: "created_at", "created_at asc" or "created_at desc". If there are several parameters,
// it uses the first.
func (c *call) sort() (oldestFirst bool, err error) {
	c.param("sort") // called to parse the query
	first := true
	for _, text := range c.query["sort"] {
		if text == "" {
			continue
		}
		field, direction, _ := strings.Cut(text, " ")
		if field != "created_at" {
			return false, invalidRequest(fmt.Sprintf("Bad Sort Parameters: bad field for sort '%s'",
				cleanText(field, 100)))
		}
		switch strings.ToLower(direction) {
		case "", "desc":
		case "asc":
			oldestFirst = oldestFirst || first
		default:
			return false,
				invalidRequest(fmt.Sprintf(
					"Bad Sort Parameters: bad direction for sort '%s', only 'asc' and 'desc' allowed",
					cleanText(direction, 100)))
		}
		first = false
	}
	return oldestFirst, nil
}

// postUser creates a user. The user's ID may be in the body or in the path.
func (s *Server) postUser(c *call, by flow.Actor) error {
	var in flow.Attributes
	if err := c.decode(&in); err != nil {
		return err
	}
	if c.r.PathValue("user_id") != "" {
		id, err := c.pathID("user_id")
		if err != nil {
			return err
		}
		in.ID = id.String()
	}
	return c.userView(s.users.AdminCreate(c.ctx(), c.requestInfo(), by, in))
}

func (s *Server) getAdminUser(c *call, _ flow.Actor, id uuid.UUID) error {
	return c.userView(s.users.AdminUser(c.ctx(), id))
}

// putAdminUser changes a user.
func (s *Server) putAdminUser(c *call, by flow.Actor, id uuid.UUID) error {
	var in flow.Attributes
	if err := c.decode(&in); err != nil {
		return err
	}
	return c.userView(s.users.AdminUpdate(c.ctx(), c.requestInfo(), by, id, in))
}

// deleteUser deletes a user or, if the body says so, only the user's personal data. The body may be empty.
func (s *Server) deleteUser(c *call, by flow.Actor, id uuid.UUID) error {
	var in struct {
		Soft bool `json:"should_soft_delete"`
	}
	if err := c.decodeGiven(&in); err != nil {
		return err
	}
	return c.empty(s.users.AdminDelete(c.ctx(), c.requestInfo(), by, id, in.Soft))
}

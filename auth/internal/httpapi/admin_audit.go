package httpapi

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/store"
)

// getAudit answers with a page of the audit log, newest rows first.
func (s *Server) getAudit(c *call, _ flow.Actor) error {
	p, err := c.page()
	if err != nil {
		return err
	}
	f := store.AuditFilter{Offset: p.offset(), Limit: p.size}
	if query := c.param("query"); query != "" {
		scope, text, ok := strings.Cut(query, ":")
		switch {
		case ok && scope == "author":
			f.Author = text
		case ok && scope == "action":
			f.Action = text
		case ok && scope == "type":
			f.LogType = text
		default:
			return invalidRequest(fmt.Sprintf("Invalid query scope: %.100s", scope))
		}
	}
	rows, total, err := s.users.AuditLog(c.ctx(), f)
	if err != nil {
		return err
	}
	c.links(p, total)
	return c.json(200, appendList(make([]byte, 0, 64+len(rows)*320), rows, appendAudit))
}

// appendAudit appends a row of the audit log as JSON. An actor that is a service has no ID, and is shown by its role.
// An actor whose user was deleted is shown by ID.
func appendAudit(b []byte, r *store.AuditRow) []byte {
	name := cmp.Or(r.ActorPhone, r.ActorEmail)
	if name == "" && r.Actor == uuid.Nil {
		name = r.ActorRole
	}
	b = append(strconv.AppendInt(append(b, `{"id":"`...), r.ID, 10), '"')
	b = appendID(append(b, `,"payload":{"actor_id":`...), r.Actor)
	b = jsontext.AppendString(append(b, `,"actor_username":`...), name)
	b = append(b, `,"actor_via_sso":false`...)
	b = fieldString(b, `,"actor_name":`, r.ActorFullName)
	b = jsontext.AppendString(append(b, `,"action":`...), r.Action.String())
	b = jsontext.AppendString(append(b, `,"log_type":`...), r.Action.LogType())
	if len(r.Traits) > 0 && string(r.Traits) != "null" {
		b = append(append(b, `,"traits":`...), r.Traits...)
	}
	b = appendTime(append(b, `},"created_at":`...), r.At)
	b = jsontext.AppendString(append(b, `,"ip_address":`...), r.IP)
	return append(b, '}')
}

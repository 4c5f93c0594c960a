package httpapi

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/store"
)

// getOutbox lists the mails and SMS that come after a cursor, without their contents.
func (s *Server) getOutbox(c *call, _ flow.Actor) error {
	if err := c.knownParams("state", "user_id", "limit", "cursor"); err != nil {
		return err
	}
	f := store.MessageFilter{State: c.param("state")}
	if f.State != "" && !slices.Contains(store.MessageStates, f.State) {
		return invalidRequest(fmt.Sprintf("state must be one of %s", strings.Join(store.MessageStates, ", ")))
	}
	var err error
	if f.User, err = c.paramID("user_id"); err != nil {
		return err
	}
	limit, err := c.count("limit", defaultPerPage, maxPerPage)
	if err != nil {
		return err
	}
	if f.After, err = c.after(); err != nil {
		return err
	}
	f.Limit = limit + 1 // one more row shows whether the list continues
	list, err := s.users.AdminOutbox(c.ctx(), f)
	if err != nil {
		return err
	}
	next := ""
	if len(list) > limit {
		list = list[:limit]
		next = cursor(list[limit-1].CreatedAt, list[limit-1].ID)
	}
	b := appendList(append(make([]byte, 0, 64+len(list)*384), `{"messages":`...), list, appendMessage)
	return c.json(200, appendPagination(b, next))
}

// postResendMessage makes a message of the outbox due now.
func (s *Server) postResendMessage(c *call, _ flow.Actor, id uuid.UUID) error {
	m, err := s.users.AdminResend(c.ctx(), id)
	if err != nil {
		return err
	}
	return c.json(200, appendMessage(make([]byte, 0, 384), &m))
}

func appendMessage(b []byte, m *store.Message) []byte {
	b = appendID(append(b, `{"id":`...), m.ID)
	b = jsontext.AppendString(append(b, `,"channel":`...), m.Channel)
	b = jsontext.AppendString(append(b, `,"kind":`...), m.Kind)
	b = jsontext.AppendString(append(b, `,"state":`...), m.State)
	b = strconv.AppendInt(append(b, `,"attempts":`...), int64(m.Attempts), 10)
	if m.User != uuid.Nil {
		b = appendID(append(b, `,"user_id":`...), m.User)
	}
	b = appendTime(append(b, `,"created_at":`...), m.CreatedAt)
	b = appendTime(append(b, `,"due_at":`...), m.DueAt)
	b = appendTime(append(b, `,"expires_at":`...), m.ExpiresAt)
	b = fieldTime(b, `,"done_at":`, m.DoneAt)
	b = jsontext.AppendString(append(b, `,"error":`...), m.Error)
	return append(strconv.AppendBool(append(b, `,"can_resend":`...), m.CanResend), '}')
}

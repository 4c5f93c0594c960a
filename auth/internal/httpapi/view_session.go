package httpapi

import (
	"strconv"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/flow"
	"gatehouse/auth/internal/jsontext"
	"gatehouse/auth/internal/store"
)

// grantView answers 200 with the tokens of a session if err, the result of a flow, is nil.
func (c *call) grantView(g flow.Grant, err error) error {
	if err != nil {
		return err
	}
	c.user = g.User.ID
	return c.json(200, appendGrant(make([]byte, 0, 1024+len(g.AccessToken)+len(g.RefreshToken)), &g))
}

func appendGrant(b []byte, g *flow.Grant) []byte {
	b = jsontext.AppendString(append(b, `{"access_token":`...), g.AccessToken)
	b = strconv.AppendInt(append(b, `,"token_type":"bearer","expires_in":`...), int64(g.ExpiresIn), 10)
	b = strconv.AppendInt(append(b, `,"expires_at":`...), g.ExpiresAt.Unix(), 10)
	b = jsontext.AppendString(append(b, `,"refresh_token":`...), g.RefreshToken)
	b = AppendUser(append(b, `,"user":`...), &g.User)
	b = fieldString(b, `,"type":`, g.Type)
	b = fieldString(b, `,"provider_token":`, g.ProviderToken)
	b = fieldString(b, `,"provider_refresh_token":`, g.ProviderRefreshToken)
	if g.Weak != nil {
		b = jsontext.AppendString(append(b, `,"weak_password":{"message":`...), g.Weak.Message)
		b = append(jsontext.AppendStrings(append(b, `,"reasons":`...), g.Weak.Reasons), '}')
	}
	return append(b, '}')
}

// sessionsView answers 200 with a list of sessions, newest first, if err is nil. current is the ID of the caller's
// session.
func (c *call) sessionsView(current uuid.UUID, list []store.Session, err error) error {
	if err != nil {
		return err
	}
	return c.json(200, appendList(make([]byte, 0, 64+len(list)*384), list, func(b []byte, v *store.Session) []byte {
		return appendSession(b, v, current)
	}))
}

func appendSession(b []byte, s *store.Session, current uuid.UUID) []byte {
	b = appendID(append(b, `{"id":`...), s.ID)
	b = appendTime(append(b, `,"created_at":`...), s.CreatedAt)
	b = appendTime(append(b, `,"refreshed_at":`...), s.RefreshedAt)
	b = jsontext.AppendString(append(b, `,"user_agent":`...), s.UserAgent)
	b = jsontext.AppendString(append(b, `,"ip":`...), s.IP)
	b = append(strconv.AppendInt(append(b, `,"aal":"aal`...), int64(s.AAL), 10), '"')
	b = appendRaw(append(b, `,"amr":`...), s.AMR, "[]")
	b = strconv.AppendBool(append(b, `,"current":`...), s.ID == current)
	b = fieldTime(b, `,"ended_at":`, s.EndedAt)
	b = fieldString(b, `,"ended_reason":`, s.EndedReason)
	return append(b, '}')
}

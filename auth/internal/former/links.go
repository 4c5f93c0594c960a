package former

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// MailedLink is a row of one_time_tokens, together with data from other tables.
type MailedLink struct {
	ID, UserID uuid.UUID
	// Type is the token's type in the source, such as recovery_token. Token is the text in the link, with PKCEPrefix if
	// the link continues a PKCE flow. RelatesTo is the address in lower case.
	Type, Token, RelatesTo string
	User                   *User
	// Identity is the user's only identity if it is one at an external provider, and otherwise Nil.
	Identity uuid.UUID
	// Flows are the user's PKCE flows that the link could continue, the newest first.
	Flows []Flow
}

// Flow is a row of flow_state: a PKCE flow whose code was not issued yet.
type Flow struct {
	ID                uuid.UUID
	Method, Challenge string
	ChallengeMethod   string
	CreatedAt         time.Time
}

// linkRows is how many links a batch has. It is small, since each link is read with its user.
const linkRows = 500

const selectLinks = `
select o.id, o.user_id, o.token_type::text, o.token_hash, o.relates_to from {S}.one_time_tokens o
where o.id > $1 order by o.id limit $2`

const selectFlows = `
select w.id, w.user_id, w.authentication_method, w.code_challenge, lower(w.code_challenge_method::text), w.created_at
from {S}.flow_state w
where w.user_id = any($1) and w.code_challenge <> '' and w.code_challenge_method is not null and w.auth_code_issued_at is null
order by w.created_at desc, w.id desc`

const selectOnlyIdentities = `
select i.user_id, (array_agg(i.id))[1] from {S}.identities i where i.user_id = any($1)
group by i.user_id having count(*) = 1 and min(i.provider) not in ('email', 'phone')`

// Links reads a batch of mailed links, those after a cursor.
func (s *Source) Links(ctx context.Context, after uuid.UUID) (list []*MailedLink, err error) {
	byUser := map[uuid.UUID][]*MailedLink{}
	var owners []uuid.UUID
	err = s.rows(ctx, selectLinks, into(func(l *MailedLink) error {
		if byUser[l.UserID] == nil {
			owners = append(owners, l.UserID)
		}
		list, byUser[l.UserID] = append(list, l), append(byUser[l.UserID], l)
		return nil
	}, func(l *MailedLink) []any {
		return []any{uid(&l.ID), uid(&l.UserID), &l.Type, &l.Token, &l.RelatesTo}
	}), ids([]uuid.UUID{after})[0], linkRows)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	err = s.Users(ctx, Select{IDs: owners}, func(u *User) error {
		for _, l := range byUser[u.ID] {
			l.User = u
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = s.rows(ctx, selectOnlyIdentities, func(r pgx.Rows) error {
		var user, identity uuid.UUID
		err := r.Scan(uid(&user), uid(&identity))
		for _, l := range byUser[user] {
			l.Identity = identity
		}
		return err
	}, ids(owners))
	if err != nil || !s.Catalog.Has("flow_state", "auth_code_issued_at") {
		return list, err
	}
	err = s.rows(ctx, selectFlows, func(r pgx.Rows) error {
		var f Flow
		var user uuid.UUID
		err := r.Scan(uid(&f.ID), uid(&user), &f.Method, &f.Challenge, &f.ChallengeMethod, at(&f.CreatedAt))
		for _, l := range byUser[user] {
			l.Flows = append(l.Flows, f)
		}
		return err
	}, ids(owners))
	return list, err
}

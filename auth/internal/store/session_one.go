package store

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

var selectSession = define(`
select ` + sessionColumns + `
from {sessions} s
where s.id = $1 and s.user_id = $2`)

// Session reads one session of a user; a Nil ID when he has none such. Whoever has locked the user sees
// what ended it: all that ends a user's sessions locks him first, but for a sign-out.
func (b *Batch) Session(dst *Session, user, session uuid.UUID) {
	*dst = Session{}
	b.rows("session", func(r pgx.Rows) error { return r.Scan(sessionTargets(dst)...) }, selectSession, session, user)
}

var selectRefreshing = define(`
select ` + userColumns + `,` + sessionColumns + `,` + factorsOf("s.user_id") + `
from {sessions} s join {users} u on u.id = s.user_id
where s.id = $1`)

// Refreshing reads a session and its user, without identities, to tell beforehand what a
// refresh would give. ErrNotFound: no such session.
func (db *DB) Refreshing(ctx context.Context, session uuid.UUID) (u User, s Session, err error) {
	err = db.queryRow(ctx, "refreshing", func(r pgx.Row) error {
		return r.Scan(append(append(userTargets(&u), sessionTargets(&s)...), (*factorList)(&u.Factors))...)
	}, selectRefreshing, session)
	return u, s, err
}

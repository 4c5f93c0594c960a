package store

import (
	"context"

	"github.com/google/uuid"
)

// One statement for every request with a user's token. It returns a row for each identity, which repeats the user: with
// one or two identities this costs PostgreSQL less than an aggregate in JSON, and needs no decoding. Identities are
// sorted in Go, which saves a node in PostgreSQL's plan, 10 of 45 µs.
var selectCaller = define(`
select ` + userColumns + `,` + identityColumns + `,` + sessionColumns + `,` + factorsOf("$1") + `
from {users} u
left join {sessions} s on s.id = $2 and s.user_id = u.id
left join {identities} i on i.user_id = u.id
where u.id = $1
`)

// Caller reads the user, with identities and factors, and the session that an access token names. ErrNotFound: no
// such user. A session that doesn't exist, or belongs to another user, has a Nil ID.
func (db *DB) Caller(ctx context.Context, user, session uuid.UUID) (u User, s Session, err error) {
	err = db.query(ctx, "caller", userInto(&u, nil, sessionTargets(&s)...), selectCaller, user, session)
	u.sortIdentities()
	return u, s, orNotFound(err, u)
}

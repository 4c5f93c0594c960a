package store

import (
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

package store

import (
	"time"

	"github.com/google/uuid"
)

// EndedSurplus is the reason of sessions that newer ones have crowded out.
const EndedSessionLimit = "session_limit"

var enforceSessionLimit = define(`
update {sessions} set ended_at = $3, ended_reason = '` + EndedSessionLimit + `'
where id in (
    select id from {sessions} where user_id = $1 and ended_at is null
    order by refreshed_at desc, created_at desc, id offset $2)`)

// EndSurplus ends all but so many of a user's sessions; those used last stay.
func (b *Batch) EnforceSessionLimit(user uuid.UUID, keep int, now time.Time) {
	b.exec("end surplus", enforceSessionLimit, user, keep, now)
}

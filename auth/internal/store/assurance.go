package store

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Raise brings a session to aal2.
type Raise struct {
	User, Session uuid.UUID
	// SecretHash is the hash of new random bytes, so that the session's earlier refresh tokens stop working.
	SecretHash [32]byte
	Factor     uuid.UUID
	AMR        json.RawMessage
	Now        time.Time
}

var raiseSession = define(`
update {sessions} s set aal = 2, factor_id = $3, amr = $4, secret_hash = $5, counter = counter + 1, refreshed_at = $6
where id = $1 and user_id = $2 and ended_at is null
returning ` + sessionColumns)

// RaiseSession raises a session and reads it into dst; dst has a Nil ID when the session has ended.
func (b *Batch) RaiseSession(dst *Session, r Raise) {
	b.row("raise session", dst, sessionTargets(dst), raiseSession,
		r.Session, r.User, r.Factor, []byte(r.AMR), r.SecretHash[:], r.Now)
}

var endLowSessions = define(`
with codes as (
    delete from {flows} where ` + issuedCodes + `
)
update {sessions} set ended_at = $3, ended_reason = '` + EndedByFactor + `'
where user_id = $1 and id <> $2 and ($4::boolean or aal < 2) and (ended_at is null or ended_reason = 'logout_tokens')`)

// EndLowSessions ends a user's sessions below aal2, or all sessions, except one. The PKCE codes that were given out for
// further sessions end too.
func (b *Batch) EndLowSessions(user, except uuid.UUID, all bool, now time.Time) {
	b.exec("lock", lockAndVoid, user, now)
	b.exec("end low sessions", endLowSessions, user, except, now, all)
}

// secondMethods are the amr methods that make a session aal2.
const secondMethods = `('totp', 'mfa/phone', 'mfa/webauthn', 'mfa/recovery_code')`

// A method is kept if another factor of the same kind has also raised the session: the method belongs to that factor.
// If the method's factor is unknown (a session continued from another one has no factor), the method is removed. The
// other members of an amr entry are unchanged.
var lowerSessions = define(`
update {sessions} s set
    amr = coalesce((
        select jsonb_agg(e.value order by e.ordinality) from jsonb_array_elements(s.amr) with ordinality e
        where e.value->>'method' <> $3), '[]'),
    aal = case when exists (
        select from jsonb_array_elements(s.amr) e
        where e.value->>'method' <> $3 and e.value->>'method' in ` + secondMethods + `) then 2 else 1 end,
    factor_id = nullif(s.factor_id, $2)
where s.user_id = $1 and exists (select from jsonb_array_elements(s.amr) e where e.value->>'method' = $3)
  and (s.factor_id is null or s.factor_id = $2 or not exists (
      select from {factors} f where f.id = s.factor_id and f.id <> $2
        and f.kind = (select g.kind from {factors} g where g.id = $2)))`)

// Flows whose code, given out or not yet, continues a session of aal2.
var lowerFlows = define(`
update {flows} set aal = null, amr = null where user_id = $1 and aal > 1`)

// LowerSessions removes from a user's sessions the level and the amr method that a factor gave them. It comes before
// the factor is deleted.
func (b *Batch) LowerSessions(user, factor uuid.UUID, method string) {
	b.exec("lower sessions", lowerSessions, user, factor, method)
	b.exec("lower flows", lowerFlows, user)
}

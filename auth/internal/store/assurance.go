package store

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Raise has the data for raising a session to the level aal2 (authenticator assurance level 2) after a second factor
// was verified.
type Raise struct {
	User, Session uuid.UUID
	// SecretHash is the hash of the session's new secret. The session's earlier refresh tokens contain the old secret,
	// so they become invalid.
	SecretHash [32]byte
	Factor     uuid.UUID
	AMR        json.RawMessage
	Now        time.Time
}

var raiseSession = define(`
update {sessions} s set aal = 2, factor_id = $3, amr = $4, secret_hash = $5, counter = counter + 1, refreshed_at = $6
where id = $1 and user_id = $2 and ended_at is null
returning ` + sessionColumns)

// RaiseSession raises a session to aal2 and reads it into dst. If the session has ended, nothing changes and dst.ID is
// uuid.Nil.
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

// EndLowSessions ends the sessions of a user whose level is below aal2 or, if all is true, all sessions of the user;
// the session except is kept in both cases. It also deletes the PKCE codes that were issued and not exchanged yet,
// which would open further sessions.
func (b *Batch) EndLowSessions(user, except uuid.UUID, all bool, now time.Time) {
	b.exec("lock", lockAndVoid, user, now)
	b.exec("end low sessions", endLowSessions, user, except, now, all)
}

// secondMethods is the SQL list of the authentication methods in a session's amr that come from second factors. A
// session with one of them has the level aal2.
const secondMethods = `('totp', 'mfa/phone', 'mfa/webauthn', 'mfa/recovery_code')`

// lowerSessions removes a method from the amr of a user's sessions. Its parameters are the user, the factor that will
// be deleted, and the factor's method. A session keeps the method if its factor_id is another factor of the same kind,
// since then the method comes from that factor. If the session has no factor_id, because it continues another session,
// the method is removed. The other entries of amr are kept as they are.
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

// lowerFlows removes the level and the methods that a PKCE flow has from a session with aal2, so that the session that
// the flow's code opens does not get them.
var lowerFlows = define(`
update {flows} set aal = null, amr = null where user_id = $1 and aal > 1`)

// LowerSessions removes the amr method of a factor, and the level that it gave, from a user's sessions. It must be
// called before the factor is deleted.
func (b *Batch) LowerSessions(user, factor uuid.UUID, method string) {
	b.exec("lower sessions", lowerSessions, user, factor, method)
	b.exec("lower flows", lowerFlows, user)
}

package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Scope is which sessions a sign-out ends.
type Scope int16

// ScopeTokens ends only the refresh tokens of all sessions (no scope was given); the other scopes end sessions at once.
const (
	ScopeTokens Scope = iota
	ScopeGlobal
	ScopeLocal
	ScopeOthers
)

// SignOut is a sign-out by a valid token.
type SignOut struct {
	User uuid.UUID
	// Session is Nil for a token without a session: then all sessions count as other sessions.
	Session uuid.UUID
	Scope   Scope
	Now     time.Time
	IP      string
}

// mayEnd is the SQL for whether the session $2 of the user $1, or a token without a session, may end sessions.
const mayEnd = `($2::uuid is null or exists (
    select from {sessions} s where s.id = $2 and s.user_id = $1 and (s.ended_at is null or s.ended_reason = 'logout_tokens')))`

// lockAndVoidBy is lockAndVoid for a session that may have ended.
var lockAndVoidBy = define(`
update {users} set sessions_void_before = greatest(sessions_void_before, $3) where id = $1 and ` + mayEnd)

var signOut = define(`
with present as (
    select id from {users} where id = $1 and ` + mayEnd + `
), codes as (
    delete from {flows} where ` + issuedCodes + ` and $3::smallint <> 2 and exists (select from present)
), ended as (
    update {sessions} s set ended_at = $4, ended_reason = case $3::smallint when 0 then 'logout_tokens' else 'logout' end
    where s.user_id = $1 and exists (select from present)
      and (s.ended_at is null or s.ended_reason = 'logout_tokens' and $3 <> 0)
      and case $3 when 2 then s.id = $2 when 3 then $2::uuid is null or s.id <> $2 else true end
), noted as (
    insert into {audit} (at, action, actor_id, session_id, ip)
    select $4, $5::smallint, id, $2, $6 from present
)
select exists (select from present)`)

// SignOut ends sessions and, except with ScopeLocal, the codes that were given out and not yet exchanged. done becomes
// false if the token's own session had ended before, or the user is gone: then nothing changes and no audit row is
// written.
func (b *Batch) SignOut(done *bool, o SignOut) {
	if o.Scope != ScopeLocal {
		b.exec("lock", lockAndVoidBy, o.User, uuidOrNull(o.Session), o.Now)
	}
	b.row("sign out", done, []any{done}, signOut,
		o.User, uuidOrNull(o.Session), int16(o.Scope), o.Now, ActionLogout, o.IP)
}

// SignOut is Batch.SignOut in one round trip.
func (db *DB) SignOut(ctx context.Context, o SignOut) (done bool, err error) {
	b := db.Batch()
	b.SignOut(&done, o)
	return done, b.Send(ctx)
}

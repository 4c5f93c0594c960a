package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Scope is which sessions a sign-out ends.
type Scope int16

// ScopeTokens takes the refresh tokens of all (no scope given); the others end sessions at once.
const (
	ScopeTokens Scope = iota
	ScopeGlobal
	ScopeLocal
	ScopeOthers
)

// SignOut is a sign-out by a token that was good.
type SignOut struct {
	User uuid.UUID
	// Session is Nil for a token without one: then all sessions count as others.
	Session uuid.UUID
	Scope   Scope
	Now     time.Time
	IP      string
}

var signOut = define(`
with present as (
    select u.id from {users} u
    where u.id = $1 and ($2::uuid is null or exists (
        select from {sessions} s where s.id = $2 and s.user_id = $1 and (s.ended_at is null or s.ended_reason = 'logout_tokens')))
), voided as (
    update {users} u set sessions_void_before = greatest(u.sessions_void_before, $4)
    from present p
    where u.id = p.id and $3::smallint <> 2
    returning u.id
), codes as (
    delete from {flows} f using voided v where f.user_id = v.id and f.code_hash is not null and f.used_at is null
), ended as (
    update {sessions} s set ended_at = $4, ended_reason = case $3::smallint when 0 then 'logout_tokens' else 'logout' end
    from present p left join voided v on v.id = p.id
    where s.user_id = p.id and ($3 = 2 or v.id is not null)
      and (s.ended_at is null or s.ended_reason = 'logout_tokens' and $3 <> 0)
      and case $3 when 2 then s.id = $2 when 3 then $2::uuid is null or s.id <> $2 else true end
), noted as (
    insert into {audit} (at, action, actor_id, session_id, ip)
    select $4, $5::smallint, id, $2, $6 from present
)
select exists (select from present)`)

// SignOut ends sessions in one statement, and but for ScopeLocal the codes that were given out and not yet
// exchanged. It is false when the token's own session had ended before,
// or the user is gone: then nothing was done, and nothing noted.
func (db *DB) SignOut(ctx context.Context, o SignOut) (done bool, err error) {
	err = db.queryRow(ctx, "sign out", func(r pgx.Row) error { return r.Scan(&done) },
		signOut, o.User, uuidOrNull(o.Session), int16(o.Scope), o.Now, ActionLogout, o.IP)
	return done, err
}

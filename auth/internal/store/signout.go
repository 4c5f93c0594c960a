package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Scope says which sessions of a user a sign-out ends.
type Scope int16

// ScopeTokens is for a sign-out without a scope: it ends only the refresh tokens of all sessions. The other scopes end
// whole sessions at once.
const (
	ScopeTokens Scope = iota
	ScopeGlobal
	ScopeLocal
	ScopeOthers
)

// SignOut is a sign-out that was requested with a valid access token.
type SignOut struct {
	User uuid.UUID
	// Session is the token's session. It is Nil for a token without a session, for which all sessions are other
	// sessions.
	Session uuid.UUID
	Scope   Scope
	Now     time.Time
	IP      string
}

// mayEnd is the SQL condition that user $1 may still sign out with an access token of session $2: the session has not
// ended, or has lost only its refresh tokens. It is true for a token without a session, for which $2 is null.
const mayEnd = `($2::uuid is null or exists (
    select from {sessions} s where s.id = $2 and s.user_id = $1 and (s.ended_at is null or s.ended_reason = 'logout_tokens')))`

// lockAndVoidBy does the same as lockAndVoid, but only if the condition mayEnd is true.
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

// SignOut ends sessions. Except with ScopeLocal it also deletes the PKCE codes that were issued and not exchanged yet.
// done is set to false if the token's own session has ended before or the user does not exist any more. In this case
// nothing is changed and no audit row is written.
func (b *Batch) SignOut(done *bool, o SignOut) {
	if o.Scope != ScopeLocal {
		b.exec("lock", lockAndVoidBy, o.User, uuidOrNull(o.Session), o.Now)
	}
	b.row("sign out", done, []any{done}, signOut,
		o.User, uuidOrNull(o.Session), int16(o.Scope), o.Now, ActionLogout, o.IP)
}

// SignOut does the same as Batch.SignOut, in one round trip.
func (db *DB) SignOut(ctx context.Context, o SignOut) (done bool, err error) {
	b := db.Batch()
	b.SignOut(&done, o)
	return done, b.Send(ctx)
}

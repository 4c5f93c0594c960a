package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Refresh is a request to use a refresh token whose MAC was verified, with the rules that apply.
type Refresh struct {
	Session       uuid.UUID
	SecretHash    [32]byte
	Counter       uint64
	Now           time.Time
	UserAgent, IP string
	// ServerNow replaces PostgreSQL's clock in tests; zero: PostgreSQL's clock is read.
	ServerNow time.Time
	// CreatedAfter is the time after which the session must have been created (the time box), ActiveAfter the time
	// after which it must have been refreshed last (the inactivity limit). Zero: no limit.
	CreatedAfter, ActiveAfter time.Time
	// LowAfter is the time after which a session with aal1 must have been created if its user has a verified factor.
	// Zero: no limit.
	LowAfter time.Time
	// SinglePerUser refuses to refresh a session if the user has since signed in to another session with the same tag
	// (Session.Tag), unless this later session has expired because of its not_after or the time box. A later session
	// that LowAfter refuses counts, too.
	SinglePerUser bool
}

// Refreshed is the result of a Refresh.
type Refreshed struct {
	// Rotated is true if the token was the session's newest and all conditions were met. The number of the new token is
	// then Session.Counter.
	Rotated bool
	// User is the session's user with identities and factors.
	User User
	// Session is the session as it is after the statement, whether its token was rotated or not.
	Session Session
	// RotatedAgo is the time since the last rotation. Both times are PostgreSQL's, since the clocks of two replicas may
	// differ.
	RotatedAgo time.Duration
	// NewerLogin is true if SinglePerUser is set and the user has since signed in with the same tag.
	NewerLogin bool
}

// refreshSession locks the session's row first. So of many calls with the same token the first rotates it. The others
// wait until this is committed, and then see the new counter, since READ COMMITTED reads a row again after a wait for
// its lock. The update tests the row as it was locked. The time of a rotation is PostgreSQL's, since the interval in
// which the previous token is still accepted must not depend on the clocks of two replicas.
var refreshSession, refreshBoundedSession = define(refreshText("")), define(refreshText(`
      and (old.aal > 1 or old.created_at >= $12 or not exists (
          select from {factors} f where f.user_id = old.user_id and f.verified_at is not null))`))

// refreshText returns the text of the statement. The SQL in the parameter and is appended to the conditions under which
// the token is rotated.
func refreshText(and string) string {
	return `
with old as (
    select * from {sessions} where id = $1 and secret_hash = $2 for no key update
), newer as (
    select exists (
        select from {sessions} o, old
        where $9 and o.user_id = old.user_id and o.id <> old.id and o.tag = old.tag and o.ended_at is null
          and o.refreshed_at > old.refreshed_at and (o.not_after is null or o.not_after > $4)
          and ($7::timestamptz is null or o.created_at >= $7)
    ) as login
), rotated as (
    update {sessions} s set counter = s.counter + 1, refreshed_at = coalesce($11::timestamptz, now()), user_agent = $5, ip = $6
    from old, newer, {users} u
    where s.id = old.id and u.id = old.user_id and old.counter = $3
      and old.ended_at is null and not newer.login
      and (u.banned_until is null or u.banned_until <= $4) and u.deleted_at is null
      and (old.not_after is null or old.not_after > $4)
      and ($7::timestamptz is null or old.created_at >= $7)
      and ($8::timestamptz is null or old.refreshed_at >= $8)` + and + `
    returning s.id, s.counter, s.refreshed_at, s.user_id
), noted as (
    insert into {audit} (at, action, actor_id, session_id, ip)
    select $4, $10::smallint, user_id, id, $6 from rotated
)
select ` + userColumns + `,` + identityColumns + `,
    s.id, s.user_id, s.created_at, coalesce(r.counter, s.counter), coalesce(r.refreshed_at, s.refreshed_at),
    s.user_agent, s.ip, s.aal, s.amr, s.tag, s.factor_id, s.not_after, s.ended_at, s.ended_reason,
    r.id is not null, newer.login,
    (extract(epoch from coalesce($11::timestamptz, now()) - s.refreshed_at) * 1000000)::bigint,` +
		factorsOf("(select user_id from old)") + `
from old s
join {users} u on u.id = s.user_id
cross join newer
left join rotated r on true
left join {identities} i on i.user_id = u.id`
}

// Refresh rotates the refresh token of a session if that is allowed, records it in the audit log, and returns the
// session as it is now. All this is one statement, which is its own transaction. The error is ErrNotFound if there is
// no such session or it has another secret. If the token was not rotated, the other fields of the result say why.
func (db *DB) Refresh(ctx context.Context, p Refresh) (Refreshed, error) {
	what, args := refreshSession, []any{p.Session, p.SecretHash[:], int64(p.Counter), p.Now, p.UserAgent, p.IP,
		timeOrNull(p.CreatedAfter), timeOrNull(p.ActiveAfter), p.SinglePerUser, ActionTokenRefreshed,
		timeOrNull(p.ServerNow)}
	if !p.LowAfter.IsZero() {
		what, args = refreshBoundedSession, append(args, p.LowAfter)
	}
	var out Refreshed
	var ago int // microseconds
	row := userInto(&out.User, sessionTargets(&out.Session), &out.Rotated, &out.NewerLogin, &ago)
	err := again(ctx, func() error {
		out = Refreshed{}
		return db.query(ctx, "refresh", row, what, args...)
	})
	out.RotatedAgo = time.Duration(ago) * time.Microsecond
	out.User.sortIdentities()
	return out, orNotFound(err, out.User)
}

var endByReuse = define(`
with ended as (
    update {sessions} set ended_at = $2, ended_reason = 'reuse'
    where id = $1 and ended_at is null
    returning id, user_id
)
insert into {audit} (at, action, actor_id, session_id, ip, traits)
select $2, $3::smallint, user_id, id, $4, '{"reason":"reuse"}' from ended`)

// EndByReuse ends a session whose PKCE code was used a second time, and records that in the audit log.
func (b *Batch) EndByReuse(session uuid.UUID, now time.Time, ip string) {
	b.exec("end by reuse", endByReuse, session, now, ActionTokenRevoked, ip)
}

// EndByReuse ends a session because one of its old refresh tokens was used again, and records that in the audit log.
func (db *DB) EndByReuse(ctx context.Context, session uuid.UUID, now time.Time, ip string) error {
	return db.run(ctx, "end by reuse", endByReuse, session, now, ActionTokenRevoked, ip)
}

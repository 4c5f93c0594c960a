package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// CredentialsFor says whose password is to be checked: Email or Phone.
type CredentialsFor struct {
	Aud, Email, Phone string
	// Tries is the bucket of failures of that address.
	Tries Limit
}

// Credentials are what a password sign-in has to know beforehand.
type Credentials struct {
	// User has a Nil ID when the address is unknown. Without identities.
	User User
	// PendingHash is the newest pending sign-up's.
	PendingHash string
	// Tries is the bucket's level.
	Tries Level
}

// One row in any case, found by the same work. A pending sign-up counts only while nothing is confirmed.
var selectCredentials = define(`
select ` + userColumns + `,
    (select t.password_hash from {one_time_tokens} t
     where t.user_id = u.id and t.kind = 'signup' and t.expires_at > $5 and u.password_hash = ''
       and u.email_confirmed_at is null and u.phone_confirmed_at is null
     order by t.created_at desc limit 1),
    l.tokens, l.at
from (select) here
left join {users} u on u.id = (
    select id from {users} where aud = $1 and email = $2 and email <> ''
    union all
    select id from {users} where aud = $1 and phone = $3 and phone <> ''
    limit 1) and u.deleted_at is null
left join {limits} l on l.key = $4`)

// Credentials reads them in one statement.
func (db *DB) Credentials(ctx context.Context, f CredentialsFor, now time.Time) (Credentials, error) {
	var c Credentials
	err := db.one(ctx, "credentials", func(r pgx.Row) error {
		var left *float64
		targets := nullable(&c.User)
		if err := r.Scan(append(targets, (*text)(&c.PendingHash), &left, (*at)(&c.Tries.At))...); err != nil {
			return err
		}
		if left != nil {
			c.Tries.Tokens = *left
		}
		return nil
	}, selectCredentials, f.Aud, f.Email, f.Phone, f.Tries.Key, now)
	return c, err
}

// nullable are userTargets that take a row of nulls.
func nullable(u *User) []any {
	targets := userTargets(u)
	for i, t := range targets {
		switch t := t.(type) {
		case *string:
			targets[i] = (*text)(t)
		case *bool:
			targets[i] = (*flag)(t)
		}
	}
	return targets
}

// OpenSession is a sign-in whose password was right.
type OpenSession struct {
	Session NewSession
	// IfPassword is the hash that was checked: a user who has another by now is refused. "" tests nothing.
	IfPassword string
	// Rehash replaces it; "" keeps it.
	Rehash string
	Audit  Audit
}

// The conditions stand here again: between the look-up and now a hash was computed.
var openSession = define(`
with person as (
    update {users} u set
        last_sign_in_at = $3, updated_at = $3,
        password_hash = case when $12 = '' then password_hash else $12 end
    where u.id = $2 and ($11 = '' or u.password_hash = $11)
      and u.deleted_at is null and (u.banned_until is null or u.banned_until <= $3)
    returning u.*
), opened as (
    insert into {sessions} (id, user_id, created_at, secret_hash, refreshed_at, user_agent, ip, aal, amr, tag, not_after)
    select $1, id, $3, $4, $3, $5, $6, $7, $8, $9, $10 from person
    returning id
), noted as (
    insert into {audit} (at, action, actor_id, actor_role, session_id, ip, traits)
    select $13::timestamptz, $14::smallint, $15::uuid, $16::text, $17::uuid, $18::text, $19::jsonb from person
)
select ` + userColumns + `,` + identityColumns + `,` + factorsOf("$2") + `
from person u left join {identities} i on i.user_id = u.id`)

// OpenSession opens it, in one statement, and returns the user with identities and factors as he is now.
// ErrNotFound: he was banned, deleted or given another password meanwhile.
func (db *DB) OpenSession(ctx context.Context, o OpenSession) (User, error) {
	var u User
	err := db.each(ctx, "open session", into(&u), openSession, o.args()...)
	u.sortIdentities()
	return u, found(err, u)
}

// OpenSession is DB's, as a step of a transaction.
func (t *Tx) OpenSession(ctx context.Context, o OpenSession) (User, error) {
	var u User
	b := t.Batch()
	b.rows("open session", into(&u), openSession, o.args()...)
	err := b.Send(ctx)
	u.sortIdentities()
	return u, found(err, u)
}

func (o OpenSession) args() []any {
	s := o.Session
	args := []any{s.ID, s.User, s.At, s.SecretHash[:], s.UserAgent, s.IP, s.AAL, []byte(s.AMR), s.Tag, null(s.NotAfter), o.IfPassword, o.Rehash}
	return append(args, o.Audit.args()...)
}

// FailedPassword is a wrong password, or one for an unknown address.
type FailedPassword struct {
	// Tries loses one.
	Tries Limit
	Now   time.Time
	// Audit is noted when Note holds one: at most once a minute for an address.
	Audit Audit
	Note  Limit
}

// The mark of the audit row is a bucket of one whose refusal is no error: nothing is noted then. A
// bucket that is already empty stays so.
var failPassword = define(`
with taken as (
    insert into {limits} as l (key, tokens, at, full_at)
    values ($1, greatest(0, $2::float8 - 1), $4::timestamptz, $4::timestamptz + $5::float8 * interval '1 second')
    on conflict (key) do update set
        tokens = greatest(0, least($2::float8, l.tokens + greatest(0, extract(epoch from $4::timestamptz - l.at)::float8) * $3::float8) - 1),
        at = greatest(l.at, $4), full_at = greatest(l.full_at, $4::timestamptz + $5::float8 * interval '1 second')
), marked as (
    insert into {limits} as l (key, tokens, at, full_at)
    values ($6, 0, $4::timestamptz, $4::timestamptz + $7::float8 * interval '1 second')
    on conflict (key) do update set at = $4, full_at = excluded.full_at
    where l.full_at <= $4
    returning 1
)
insert into {audit} (at, action, actor_id, actor_role, session_id, ip, traits)
select $8::timestamptz, $9::smallint, $10::uuid, $11::text, $12::uuid, $13::text, $14::jsonb from marked`)

// FailedPassword takes a try and notes it, in one statement.
func (db *DB) FailedPassword(ctx context.Context, f FailedPassword) error {
	args := []any{f.Tries.Key, f.Tries.Size, f.Tries.rate(), f.Now, f.Tries.Refill.Seconds(), f.Note.Key, f.Note.Refill.Seconds()}
	_, err := db.run(ctx, "failed password", failPassword, append(args, f.Audit.args()...)...)
	return err
}

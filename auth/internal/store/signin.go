package store

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
)

// CredentialsFor identifies the user whose password is to be checked, by Email or by Phone.
type CredentialsFor struct {
	Aud, Email, Phone string
	// Tries is the bucket that counts wrong passwords for the address. Place also has a bucket, which counts wrong
	// passwords from a known place.
	Tries Limit
	Place Place
}

// Credentials has the data that a sign-in with a password reads first.
type Credentials struct {
	// User is the user without identities; its ID is Nil if the address is unknown.
	User User
	// PendingHash is the password hash of the user's newest pending sign-up.
	PendingHash string
	Tried
}

// Tried has the levels of the buckets that count wrong passwords.
type Tried struct {
	// Tries is the level of the address's bucket.
	Tries Level
	// PlaceKnown is true if the place is a known place of the user. PlaceTries is the level of the place's bucket.
	PlaceKnown bool
	PlaceTries Level
}

func triedTargets(t *Tried) []any {
	return []any{&t.Tries.Tokens, &t.Tries.At, &t.PlaceKnown, &t.PlaceTries.Tokens, &t.PlaceTries.At}
}

var selectTried = define(`
select l.tokens, l.at, ` + knowsPlace("$1", "$3", "$4") + `, lp.tokens, lp.at
from (select) here left join {limits} l on l.key = $2 left join {limits} lp on lp.key = $5`)

// Tried reads the level of the bucket tries and that of the place's bucket into dst.
func (b *Batch) Tried(dst *Tried, user uuid.UUID, tries Limit, p Place) {
	b.row("tried", dst, triedTargets(dst), selectTried,
		user, tries.Key, bytesOrNull(p.MAC), p.Since, bytesOrNull(p.Tries.Key))
}

// selectCredentials returns one row and does the same work whether or not the address is known, so that the time of the
// answer does not reveal whether it is. A pending sign-up counts only if no address of the user is confirmed.
var selectCredentials = define(`
select ` + userColumns + `,
    (select t.password_hash from {one_time_tokens} t
     where t.user_id = u.id and t.kind = 'signup' and t.expires_at > $5 and t.password_hash <> '' and u.password_hash = ''
       and u.email_confirmed_at is null and u.phone_confirmed_at is null
     order by t.created_at desc limit 1),
    l.tokens, l.at, ` + knowsPlace("u.id", "$6", "$7") + `, lp.tokens, lp.at
from (select) here
left join {users} u on u.id = (
    select id from {users} where aud = $1 and email = $2 and email <> ''
    union all
    select id from {users} where aud = $1 and phone = $3 and phone <> ''
    limit 1) and u.deleted_at is null
left join {limits} l on l.key = $4
left join {limits} lp on lp.key = $8`)

// Credentials reads, in one statement, what a sign-in with a password needs first.
func (db *DB) Credentials(ctx context.Context, f CredentialsFor, now time.Time) (Credentials, error) {
	var c Credentials
	targets := slices.Concat(userTargets(&c.User), []any{&c.PendingHash}, triedTargets(&c.Tried))
	err := db.queryRow(ctx, "credentials", targets, selectCredentials,
		f.Aud, f.Email, f.Phone, f.Tries.Key, now, bytesOrNull(f.Place.MAC), f.Place.Since,
		bytesOrNull(f.Place.Tries.Key))
	return c, err
}

// OpenSession is a sign-in that was verified, usually by its password.
type OpenSession struct {
	Session NewSession
	// IfPassword is the password hash that was verified. If the user's hash has changed since, no session is opened.
	// "": the hash is not compared.
	IfPassword string
	// Rehash replaces the user's password hash; "" keeps it.
	Rehash string
	// Tries, if it has a key, is a bucket that must hold a token. None is taken from it.
	Tries Limit
	Audit Audit
}

// openSession tests the conditions for a sign-in again, since time has passed while the password was hashed. It always
// returns a row, which says whether the bucket held a token.
var openSession = define(`
with bucket as (
    select $20::bytea is null or not exists (
        select from {limits} l where l.key = $20 and not ` + bucket{size: "$21", rate: "$22", now: "$3"}.holdsTry() + `) as holds
), person as (
    update {users} u set
        last_sign_in_at = $3, updated_at = $3,
        password_hash = case when $12 = '' then password_hash else $12 end
    where u.id = $2 and ($11 = '' or u.password_hash = $11)
      and u.deleted_at is null and (u.banned_until is null or u.banned_until <= $3)
      and (select holds from bucket)
    returning u.*
), opened as (
    insert into {sessions} (id, user_id, created_at, secret_hash, refreshed_at, user_agent, ip, aal, amr, tag, not_after)
    select $1, id, $3, $4, $3, $5, $6, $7, $8, $9, $10 from person
    returning id
), ` + rememberPlace("person", "$2", "$23", "$3") + `, ` + noted("$13", 14, "person") + `
select ` + userColumns + `,` + identityColumns + `, bucket.holds,` + factorsOf("$2") + `
from bucket left join person u on true left join {identities} i on i.user_id = u.id`)

// OpenSession opens the session in one statement, and returns the user as it is now, with identities and factors. The
// error is a LimitError if the bucket Tries is empty. It is ErrNotFound if the user was banned or deleted, or the
// password was changed, after the caller has read the user.
func (db *DB) OpenSession(ctx context.Context, o OpenSession) (User, error) {
	var u User
	var holds bool
	err := again(ctx, func() error {
		u = User{}
		return db.query(ctx, "open session", userInto(&u, nil, &holds), openSession, o.args()...)
	})
	return u, o.result(&u, holds, err)
}

// OpenSession does the same as DB.OpenSession, within the transaction.
func (t *Tx) OpenSession(ctx context.Context, o OpenSession) (User, error) {
	var u User
	var holds bool
	b := t.Batch()
	b.rows("open session", &u, userInto(&u, nil, &holds), openSession, o.args()...)
	err := b.Send(ctx)
	return u, o.result(&u, holds, err)
}

func (o OpenSession) result(u *User, holds bool, err error) error {
	if err == nil && !holds {
		return wrapError("open session", &LimitError{o.Tries})
	}
	u.sortIdentities()
	return orNotFound(err, *u)
}

func (o OpenSession) args() []any {
	s := o.Session
	args := []any{s.ID, s.User, s.At, s.SecretHash[:], s.UserAgent, s.IP, s.AAL, []byte(s.AMR), s.Tag,
		timeOrNull(s.NotAfter), o.IfPassword, o.Rehash}
	args = append(args, o.Audit.args()...)
	return append(args, bytesOrNull(o.Tries.Key), o.Tries.Size, o.Tries.rate(), bytesOrNull(s.Place))
}

// FailedPassword is a try to sign in with a password that has opened no session.
type FailedPassword struct {
	// Tries is the bucket that must hold a token for the try.
	Tries Limit
	Now   time.Time
	// Audit is written if the bucket Note holds a token. So it is written at most once a minute for an address.
	Audit Audit
	Note  Limit
}

// failPassword takes a token from the bucket Tries and writes an audit row. If the bucket Note is empty, it writes no
// audit row, which is not an error.
var failPassword = define(`
with ` + takeFrom("$1::bytea", "", bucket{size: "$2", rate: "$3", refill: "$5", now: "$4"}) + `, ` +
	markPause("$6", "$7", "$4", "from taken") + `, ` + noteIfRoom(8) + `
select exists (select from taken), ` + roomColumns)

// FailedPassword takes a token from the bucket Tries for a wrong password, and records the try, in one statement. The
// error is a LimitError if the bucket was empty. In this case the caller must not tell the client that the password was
// wrong.
func (db *DB) FailedPassword(ctx context.Context, f FailedPassword) error {
	args := []any{f.Tries.Key, f.Tries.Size, f.Tries.rate(), f.Now, f.Tries.Refill.Seconds(), f.Note.Key,
		f.Note.Refill.Seconds()}
	e := db.admitAudit(f.Audit)
	var taken, due, wrote bool
	err := db.queryRow(ctx, "failed password", []any{&taken, &due, &wrote}, failPassword,
		append(append(args, f.Audit.args()...), e.args()...)...)
	e.report(due, wrote, err)
	return f.result(taken, err)
}

var refusePassword = define(`
with bucket as (
    select where $1::bytea is null or not exists (
        select from {limits} l where l.key = $1 and not ` + bucket{size: "$2", rate: "$3", now: "$4"}.holdsTry() + `)
), ` + markPause("$5", "$6", "$4", "from bucket") + `, ` + noted("$7", 8, "marked") + `
select from bucket`)

// RefusedPassword records, in one statement, that a user who may not sign in has entered the right password. It takes
// no token from the bucket Tries, but returns a LimitError if this bucket is empty. In this case the caller must not
// tell the client that the password was right. A bucket Tries without a key is ignored.
func (db *DB) RefusedPassword(ctx context.Context, f FailedPassword) error {
	args := []any{bytesOrNull(f.Tries.Key), f.Tries.Size, f.Tries.rate(), f.Now, f.Note.Key, f.Note.Refill.Seconds()}
	n, err := db.exec(ctx, "refused password", refusePassword, append(args, f.Audit.args()...)...)
	return f.result(n > 0, err)
}

func (f FailedPassword) result(had bool, err error) error {
	if err == nil && !had {
		return wrapError("password", &LimitError{f.Tries})
	}
	return err
}

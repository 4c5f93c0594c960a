package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// isLive is the SQL condition that a WebAuthn challenge can still be spent: used for an authenticator's answer, which
// is possible once. The ids of spent challenges are deleted about a minute after the last time at which the condition
// can be true. The condition reads PostgreSQL's clock after all waits for locks, so that a wrong clock of a replica
// cannot make a spent challenge usable again.
const isLive = `coalesce($3::timestamptz, clock_timestamp()) <= $2::timestamptz`

var spendChallenge = define(`
insert into {spent_challenges} (id) select $1::uuid where ` + isLive + `
on conflict do nothing`)

// Spending is a challenge that an authenticator's answer is about to spend, so that it cannot be used again.
type Spending struct {
	Challenge uuid.UUID
	Expires   time.Time
	// ServerNow replaces PostgreSQL's clock in tests; zero: PostgreSQL's clock is read.
	ServerNow time.Time
}

// spendingGrace is how long after its expiry a challenge may still be spent: a request that arrived in time may have to
// wait for locks.
const spendingGrace = time.Minute

func (s Spending) args() []any {
	return []any{s.Challenge, s.Expires.Add(spendingGrace), timeOrNull(s.ServerNow)}
}

// SpendChallenge marks a challenge as spent. If it was spent before or has expired, Send returns ErrNotFound and the
// whole Batch is undone.
func (b *Batch) SpendChallenge(s Spending) {
	b.add("spend challenge", func(r pgx.BatchResults) error {
		tag, err := r.Exec()
		if err == nil && tag.RowsAffected() == 0 {
			err = ErrNotFound
		}
		return err
	}, spendChallenge, s.args()...)
}

// The first 4 bytes of a challenge's id are the Unix time of its expiry, so the condition on the id finds the expired
// challenges.
var sweepSpentChallenges = define(`
delete from {spent_challenges} where id in (
    select id from {spent_challenges}
    where id < (lpad(to_hex(extract(epoch from coalesce($2::timestamptz, now()))::bigint - 120), 8, '0') || repeat('0', 24))::uuid
    limit $1 for update skip locked)`)

// PasskeyOwner has the data that a sign-in with a passkey reads first.
type PasskeyOwner struct {
	// User is the passkey's owner, without identities. Its ID is Nil if the credential is unknown, is not a passkey, or
	// belongs to a user with another audience.
	User    User
	Passkey Credential
	Spent   bool
}

// selectPasskeyOwner returns one row, even if the passkey is unknown.
var selectPasskeyOwner = define(`
select ` + userColumns + `, ` + credentialColumns + `, exists (select from {spent_challenges} where id = $2)
from (select) here
left join {webauthn_credentials} c on c.credential_id = $1 and c.factor_id is null
left join {users} u on u.id = c.user_id and u.aud = $3 and u.deleted_at is null`)

// PasskeyOwner reads the owner of a passkey, and whether a challenge was spent, in one statement.
func (db *DB) PasskeyOwner(ctx context.Context, credential []byte, challenge uuid.UUID, aud string) (PasskeyOwner, error) {
	var o PasskeyOwner
	targets := append(userTargets(&o.User), credentialTargets(&o.Passkey)...)
	err := db.queryRow(ctx, "passkey owner", append(targets, &o.Spent), selectPasskeyOwner, credential, challenge, aud)
	return o, err
}

// OpenPasskeySession is a sign-in with a passkey whose signature was verified.
type OpenPasskeySession struct {
	Session NewSession
	Passkey Credential // the credential's row with its new counter and flags
	Spending
	// MayReachAAL2 allows the level aal2 for the session. The session gets it if the passkey is bound or the user has
	// no verified factor.
	MayReachAAL2 bool
	Audit        Audit
}

// PasskeySession is the result of OpenPasskeySession. AAL is the session's level, or 0 if no session was opened.
type PasskeySession struct {
	Spent bool
	AAL   int
	User  User
}

// openPasskeySession is a chain of table expressions: each reads the rows of the one before it, so if one returns no
// row, the following ones do nothing. An earlier statement of the Batch has locked the user, so that the factors and
// the column bound are read as the previous holder of the lock has left them.
var openPasskeySession = define(`
with spent as (
    insert into {spent_challenges} (id) select $1::uuid where ` + isLive + `
    on conflict do nothing returning id
), person as (
    update {users} u set last_sign_in_at = $6, updated_at = $6
    from spent
    where u.id = $5 and u.deleted_at is null and (u.banned_until is null or u.banned_until <= $6)
    returning u.*
), used as (
    update {webauthn_credentials} c set
        backed_up = $15, last_used_at = $6,
        sign_count = case when c.backup_eligible then c.sign_count else $16::bigint end
    from person
    where c.id = $14 and c.user_id = person.id and c.factor_id is null
      and (c.backup_eligible or c.sign_count < $16::bigint or c.sign_count = 0 and $16::bigint = 0)
    returning c.id as passkey_id, c.user_id as id, c.bound
), opened as (
    insert into {sessions} (id, user_id, created_at, secret_hash, refreshed_at, user_agent, ip, aal, amr, tag, not_after,
        passkey_id)
    select $4, id, $6, $7, $6, $8, $9, case when $17::boolean and (bound or not exists (
            select from {factors} f where f.user_id = $5 and f.verified_at is not null)) then 2 else 1 end,
        $10, $11, $12, passkey_id from used
    returning aal
), ` + rememberPlace("used", "$5", "$13", "$6") + `, ` + noted("$6", 18, "opened") + `
select ` + userColumns + `,` + identityColumns + `, exists (select from spent), (select aal from opened),` +
	factorsOf("$5") + `
from (select) here left join person u on true left join {identities} i on i.user_id = u.id`)

// OpenPasskeySession locks the user, spends the challenge and opens the session, in one round trip.
func (db *DB) OpenPasskeySession(ctx context.Context, o OpenPasskeySession) (PasskeySession, error) {
	var out PasskeySession
	s, k := o.Session, o.Passkey.Key
	args := append(o.Spending.args(), s.ID, s.User, s.At, s.SecretHash[:], s.UserAgent, s.IP, []byte(s.AMR), s.Tag,
		timeOrNull(s.NotAfter), bytesOrNull(s.Place), o.Passkey.ID, k.BackedUp, int64(k.SignCount),
		o.MayReachAAL2)
	b := db.Batch()
	b.exec("lock", lockRow, s.User)
	b.rows("open passkey session", &out, userInto(&out.User, nil, &out.Spent, &out.AAL), openPasskeySession,
		append(args, o.Audit.args()[1:]...)...)
	err := b.Send(ctx)
	out.User.sortIdentities()
	return out, err
}

var renamePasskey = define(`
with renamed as (
    update {webauthn_credentials} c set friendly_name = $3 where id = $2 and user_id = $1 and factor_id is null
    returning c.*
), ` + noted("$4", 5, "renamed") + `
select ` + credentialColumns + ` from renamed c`)

// RenamePasskey changes the name of a user's passkey. The error is ErrNotFound if the user has no such passkey.
func (db *DB) RenamePasskey(ctx context.Context, user, id uuid.UUID, name string, a Audit) (Credential, error) {
	var c Credential
	err := db.queryRow(ctx, "rename passkey", credentialTargets(&c), renamePasskey,
		append([]any{user, id, name}, a.args()...)...)
	return c, err
}

var deletePasskey = define(`
delete from {webauthn_credentials} c where id = $2 and user_id = $1 and factor_id is null
returning ` + credentialColumns)

// A session without a passkey_id was continued from another session or copied by a takeover. It is ended if its amr
// contains "passkey".
var endPasskeySessions = define(`
with codes as (
    delete from {flows} where ` + issuedCodes + `
)
update {sessions} set ended_at = $4, ended_reason = '` + EndedPasskey + `'
where user_id = $1 and ($3::uuid is null or id <> $3)
  and (passkey_id = $2 or passkey_id is null and amr @> '[{"method": "passkey"}]')
  and (ended_at is null or ended_reason = 'logout_tokens')`)

// DeletePasskey deletes a passkey of a user, stores the deleted passkey in dst, and ends the sessions that the passkey
// opened, except one. It also deletes the user's PKCE codes that were issued and not exchanged yet. If the user has no
// such passkey, dst.ID is uuid.Nil.
func (b *Batch) DeletePasskey(dst *Credential, user, id, except uuid.UUID, now time.Time) {
	b.exec("lock", lockAndVoid, user, now)
	b.exec("end passkey sessions", endPasskeySessions, user, id, uuidOrNull(except), now)
	b.row("delete passkey", dst, credentialTargets(dst), deletePasskey, user, id)
}

var deletePasskeys = define(`
delete from {webauthn_credentials} where user_id = $1 and factor_id is null`)

// DeletePasskeys deletes all passkeys of a user. It ends no sessions; the callers do that.
func (b *Batch) DeletePasskeys(user uuid.UUID) { b.exec("delete passkeys", deletePasskeys, user) }

package store

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Sweep says which rows have expired and are to be deleted. Rows whose time limit is zero are kept.
type Sweep struct {
	Now time.Time
	// Tokens, flows, states, spent ID tokens and limits are deleted if they expired before Now. Messages are deleted if
	// they were sent, or failed or expired for good, before Messages. Audit rows are deleted if they were written
	// before Audit.
	Messages, Audit time.Time
	// Challenges are deleted if they expired before the time Challenges, unverified factors if they were enrolled
	// before Factors.
	Challenges, Factors time.Time
	// Known places are deleted if the last sign-in from them was before Places.
	Places time.Time
	// Sessions are deleted if they ended or reached their not_after before EndedBefore, if they were created before
	// CreatedBefore, or if they were last refreshed before ActiveBefore.
	EndedBefore, CreatedBefore, ActiveBefore time.Time
	// Anonymous users are deleted if they were last active before Anonymous. They are kept if they were created before
	// AnonymousSince, or have a confirmed address, a password, an identity at a provider or a verified factor.
	Anonymous, AnonymousSince time.Time
	// Behind is the last anonymous user that the previous step tried to delete separately. This step continues after
	// it; zero: it starts with the oldest.
	Behind AnonymousUser
	// ServerNow replaces PostgreSQL's clock in tests; zero: PostgreSQL's clock is read.
	ServerNow time.Time
	// Batch is how many rows of each kind a step may read or delete.
	Batch int
	// Cursor is the session at which the previous step ended; Nil: this step starts with the first session.
	Cursor uuid.UUID
}

// AnonymousUser is a position in the list of anonymous users, which is sorted by age.
type AnonymousUser struct {
	CreatedAt time.Time
	ID        uuid.UUID
}

// Swept is the result of one step.
type Swept struct {
	// Removed is how many rows were deleted.
	Removed int64
	// Cursor is the Sweep.Cursor of the next step; Nil: all sessions were read.
	Cursor uuid.UUID
	// Refused is how many anonymous users could not be deleted, Why the first error. Behind is the Sweep.Behind of the
	// next step, so that it skips these users.
	Refused int
	Why     error
	Behind  AnonymousUser
	// Busy is true if another replica was sweeping, so that this step did nothing.
	Busy bool
}

var trySweepLock = define(`
select pg_try_advisory_xact_lock($1)`)

// sweeping defines the statement that deletes up to $2 rows of a table for which the condition is true. key is the
// primary key. Rows that are locked are skipped.
func sweeping(table, key, condition string) statement {
	return define(`
delete from {` + table + `} where ` + key + ` in (
    select ` + key + ` from {` + table + `} where ` + condition + ` limit $2 for update skip locked)`)
}

var sweepTokens = sweeping("one_time_tokens", "id", "expires_at < $1")
var sweepFlows = sweeping("flows", "id", "expires_at < $1")
var sweepExternalStates = sweeping("external_states", "state_hash", "expires_at < $1")
var sweepSpentIDTokens = sweeping("spent_id_tokens", "key", "expires_at < $1")
var sweepChallenges = sweeping("challenges", "id", "expires_at < $1")
var sweepFactors = sweeping("factors", "id", "verified_at is null and created_at < $1")

var sweepPlaces = define(`
delete from {known_places} where (user_id, place) in (
    select user_id, place from {known_places} where seen_at < $1 limit $2 for update skip locked)`)

// The tables limits and outbox have no index on the time, so that a step reads them completely. They stay small, since
// full buckets and old messages are deleted.
var sweepLimits = sweeping("limits", "key", "full_at < $1")

var sweepMessages = define(`
delete from {outbox} where id in (
    select id from {outbox} where created_at < $1 and state <> 'pending' and done_at < $1
    order by created_at limit $2 for update skip locked)`)

// wipeMessages deletes the payloads of failed messages that have expired. Before that the operator may send them again.
var wipeMessages = define(`
update {outbox} set payload = null where id in (
    select id from {outbox} where state = 'failed' and payload is not null and expires_at <= $1 limit $2 for update skip locked)`)

// sweepAudit finds the oldest rows by the primary key, since the ids of audit rows grow with time.
var sweepAudit = define(`
delete from {audit} where at < $1 and id <= (
    select max(id) from (select id, at from {audit} order by id limit $2) oldest where at < $1)`)

// sweepSessions reads the sessions in the order of the primary key. An index on ended_at or refreshed_at would be
// faster to search, but would slow down every refresh.
var sweepSessions = define(`
with part as (
    select id, created_at, refreshed_at, not_after, ended_at from {sessions}
    where id > $1 order by id limit $2
), gone as (
    delete from {sessions} s using part p
    where s.id = p.id and (
        p.ended_at < $3::timestamptz or p.not_after < $3::timestamptz
        or p.created_at < $4::timestamptz or p.refreshed_at < $5::timestamptz)
    returning s.id
)
select (select count(*) from part), (select count(*) from gone), (select id from part order by id desc limit 1)`)

const isAbandoned = `u.is_anonymous and u.created_at < $1 and u.updated_at < $1 and u.created_at >= $3
      and u.email_confirmed_at is null and u.phone_confirmed_at is null and u.password_hash = ''
      and not exists (select from {identities} i where i.user_id = u.id and i.provider not in ('email', 'phone'))
      and not exists (select from {factors} f where f.user_id = u.id and f.verified_at is not null)
      and not exists (select from {sessions} s where s.user_id = u.id and s.refreshed_at >= $1)`

const nextAbandoned = `from {users} u
    where ` + isAbandoned + ` and (u.created_at, u.id) > ($4, $5::uuid)
    order by u.created_at, u.id limit $2 for update skip locked`

var sweepAnonymous = define(`
delete from {users} where id in (select u.id ` + nextAbandoned + `)`)

var selectAbandoned = define(`
select u.id, u.created_at ` + nextAbandoned)

var sweepAnonymousUser = define(`
delete from {users} u where u.id = $2 and ` + isAbandoned)

// Sweep does one step, which deletes a limited number of rows, unless another replica is sweeping. If an anonymous user
// cannot be deleted, because a table of the application refers to the user, the anonymous users of the step are deleted
// one by one.
func (db *DB) Sweep(ctx context.Context, s Sweep) (out Swept, err error) {
	out, err = db.sweepStep(ctx, s)
	if pg, _ := errors.AsType[*pgconn.PgError](err); pg == nil || s.Anonymous.IsZero() ||
		errors.Is(err, ErrUnavailable) {
		return out, err
	}
	others := s
	others.Anonymous = time.Time{}
	if out, err = db.sweepStep(ctx, others); err == nil && !out.Busy {
		err = db.sweepOneByOne(ctx, s, &out)
	}
	return out, err
}

func (db *DB) sweepStep(ctx context.Context, s Sweep) (out Swept, err error) {
	err = db.InTx(ctx, func(t *Tx) error {
		out = Swept{Behind: s.Behind}
		var mine bool
		if err := t.queryRow(ctx, []any{&mine}, trySweepLock, db.lockKey("sweep")); err != nil {
			return err
		}
		if !mine {
			out = Swept{Busy: true, Cursor: s.Cursor, Behind: s.Behind}
			return nil
		}
		if err := t.sweepByTime(ctx, s, &out); err != nil {
			return err
		}
		return t.sweepSessions(ctx, s, &out)
	})
	if err != nil {
		out.Removed = 0
	}
	return out, err
}

// sweepOneByOne deletes a batch of anonymous users, each in a transaction of its own, and counts those that cannot be
// deleted.
func (db *DB) sweepOneByOne(ctx context.Context, s Sweep, out *Swept) error {
	var list []AnonymousUser
	err := db.query(ctx, "abandoned users", appendTo(&list, func(u *AnonymousUser) []any {
		return []any{&u.ID, &u.CreatedAt}
	}), selectAbandoned, s.Anonymous, s.Batch, s.AnonymousSince, s.Behind.CreatedAt, s.Behind.ID)
	if err != nil {
		return err
	}
	for _, u := range list {
		n, err := db.exec(ctx, "sweep anonymous", sweepAnonymousUser, s.Anonymous, u.ID, s.AnonymousSince)
		if pg, _ := errors.AsType[*pgconn.PgError](err); err != nil && (pg == nil || errors.Is(err, ErrUnavailable)) {
			return err
		}
		if out.Behind = u; err == nil {
			out.Removed += n
			continue
		}
		out.Refused++
		out.Why = cmp.Or(out.Why, err)
	}
	return nil
}

func (t *Tx) sweepByTime(ctx context.Context, s Sweep, out *Swept) error {
	b := t.Batch()
	count := func(doing string, what statement, args ...any) {
		b.add(doing, func(r pgx.BatchResults) error {
			tag, err := r.Exec()
			out.Removed += tag.RowsAffected()
			return err
		}, what, args...)
	}
	kind := func(doing string, what statement, before time.Time, more ...any) {
		if !before.IsZero() {
			count(doing, what, append([]any{before, s.Batch}, more...)...)
		}
	}
	kind("sweep tokens", sweepTokens, s.Now)
	kind("sweep flows", sweepFlows, s.Now)
	kind("sweep external states", sweepExternalStates, s.Now)
	kind("sweep spent id tokens", sweepSpentIDTokens, s.Now)
	kind("sweep challenges", sweepChallenges, s.Challenges)
	kind("sweep factors", sweepFactors, s.Factors)
	kind("sweep places", sweepPlaces, s.Places)
	kind("sweep limits", sweepLimits, s.Now)
	kind("sweep messages", sweepMessages, s.Messages)
	b.exec("wipe messages", wipeMessages, s.Now, s.Batch)
	count("sweep spent challenges", sweepSpentChallenges, s.Batch, timeOrNull(s.ServerNow))
	kind("sweep audit", sweepAudit, s.Audit)
	kind("sweep anonymous", sweepAnonymous, s.Anonymous, s.AnonymousSince, s.Behind.CreatedAt, s.Behind.ID)
	return b.Send(ctx)
}

func (t *Tx) sweepSessions(ctx context.Context, s Sweep, out *Swept) error {
	var seen, gone int64
	var last uuid.UUID
	err := t.queryRow(ctx, []any{&seen, &gone, &last}, sweepSessions, s.Cursor, s.Batch, timeOrNull(s.EndedBefore),
		timeOrNull(s.CreatedBefore), timeOrNull(s.ActiveBefore))
	if out.Removed += gone; seen == int64(s.Batch) {
		out.Cursor = last
	}
	return t.db.wrapError("sweep sessions", err)
}

package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Session is one sign-in.
type Session struct {
	ID, UserID uuid.UUID
	CreatedAt  time.Time
	// Counter is the number of the newest refresh token, 0 before the first refresh. RefreshedAt is when that token was
	// issued, CreatedAt before the first refresh.
	Counter     uint64
	RefreshedAt time.Time
	UserAgent   string
	IP          string
	// AAL is 1 or 2. AMR is the claim amr: [{"method","timestamp","provider"?}], newest first.
	AAL      int
	AMR      json.RawMessage
	Tag      string
	FactorID uuid.UUID
	NotAfter time.Time
	// EndedAt is zero while the session lives.
	EndedAt     time.Time
	EndedReason string
}

// sessionColumns are read in this order by sessionTargets; they are null if there is no session.
const sessionColumns = `
    s.id, s.user_id, s.created_at, s.counter, s.refreshed_at, s.user_agent, s.ip, s.aal, s.amr, s.tag, s.factor_id,
    s.not_after, s.ended_at, s.ended_reason`

func sessionTargets(s *Session) []any {
	return []any{&s.ID, &s.UserID, &s.CreatedAt, &s.Counter, &s.RefreshedAt, &s.UserAgent, &s.IP, &s.AAL, &s.AMR,
		&s.Tag, &s.FactorID, &s.NotAfter, &s.EndedAt, &s.EndedReason}
}

// NewSession is a sign-in.
type NewSession struct {
	ID, User uuid.UUID
	// SecretHash is SHA-256 of the random bytes in the session's refresh tokens.
	SecretHash         [32]byte
	At                 time.Time
	UserAgent, IP, Tag string
	AAL                int
	AMR                json.RawMessage
	NotAfter           time.Time
	// Place is the MAC of the network that the user signs in from, which becomes a known place; nil: no place becomes
	// known.
	Place []byte
}

var insertSession = define(`
with person as (select $2::uuid as id), ` + rememberPlace("person", "$2", "$11", "$3") + `
insert into {sessions} (id, user_id, created_at, secret_hash, refreshed_at, user_agent, ip, aal, amr, tag, not_after)
values ($1, (select id from {users} where id = $2 and deleted_at is null), $3, $4, $3, $5, $6, $7, $8, $9, $10)`)

// InsertSession opens a session; ErrUserGone when its user doesn't exist, or was deleted.
func (b *Batch) InsertSession(s NewSession) {
	b.exec("insert session", insertSession, s.ID, s.User, s.At, s.SecretHash[:], s.UserAgent, s.IP, s.AAL,
		[]byte(s.AMR), s.Tag, timeOrNull(s.NotAfter), bytesOrNull(s.Place))
}

// The reasons why a session ended. A sign-out without scope ends the refresh token only: see Session.Readable.
const (
	EndedLogout          = "logout"
	EndedLogoutTokens    = "logout_tokens"
	EndedByUser          = "user"
	EndedByAdmin         = "admin"
	EndedPasswordChanged = "password_changed"
	EndedEmailChanged    = "email_changed"
	EndedPhoneChanged    = "phone_changed"
	EndedReuse           = "reuse"
	EndedDeleted         = "deleted"
	// EndedClaimed: the address of an unconfirmed account was proven, and the account went to the user that proved
	// it.
	EndedClaimed = "claimed"
	// EndedByFactor: the session was below aal2 when a factor was verified in another session.
	EndedByFactor = "mfa_verified"
	// EndedPasskey: the passkey that opened it was deleted.
	EndedPasskey = "passkey_deleted"
	// EndedByHook: the hook of access tokens refused a token for the session.
	EndedByHook = "hook"
	// EndedByVerdict: an answer to a challenge was rejected, right or wrong.
	EndedByVerdict = "mfa_rejected"
)

// Ended reports whether the session can no longer be refreshed.
func (s Session) Ended() bool { return !s.EndedAt.IsZero() }

// Readable reports whether GET /user accepts the session's access tokens: it does so, until they expire, even after
// POST /logout without a scope.
func (s Session) Readable() bool { return !s.Ended() || s.EndedReason == EndedLogoutTokens }

// EndSessions says which of a user's sessions end.
type EndSessions struct {
	User uuid.UUID
	// Only is the only session to end, Except a session to keep. Nil: all sessions end.
	Only, Except uuid.UUID
	Reason       string
	At           time.Time
}

// lockAndVoid comes before each statement that ends several sessions of a user: it locks the user's row, and voids the
// codes that were issued before. It is a statement of its own, since a statement that waits for the lock does not see
// the sessions that the previous holder of the lock opened.
var lockAndVoid = define(`
update {users} set sessions_void_before = greatest(sessions_void_before, $2) where id = $1`)

// issuedCodes are the flows of the user $1 whose codes were issued and not yet exchanged.
const issuedCodes = `user_id = $1 and code_hash is not null and used_at is null`

// A session that lost only its refresh token can still be ended completely.
var endSessions = define(`
with codes as (
    delete from {flows} where ` + issuedCodes + ` and $2::uuid is null
)
update {sessions} set ended_at = $4, ended_reason = $5
where user_id = $1 and ($2::uuid is null or id = $2) and ($3::uuid is null or id <> $3)
  and (ended_at is null or ended_reason = 'logout_tokens' and $5 <> 'logout_tokens')`)

// EndSessions ends sessions at once. Unless Only is set, the user is locked first, and the codes that were given out
// and not yet exchanged are voided.
func (b *Batch) EndSessions(e EndSessions) {
	if e.Only == uuid.Nil {
		b.exec("lock", lockAndVoid, e.User, e.At)
	}
	b.exec("end sessions", endSessions, e.User, uuidOrNull(e.Only), uuidOrNull(e.Except), e.At, e.Reason)
}

var eraseSessions = define(`
update {sessions} set
    ended_at = case when ended_at is null or ended_reason = 'logout_tokens' then $2 else ended_at end,
    ended_reason = case when ended_at is null or ended_reason = 'logout_tokens' then '` +
	EndedDeleted + `' else ended_reason end,
    user_agent = '', ip = ''
where user_id = $1`)

var selectSessions = define(`
select ` + sessionColumns + `
from {sessions} s
where s.user_id = $1
order by s.created_at desc, s.id
limit 1000`)

// Sessions returns a user's sessions, newest first, including ended sessions that are still stored; at most 1000.
func (db *DB) Sessions(ctx context.Context, user uuid.UUID) ([]Session, error) {
	var all []Session
	err := db.query(ctx, "sessions", appendTo(&all, sessionTargets), selectSessions, user)
	return all, err
}

// EndSession ends one session at the request of its user or of an administrator.
type EndSession struct {
	User, Session uuid.UUID
	Reason        string
	Audit         Audit
}

var endSession = define(`
with ended as (
    update {sessions} set ended_at = $3, ended_reason = $4
    where id = $1 and user_id = $2 and (ended_at is null or ended_reason = 'logout_tokens')
    returning id
), ` + noted("$3", 5, "ended") + `
select id from {sessions} where id = $1 and user_id = $2`)

// EndSession ends a session. ErrNotFound: the user has no such session. Ending an ended session is not an error.
func (db *DB) EndSession(ctx context.Context, e EndSession) error {
	args := append([]any{e.Session, e.User, e.Audit.At, e.Reason}, e.Audit.args()[1:]...)
	return db.queryRow(ctx, "end session", []any{new(uuid.UUID)}, endSession, args...)
}

var selectSession = define(`
select ` + sessionColumns + `
from {sessions} s
where s.id = $1 and s.user_id = $2`)

// Session reads one session of a user; dst has a Nil ID if the user has no such session. A caller that has locked the
// user sees whether and why the session ended, except by a concurrent sign-out, which does not lock the user.
func (b *Batch) Session(dst *Session, user, session uuid.UUID) {
	b.row("session", dst, sessionTargets(dst), selectSession, session, user)
}

var selectRefreshing = define(`
select ` + userColumns + `,` + sessionColumns + `,` + factorsOf("s.user_id") + `
from {sessions} s join {users} u on u.id = s.user_id
where s.id = $1`)

// Refreshing reads a session and its user, without identities, to predict what a refresh would give. ErrNotFound: no
// such session.
func (db *DB) Refreshing(ctx context.Context, session uuid.UUID) (u User, s Session, err error) {
	targets := append(append(userTargets(&u), sessionTargets(&s)...), (*factorList)(&u.Factors))
	err = db.queryRow(ctx, "refreshing", targets, selectRefreshing, session)
	return u, s, err
}

// EndedSessionLimit is the reason of sessions that ended because newer sessions exceeded the user's limit.
const EndedSessionLimit = "session_limit"

var enforceSessionLimit = define(`
update {sessions} set ended_at = $3, ended_reason = '` + EndedSessionLimit + `'
where id in (
    select id from {sessions} where user_id = $1 and ended_at is null
    order by refreshed_at desc, created_at desc, id offset $2)`)

var lockRow = define(`
select from {users} where id = $1 for no key update`)

// EnforceSessionLimit ends a user's sessions except the keep most recently refreshed ones.
func (b *Batch) EnforceSessionLimit(user uuid.UUID, keep int, now time.Time) {
	b.exec("lock", lockRow, user)
	b.exec("enforce session limit", enforceSessionLimit, user, keep, now)
}

package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Session is the session that a sign-in has opened.
type Session struct {
	ID, UserID uuid.UUID
	CreatedAt  time.Time
	// Counter is the number of the session's newest refresh token, 0 before the first refresh. RefreshedAt is when that
	// token was issued, which is CreatedAt before the first refresh.
	Counter     uint64
	RefreshedAt time.Time
	UserAgent   string
	IP          string
	// AAL is the session's level, 1 or 2. AMR is the claim amr: [{"method","timestamp","provider"?}], newest first.
	AAL      int
	AMR      json.RawMessage
	Tag      string
	FactorID uuid.UUID
	NotAfter time.Time
	// EndedAt is zero until the session ends.
	EndedAt     time.Time
	EndedReason string
}

// sessionColumns are the columns that sessionTargets reads, in the same order. All are null if a join finds no session.
const sessionColumns = `
    s.id, s.user_id, s.created_at, s.counter, s.refreshed_at, s.user_agent, s.ip, s.aal, s.amr, s.tag, s.factor_id,
    s.not_after, s.ended_at, s.ended_reason`

func sessionTargets(s *Session) []any {
	return []any{&s.ID, &s.UserID, &s.CreatedAt, &s.Counter, &s.RefreshedAt, &s.UserAgent, &s.IP, &s.AAL, &s.AMR,
		&s.Tag, &s.FactorID, &s.NotAfter, &s.EndedAt, &s.EndedReason}
}

// NewSession is a session to be opened.
type NewSession struct {
	ID, User uuid.UUID
	// SecretHash is the SHA-256 of the session's secret, random bytes that its refresh tokens contain.
	SecretHash         [32]byte
	At                 time.Time
	UserAgent, IP, Tag string
	AAL                int
	AMR                json.RawMessage
	NotAfter           time.Time
	// Place, if not nil, is the MAC of the network from which the user signs in. This network becomes a known place of
	// the user.
	Place []byte
}

var insertSession = define(`
with person as (select $2::uuid as id), ` + rememberPlace("person", "$2", "$11", "$3") + `
insert into {sessions} (id, user_id, created_at, secret_hash, refreshed_at, user_agent, ip, aal, amr, tag, not_after)
values ($1, (select id from {users} where id = $2 and deleted_at is null), $3, $4, $3, $5, $6, $7, $8, $9, $10)`)

// InsertSession opens a session. Send returns ErrUserGone if its user does not exist or was deleted.
func (b *Batch) InsertSession(s NewSession) {
	b.exec("insert session", insertSession, s.ID, s.User, s.At, s.SecretHash[:], s.UserAgent, s.IP, s.AAL,
		[]byte(s.AMR), s.Tag, timeOrNull(s.NotAfter), bytesOrNull(s.Place))
}

// The reasons why sessions end. EndedLogoutTokens is for POST /logout without a scope, which invalidates only refresh
// tokens; GET /user still accepts the access tokens until they expire: see Session.Readable.
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
	// EndedClaimed: the account is handed over to the owner of its address, since other persons may have had access to
	// the account before the owner proved the address.
	EndedClaimed = "claimed"
	// EndedByFactor: the session was below aal2 when a second factor was verified in another session.
	EndedByFactor = "mfa_verified"
	// EndedPasskey: the passkey that opened the session was deleted.
	EndedPasskey = "passkey_deleted"
	// EndedByHook: the hook for access tokens refused a token for the session.
	EndedByHook = "hook"
	// EndedByVerdict: a hook rejected an answer to a challenge, whether it was right or wrong, and requested the
	// sign-out.
	EndedByVerdict = "mfa_rejected"
)

// Ended reports whether the session can no longer be refreshed.
func (s Session) Ended() bool { return !s.EndedAt.IsZero() }

// Readable reports whether GET /user accepts the session's access tokens. After POST /logout without a scope it still
// accepts them until they expire.
func (s Session) Readable() bool { return !s.Ended() || s.EndedReason == EndedLogoutTokens }

// EndSessions selects the sessions of a user to be ended.
type EndSessions struct {
	User uuid.UUID
	// Only is the only session to end, Except the only session to keep. If both are Nil, all sessions end.
	Only, Except uuid.UUID
	Reason       string
	At           time.Time
}

// lockAndVoid must be executed before each statement that ends several sessions of a user. It locks the user's row and
// invalidates the PKCE codes that were issued before the time $2. It must be a separate statement: a statement that
// itself waits for the lock does not see sessions that the previous holder of the lock has opened.
var lockAndVoid = define(`
update {users} set sessions_void_before = greatest(sessions_void_before, $2) where id = $1`)

// issuedCodes is the SQL condition for flows of user $1 whose codes were issued and not exchanged yet.
const issuedCodes = `user_id = $1 and code_hash is not null and used_at is null`

// endSessions, unless its reason is EndedLogoutTokens, also ends sessions that have lost only their refresh tokens.
// Afterwards GET /user does not accept their access tokens either.
var endSessions = define(`
with codes as (
    delete from {flows} where ` + issuedCodes + ` and $2::uuid is null
)
update {sessions} set ended_at = $4, ended_reason = $5
where user_id = $1 and ($2::uuid is null or id = $2) and ($3::uuid is null or id <> $3)
  and (ended_at is null or ended_reason = 'logout_tokens' and $5 <> 'logout_tokens')`)

// EndSessions ends sessions. Unless Only is set, it locks the user first, and deletes the PKCE codes that were issued
// and not exchanged yet.
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

// Sessions returns the sessions of a user that are stored, newest first, including ended ones, and at most 1000.
func (db *DB) Sessions(ctx context.Context, user uuid.UUID) ([]Session, error) {
	var all []Session
	err := db.query(ctx, "sessions", appendTo(&all, sessionTargets), selectSessions, user)
	return all, err
}

// EndSession is the request of a user or an administrator to end one session.
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

// EndSession ends a session. The error is ErrNotFound if the user has no such session. It is not an error if the
// session has ended before.
func (db *DB) EndSession(ctx context.Context, e EndSession) error {
	args := append([]any{e.Session, e.User, e.Audit.At, e.Reason}, e.Audit.args()[1:]...)
	return db.queryRow(ctx, "end session", []any{new(uuid.UUID)}, endSession, args...)
}

var selectSession = define(`
select ` + sessionColumns + `
from {sessions} s
where s.id = $1 and s.user_id = $2`)

// Session reads one session of a user; dst.ID is uuid.Nil if the user has no such session. If the caller has locked the
// user, dst shows whether and why the session has ended, except because of a concurrent sign-out that does not lock the
// user.
func (b *Batch) Session(dst *Session, user, session uuid.UUID) {
	b.row("session", dst, sessionTargets(dst), selectSession, session, user)
}

var selectRefreshing = define(`
select ` + userColumns + `,` + sessionColumns + `,` + factorsOf("s.user_id") + `
from {sessions} s join {users} u on u.id = s.user_id
where s.id = $1`)

// Refreshing reads a session and its user, without identities, so that the caller can predict the result of a refresh.
// The error is ErrNotFound if there is no such session.
func (db *DB) Refreshing(ctx context.Context, session uuid.UUID) (u User, s Session, err error) {
	targets := append(append(userTargets(&u), sessionTargets(&s)...), (*factorList)(&u.Factors))
	err = db.queryRow(ctx, "refreshing", targets, selectRefreshing, session)
	return u, s, err
}

// EndedSessionLimit is the reason of sessions that were ended because the user had more sessions than permitted, after
// a new one was opened.
const EndedSessionLimit = "session_limit"

var enforceSessionLimit = define(`
update {sessions} set ended_at = $3, ended_reason = '` + EndedSessionLimit + `'
where id in (
    select id from {sessions} where user_id = $1 and ended_at is null
    order by refreshed_at desc, created_at desc, id offset $2)`)

var lockRow = define(`
select from {users} where id = $1 for no key update`)

// EnforceSessionLimit ends the sessions of a user except the ones that were refreshed last. keep is how many sessions
// remain.
func (b *Batch) EnforceSessionLimit(user uuid.UUID, keep int, now time.Time) {
	b.exec("lock", lockRow, user)
	b.exec("enforce session limit", enforceSessionLimit, user, keep, now)
}

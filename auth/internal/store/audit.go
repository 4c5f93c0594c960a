package store

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Action is the kind of event that an audit row records. The numbers are stored in the database, so they must never
// change.
type Action int16

// actions maps each action to its name and its log type.
var actions = map[Action][2]string{}

func action(number Action, name, logType string) Action {
	if _, taken := actions[number]; taken {
		panic("two audit actions have one number: " + name)
	}
	actions[number] = [2]string{name, logType}
	return number
}

// The actions: first those of supabase/auth, then the ones that Gatehouse adds (docs/operations.md#audit-log).
var (
	ActionLogin                       = action(1, "login", "account")
	ActionLogout                      = action(2, "logout", "account")
	ActionInviteAccepted              = action(3, "invite_accepted", "account")
	ActionUserSignedUp                = action(4, "user_signedup", "team")
	ActionUserInvited                 = action(5, "user_invited", "team")
	ActionUserDeleted                 = action(6, "user_deleted", "team")
	ActionUserModified                = action(7, "user_modified", "user")
	ActionUserRecoveryRequested       = action(8, "user_recovery_requested", "user")
	ActionUserReauthenticateRequested = action(9, "user_reauthenticate_requested", "user")
	ActionUserConfirmationRequested   = action(10, "user_confirmation_requested", "user")
	ActionUserRepeatedSignup          = action(11, "user_repeated_signup", "user")
	ActionUserUpdatedPassword         = action(12, "user_updated_password", "user")
	ActionTokenRefreshed              = action(13, "token_refreshed", "token")
	ActionTokenRevoked                = action(14, "token_revoked", "token")
	ActionLoginFailed                 = action(15, "login_failed", "account")
	ActionVerificationFailed          = action(16, "verification_failed", "account")
	ActionEmailChangeRequested        = action(17, "email_change_requested", "user")
	ActionPhoneChangeRequested        = action(18, "phone_change_requested", "user")
	ActionSessionEnded                = action(19, "session_ended", "account")
	ActionUserBanned                  = action(20, "user_banned", "team")
	ActionUserUnbanned                = action(21, "user_unbanned", "team")
	ActionKeyRotated                  = action(22, "key_rotated", "team")
	ActionKeyRevoked                  = action(23, "key_revoked", "team")
	ActionIdentityLinked              = action(24, "identity_linked", "user")
	ActionIdentityUnlinked            = action(25, "identity_unlinked", "user")
	ActionFactorInProgress            = action(26, "factor_in_progress", "factor")
	ActionFactorUnenrolled            = action(27, "factor_unenrolled", "factor")
	ActionFactorDeleted               = action(28, "factor_deleted", "factor")
	ActionFactorUpdated               = action(29, "factor_updated", "factor")
	ActionChallengeCreated            = action(30, "challenge_created", "factor")
	ActionVerificationAttempted       = action(31, "verification_attempted", "factor")
	ActionUserRoleChanged             = action(32, "user_role_changed", "team")
	ActionUsersCarried                = action(33, "users_carried", "team")
	ActionAdminRefused                = action(34, "admin_refused", "account")
	ActionRecoveryCodesGenerated      = action(35, "recovery_codes_generated", "factor")
	ActionRecoveryCodesRegenerated    = action(36, "recovery_codes_regenerated", "factor")
	ActionRecoveryCodesVerified       = action(37, "recovery_codes_verified", "factor")
	ActionRecoveryCodesDeleted        = action(38, "recovery_codes_deleted", "factor")
	ActionPasskeyCreated              = action(39, "passkey_created", "user")
	ActionPasskeyUpdated              = action(40, "passkey_updated", "user")
	ActionPasskeyDeleted              = action(41, "passkey_deleted", "user")
)

// String returns the action's name in the API.
func (a Action) String() string { return actions[a][0] }

// LogType returns the action's log type in the API, which groups actions.
func (a Action) LogType() string { return actions[a][1] }

// Audit is an event for the audit log.
type Audit struct {
	At     time.Time
	Action Action
	// Actor is the user who acted. It is Nil for a service token, whose role is ActorRole.
	Actor     uuid.UUID
	ActorRole string
	Session   uuid.UUID
	IP        string
	// Traits is a JSON object, or nil. It must not contain tokens or addresses. The trait "user_id" names the user whom
	// the event is about; AuditLog adds the user's addresses when it is read, as long as the user exists.
	Traits json.RawMessage
	// OnlyFor, if not Nil, is the id of a user. The row is written only if this user exists.
	OnlyFor uuid.UUID
}

func (a Audit) args() []any {
	var role any
	if a.ActorRole != "" {
		role = a.ActorRole
	}
	return []any{a.At, a.Action, uuidOrNull(a.Actor), role, uuidOrNull(a.Session), a.IP, bytesOrNull(a.Traits)}
}

var insertAudit = define(`
insert into {audit} (at, action, actor_id, actor_role, session_id, ip, traits)
select $1, $2, $3, $4, $5, $6, $7
where $8::uuid is null or exists (select from {users} where id = $8)`)

// Audit adds a row to the audit log. The number of rows per minute that have neither an actor nor a role is limited:
// such a row is left out if the limit is reached.
func (b *Batch) Audit(a Audit) {
	if e := b.db.admitAudit(a); a.unnamed() {
		b.note("audit", insertUnnamed, e, append(append(a.args(), e.args()...), uuidOrNull(a.OnlyFor)))
		return
	}
	b.exec("audit", insertAudit, append(a.args(), uuidOrNull(a.OnlyFor))...)
}

// noted returns a common table expression, which is named noted too. It writes one audit row for each row of the table
// expression whose name is in the parameter from. The SQL parameter whose name is in at, such as "$4", has the time of
// the rows. The SQL parameters from the number first on have the other values of Audit.args.
func noted(at string, first int, from string) string {
	return `noted as (
    insert into {audit} (at, action, actor_id, actor_role, session_id, ip, traits)
    select ` + at + `::timestamptz, ` +
		numberFrom(first, `$1::smallint, $2::uuid, $3::text, $4::uuid, $5::text, $6::jsonb`) +
		` from ` + from + `
)`
}

// insertAuditSeldom takes the token of an interval and writes an audit row. If the token was taken before, it writes no
// row, which is not an error.
var insertAuditSeldom = define(`
with ` + markPause("$10", "$11", "$1", "") + `, ` + noteIfRoom(1) + `
select ` + roomColumns)

// AuditSeldom adds a row to the audit log, at most once in each interval: it adds none if an earlier call has taken the
// token of pause and the token was not refilled since.
func (b *Batch) AuditSeldom(pause Limit, a Audit) {
	e := b.db.admitAudit(a)
	b.note("audit seldom", insertAuditSeldom, e,
		append(append(a.args(), e.args()...), pause.Key, pause.Refill.Seconds()))
}

// AuditFilter selects a page of the audit log.
type AuditFilter struct {
	// Author is a part of the actor's email address, phone number, full name or role; "" for any. Upper and lower case
	// count as equal.
	Author string
	// Action and LogType are parts of the action's name and log type; "" for any. Upper and lower case count as equal.
	Action, LogType string
	Offset, Limit   int
}

// AuditRow is a row of the audit log. The actor's addresses and name, and the traits user_email and user_phone, are not
// stored in the row but read from the user as it is now. They are empty if the user was deleted.
type AuditRow struct {
	ID             int64
	At             time.Time
	Action         Action
	Actor, Session uuid.UUID
	ActorRole, IP  string
	Traits         json.RawMessage
	ActorEmail     string // "" if the actor does not exist any more
	ActorPhone     string
	ActorFullName  string
}

// auditFound is the SQL for the rows that an AuditFilter selects, joined with their actors.
const auditFound = `from {audit} a left join {users} u on u.id = a.actor_id
where ($1::smallint[] is null or a.action = any($1))
  and ($2 = '' or u.email ilike $2 or u.phone ilike $2 or a.actor_role ilike $2 or u.user_metadata->>'full_name' ilike $2)`

var selectAudit = define(`
select a.id, a.at, a.action, a.actor_id, a.session_id, a.actor_role, a.ip,
    a.traits || coalesce((
        select jsonb_strip_nulls(jsonb_build_object('user_email', nullif(o.email, ''), 'user_phone', nullif(o.phone, '')))
        from {users} o where o.id = (a.traits->>'user_id')::uuid and o.deleted_at is null), '{}'),
    u.email, u.phone, u.user_metadata->>'full_name'
` + auditFound + `
order by a.id desc
offset $3 limit $4`)

var countAudit = define(`
select count(*)
` + auditFound)

// AuditLog returns one page, newest rows first, and how many rows the filter selects in total.
func (db *DB) AuditLog(ctx context.Context, f AuditFilter) (page []AuditRow, total int, err error) {
	chosen, author := f.actions(), contains(f.Author)
	b := db.Batch()
	b.rows("audit log", &page, appendTo(&page, func(a *AuditRow) []any {
		return []any{&a.ID, &a.At, &a.Action, &a.Actor, &a.Session, &a.ActorRole, &a.IP, &a.Traits, &a.ActorEmail,
			&a.ActorPhone, &a.ActorFullName}
	}), selectAudit, chosen, author, f.Offset, f.Limit)
	b.row("audit count", &total, []any{&total}, countAudit, chosen, author)
	err = b.Send(ctx)
	return page, total, err
}

// actions returns the numbers of the actions that the filter selects, or nil for all.
func (f AuditFilter) actions() []int16 {
	if f.Action == "" && f.LogType == "" {
		return nil
	}
	chosen := []int16{}
	for a, words := range actions {
		if strings.Contains(words[0], strings.ToLower(f.Action)) &&
			strings.Contains(words[1], strings.ToLower(f.LogType)) {
			chosen = append(chosen, int16(a))
		}
	}
	return chosen
}

// contains returns a LIKE pattern that matches every text that contains part. It returns "" if part is "".
func contains(part string) string {
	if part == "" {
		return ""
	}
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(part) + "%"
}

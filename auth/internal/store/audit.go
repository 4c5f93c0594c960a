package store

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Action is what an audit row is about. The numbers are in the database: they never change.
type Action int16

// The actions of the replaced service, and the actions added here (docs/operations.md#audit-log).
const (
	ActionLogin Action = iota + 1
	ActionLogout
	ActionInviteAccepted
	ActionUserSignedUp
	ActionUserInvited
	ActionUserDeleted
	ActionUserModified
	ActionUserRecoveryRequested
	ActionUserReauthenticateRequested
	ActionUserConfirmationRequested
	ActionUserRepeatedSignup
	ActionUserUpdatedPassword
	ActionTokenRefreshed
	ActionTokenRevoked
	ActionLoginFailed
	ActionVerificationFailed
	ActionEmailChangeRequested
	ActionPhoneChangeRequested
	ActionSessionEnded
	ActionUserBanned
	ActionUserUnbanned
	ActionKeyRotated
	ActionKeyRevoked
	ActionIdentityLinked
	ActionIdentityUnlinked
	ActionFactorInProgress
	ActionFactorUnenrolled
	ActionFactorDeleted
	ActionFactorUpdated
	ActionChallengeCreated
	ActionVerificationAttempted
	ActionUserRoleChanged
	ActionUsersCarried
	ActionAdminRefused
	ActionRecoveryCodesGenerated
	ActionRecoveryCodesRegenerated
	ActionRecoveryCodesVerified
	ActionRecoveryCodesDeleted
	ActionPasskeyCreated
	ActionPasskeyUpdated
	ActionPasskeyDeleted
)

// actions are each action's name and log type.
var actions = map[Action][2]string{
	ActionLogin:                       {"login", "account"},
	ActionLogout:                      {"logout", "account"},
	ActionInviteAccepted:              {"invite_accepted", "account"},
	ActionUserSignedUp:                {"user_signedup", "team"},
	ActionUserInvited:                 {"user_invited", "team"},
	ActionUserDeleted:                 {"user_deleted", "team"},
	ActionUserModified:                {"user_modified", "user"},
	ActionUserRecoveryRequested:       {"user_recovery_requested", "user"},
	ActionUserReauthenticateRequested: {"user_reauthenticate_requested", "user"},
	ActionUserConfirmationRequested:   {"user_confirmation_requested", "user"},
	ActionUserRepeatedSignup:          {"user_repeated_signup", "user"},
	ActionUserUpdatedPassword:         {"user_updated_password", "user"},
	ActionTokenRefreshed:              {"token_refreshed", "token"},
	ActionTokenRevoked:                {"token_revoked", "token"},
	ActionLoginFailed:                 {"login_failed", "account"},
	ActionVerificationFailed:          {"verification_failed", "account"},
	ActionEmailChangeRequested:        {"email_change_requested", "user"},
	ActionPhoneChangeRequested:        {"phone_change_requested", "user"},
	ActionSessionEnded:                {"session_ended", "account"},
	ActionUserBanned:                  {"user_banned", "team"},
	ActionUserUnbanned:                {"user_unbanned", "team"},
	ActionKeyRotated:                  {"key_rotated", "team"},
	ActionKeyRevoked:                  {"key_revoked", "team"},
	ActionIdentityLinked:              {"identity_linked", "user"},
	ActionIdentityUnlinked:            {"identity_unlinked", "user"},
	ActionFactorInProgress:            {"factor_in_progress", "factor"},
	ActionFactorUnenrolled:            {"factor_unenrolled", "factor"},
	ActionFactorDeleted:               {"factor_deleted", "factor"},
	ActionFactorUpdated:               {"factor_updated", "factor"},
	ActionChallengeCreated:            {"challenge_created", "factor"},
	ActionVerificationAttempted:       {"verification_attempted", "factor"},
	ActionUserRoleChanged:             {"user_role_changed", "team"},
	ActionUsersCarried:                {"users_carried", "team"},
	ActionAdminRefused:                {"admin_refused", "account"},
	ActionRecoveryCodesGenerated:      {"recovery_codes_generated", "factor"},
	ActionRecoveryCodesRegenerated:    {"recovery_codes_regenerated", "factor"},
	ActionRecoveryCodesVerified:       {"recovery_codes_verified", "factor"},
	ActionRecoveryCodesDeleted:        {"recovery_codes_deleted", "factor"},
	ActionPasskeyCreated:              {"passkey_created", "user"},
	ActionPasskeyUpdated:              {"passkey_updated", "user"},
	ActionPasskeyDeleted:              {"passkey_deleted", "user"},
}

// String is the action's name in the API.
func (a Action) String() string { return actions[a][0] }

// LogType is the API's class of the action.
func (a Action) LogType() string { return actions[a][1] }

// Audit is one act to be noted.
type Audit struct {
	At     time.Time
	Action Action
	// Actor is the user who acts; Nil for a service token, whose role is ActorRole.
	Actor     uuid.UUID
	ActorRole string
	Session   uuid.UUID
	IP        string
	// Traits is an object, or nil. It never holds a token or an address: "user_id" names the user whom the act is
	// about, and AuditLog adds that user's addresses for as long as they exist.
	Traits json.RawMessage
	// OnlyFor, if not Nil, is a user without whom nothing is noted.
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

// Audit adds a row to the audit log. A row without an actor is added only while the limit of such rows allows it.
func (b *Batch) Audit(a Audit) {
	if e := b.db.admitAudit(a); a.unnamed() {
		b.note("audit", insertUnnamed, e, append(append(a.args(), e.args()...), uuidOrNull(a.OnlyFor)))
		return
	}
	b.exec("audit", insertAudit, append(a.args(), uuidOrNull(a.OnlyFor))...)
}

// noted returns the step of a statement that adds an audit row for each row of the step from. at is a parameter; those
// from first on are the others of Audit.args.
func noted(at string, first int, from string) string {
	return `noted as (
    insert into {audit} (at, action, actor_id, actor_role, session_id, ip, traits)
    select ` + at + `::timestamptz, ` + numberFrom(first, `$1::smallint, $2::uuid, $3::text, $4::uuid, $5::text, $6::jsonb`) +
		` from ` + from + `
)`
}

// If the interval's token is taken already, no row is written, which is not an error.
var insertAuditSeldom = define(`
with ` + markPause("$10", "$11", "$1", "") + `, ` + noteIfRoom(1) + `
select ` + roomColumns)

// AuditSeldom adds a row unless an earlier row took the token of the interval pause.
func (b *Batch) AuditSeldom(pause Limit, a Audit) {
	e := b.db.admitAudit(a)
	b.note("audit seldom", insertAuditSeldom, e,
		append(append(a.args(), e.args()...), pause.Key, pause.Refill.Seconds()))
}

// AuditFilter chooses a page of the log.
type AuditFilter struct {
	// Author is part of the actor's address or role, in any case; "" for any.
	Author string
	// Action and LogType are parts of their names, in any case; "" for any.
	Action, LogType string
	Offset, Limit   int
}

// AuditRow is a row of the audit log, with the actor's present data. The traits user_email and user_phone are present
// data too; a deleted user has none.
type AuditRow struct {
	ID             int64
	At             time.Time
	Action         Action
	Actor, Session uuid.UUID
	ActorRole, IP  string
	Traits         json.RawMessage
	ActorEmail     string // "" when the actor is gone
	ActorPhone     string
	ActorFullName  string
}

// auditFound are the rows that an AuditFilter finds, with their actors.
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

// AuditLog returns one page, newest first, and how many rows the filter finds in all.
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

// actions returns the numbers of the actions that the filter selects; nil for any.
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

// contains returns a LIKE pattern that finds part anywhere in a text; "" stays "".
func contains(part string) string {
	if part == "" {
		return ""
	}
	return "%" + strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`).Replace(part) + "%"
}

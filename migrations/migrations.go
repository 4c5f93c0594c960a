// Package migrations has the database schema of the auth daemon as numbered SQL files, which are applied in their order
// and never undone.
//
// It is a Go package only because go:embed cannot reach a sibling folder; auth/internal/store applies the files. A file
// that was released must never change, since its checksum is stored in each database: a change is a further file. A
// name in braces is one of Names and gets AUTH_DB_NAMESPACE as its prefix. Two comments in a file have a meaning: "--
// outside" means that the file is executed outside of a transaction, alone, and may be executed twice. "-- breaks older
// programs" means that a program that does not know the file refuses to start.
package migrations

import "embed"

// FS has the SQL files.
//
//go:embed *.sql
var FS embed.FS

// MaxName is the greatest length of a name in bytes. PostgreSQL keeps 63 bytes, of which the prefix may have 30.
const MaxName = 33

// Names are the names of all tables, indexes and constraints that the files or the statements of auth/internal/store
// use.
var Names = []string{
	"schema_migrations",
	"users", "users_email_key", "users_phone_key", "users_newest", "users_anonymous",
	"identities", "identities_provider_key", "identities_user", "identities_email",
	"sessions", "sessions_user", "sessions_ended",
	"one_time_tokens", "one_time_tokens_link_key", "one_time_tokens_address",
	"one_time_tokens_user", "one_time_tokens_expires", "one_time_tokens_waiting",
	"flows", "flows_code_key", "flows_user", "flows_expires",
	"outbox", "outbox_failed", "outbox_due", "outbox_newest", "outbox_user",
	"outbox_of_user", "outbox_undelivered",
	"audit", "audit_at", "audit_unnamed",
	"limits", "limits_floor",
	"signing_keys",
	"external_states", "external_states_expires", "spent_id_tokens", "spent_id_tokens_expires",
	"factors", "factors_name_key", "factors_phone_key", "factors_unverified", "factors_recovery_key",
	"challenges", "challenges_factor", "challenges_expires",
	"known_places", "known_places_seen",
	"former_tokens", "former_tokens_session",
	"moves", "moves_open",
	"webauthn_credentials", "webauthn_credentials_key", "webauthn_credentials_user", "webauthn_credentials_factor",
	"spent_challenges", "recovery_codes",
}

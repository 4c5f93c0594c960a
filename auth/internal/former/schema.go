package former

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Querier is a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// The oldest and the newest known version of the schema, as its table schema_migrations numbers them.
const (
	Oldest = 20240427152123
	Newest = 20260625000000
)

// Schema describes the former service's schema. It is read from the system catalogue, for which no right is needed.
type Schema struct {
	Name   string
	Tables map[string]Table
}

// Table describes a table of the schema, as the role that reads the catalogue sees it.
type Table struct {
	Name string
	OID  uint32
	// Heap is true for an ordinary table, whose rows show in xmin which transaction has written them. It is false for a
	// view, and for a partitioned or foreign table.
	Heap bool
	// Rows is approximately how many rows the table has, according to its statistics; negative if there are none.
	Rows int64
	// Readable is true if the role may read the table, Hidden if row-level security hides rows from the role.
	Readable, Hidden bool
	// Columns are the names of the columns in the table's order.
	Columns []string
}

const readSchema = `
select c.relname::text, c.oid, c.relkind = 'r' and coalesce(m.amname, '') = 'heap', c.reltuples::bigint,
    has_table_privilege(c.oid, 'select') and has_schema_privilege(n.oid, 'usage'), row_security_active(c.oid),
    array(select a.attname::text from pg_attribute a
          where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum)
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
left join pg_am m on m.oid = c.relam
where n.nspname = $1 and c.relkind in ('r', 'p', 'v', 'm', 'f')`

// ReadSchema reads the tables and columns of a schema. If the schema does not exist, the result has no tables.
func ReadSchema(ctx context.Context, q Querier, name string) (*Schema, error) {
	rows, err := q.Query(ctx, readSchema, name)
	if err != nil {
		return nil, fmt.Errorf("former: read the schema: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Table])
	if err != nil {
		return nil, fmt.Errorf("former: read the schema: %w", err)
	}
	s := &Schema{Name: name, Tables: map[string]Table{}}
	for _, t := range list {
		s.Tables[t.Name] = t
	}
	return s, nil
}

// Has reports whether the schema has a table with this column.
func (s *Schema) Has(table, column string) bool {
	return slices.Contains(s.Tables[table].Columns, column)
}

// Holds reports whether the schema's tables are those of the former service.
func (s *Schema) Holds() bool {
	return s.Has("users", "raw_app_meta_data") && s.Has("identities", "user_id") && s.Has("sessions", "user_id") &&
		s.Has("refresh_tokens", "token")
}

// Table returns the quoted and qualified name of a table.
func (s *Schema) Table(name string) string { return pgx.Identifier{s.Name, name}.Sanitize() }

// ReadVersion returns the newest version that was applied to the schema; 0 if there is none.
func (s *Schema) ReadVersion(ctx context.Context, q Querier) (int64, error) {
	if !s.Has("schema_migrations", "version") {
		return 0, nil
	}
	var text string
	err := q.QueryRow(ctx, `select coalesce(max(version::text), '') from `+s.Table("schema_migrations")+
		` where version::text ~ '^[0-9]{14}$'`).Scan(&text)
	if err != nil {
		return 0, fmt.Errorf("former: read the version: %w", err)
	}
	version, _ := strconv.ParseInt(text, 10, 64) // the text has 14 digits, or is empty, which gives 0
	return version, nil
}

// Carried are the tables that a takeover reads, in the order in which it copies them. known has their columns,
// including those that are left out on purpose.
var Carried = []string{"users", "identities", "mfa_factors", "sessions", "mfa_amr_claims", "refresh_tokens",
	"one_time_tokens", "flow_state", Passkeys}

var known = map[string]string{
	"users": `id instance_id aud role email encrypted_password email_confirmed_at invited_at confirmation_token
		confirmation_sent_at recovery_token recovery_sent_at email_change_token_new email_change email_change_sent_at
		last_sign_in_at raw_app_meta_data raw_user_meta_data is_super_admin created_at updated_at phone phone_confirmed_at
		phone_change phone_change_token phone_change_sent_at confirmed_at email_change_token_current
		email_change_confirm_status banned_until reauthentication_token reauthentication_sent_at is_sso_user deleted_at
		is_anonymous`,
	"identities": `id provider_id user_id identity_data provider last_sign_in_at created_at updated_at email`,
	"mfa_factors": `id user_id friendly_name factor_type status created_at updated_at secret phone last_challenged_at
		web_authn_credential web_authn_aaguid last_webauthn_challenge_data`,
	"sessions": `id user_id created_at updated_at factor_id aal not_after refreshed_at user_agent ip tag oauth_client_id
		refresh_token_hmac_key refresh_token_counter scopes`,
	"mfa_amr_claims":  `id session_id created_at updated_at authentication_method`,
	"refresh_tokens":  `id instance_id token user_id revoked created_at updated_at parent session_id`,
	"one_time_tokens": `id user_id token_type token_hash relates_to created_at updated_at`,
	Passkeys: `id user_id credential_id public_key attestation_type aaguid sign_count transports backup_eligible backed_up
		friendly_name created_at updated_at last_used_at`,
	"flow_state": `id user_id auth_code code_challenge_method code_challenge provider_type provider_access_token
		provider_refresh_token created_at updated_at authentication_method auth_code_issued_at invite_token referrer
		oauth_client_state_id linking_target_id email_optional`,
}

// left are known tables that are not copied. Tables with one of leftPrefixes are not copied either.
var left = []string{"audit_log_entries", "mfa_challenges", "custom_oauth_providers", "instances", "schema_migrations"}

var leftPrefixes = []string{"saml_", "sso_", "oauth_", "webauthn_"}

// Unknown returns tables, and columns of the tables in Carried as TABLE.COLUMN, that this program does not know because
// a newer version of the schema has added them. Both lists are sorted.
func (s *Schema) Unknown() (columns, tables []string) {
	for name, t := range s.Tables {
		if fields, carried := known[name]; carried {
			for _, column := range t.Columns {
				if !slices.Contains(strings.Fields(fields), column) {
					columns = append(columns, name+"."+column)
				}
			}
			continue
		}
		known := slices.Contains(left, name) || slices.ContainsFunc(leftPrefixes, func(prefix string) bool {
			return strings.HasPrefix(name, prefix)
		})
		if !known {
			tables = append(tables, name)
		}
	}
	slices.Sort(columns)
	slices.Sort(tables)
	return columns, tables
}

// OwnSchema returns the SQL statement and the setting with which an operator gives this program its own schema.
func OwnSchema(role string) string {
	return fmt.Sprintf("create schema gatehouse authorization %s; search_path=gatehouse in DATABASE_URL", role)
}

// Occupied returns a text for the operator: why our tables cannot be created in a schema with the former service's
// tables, and what to do instead.
func Occupied(schema, role string) string {
	return fmt.Sprintf(
		"schema %q holds the tables of the service that this one replaces; they are neither read nor changed."+
			" Give this program a schema of its own (%s) and carry the users over: auth takeover -from %s",
		schema, OwnSchema(role), schema)
}

package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// ourTables is an SQL array of the names of the tables that the migrations create.
const ourTables = `array['{users}', '{identities}', '{sessions}', '{one_time_tokens}', '{flows}', '{outbox}',
                      '{audit}', '{limits}', '{signing_keys}', '{external_states}', '{spent_id_tokens}', '{factors}', '{challenges}', '{former_tokens}', '{moves}',
                      '{webauthn_credentials}', '{spent_challenges}', '{recovery_codes}', '{schema_migrations}']`

// missingRights reads from the system catalogue which of the rights that migrations and statements need the daemon's
// role lacks; it creates nothing. A table that does not exist yet needs no right, since the daemon will own it.
// PostgreSQL ignores a schema on the search path that the role may not use, so such a schema counts as a missing right.
var missingRights = define(`
with path (schema, i) as (
    select case trim(both '"' from name) when '$user' then current_user::text else trim(both '"' from name) end, i
    from regexp_split_to_table(current_setting('search_path'), '\s*,\s*') with ordinality p (name, i)
), needed (name, granted, migrating) as (
    values
        ('CONNECT on database ' || current_database(), has_database_privilege(current_database(), 'connect'), false),
        ('the encoding UTF8 in database ' || current_database(), current_setting('server_encoding') = 'UTF8', false),
        ('a schema on the search_path', current_schema() is not null, false),
        ('USAGE on schema ' || current_schema(), has_schema_privilege(current_schema(), 'usage'), false),
        ('CREATE on schema ' || current_schema(), has_schema_privilege(current_schema(), 'create'), true)
    union all
    select 'USAGE on schema ' || p.schema, false, false from path p join pg_namespace n on n.nspname = p.schema
    where not has_schema_privilege(n.oid, 'usage')
      and not exists (select from path b where b.i < p.i and b.schema = any (current_schemas(false)))
    union all
    select word || ' on table ' || t, has_table_privilege(to_regclass(t), word), false
    from unnest(` + ourTables + `) t,
         unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) word
    where to_regclass(t) is not null
    union all
    select 'ownership of table ' || t, pg_has_role(c.relowner, 'usage'), true
    from unnest(` + ourTables + `) t
    join pg_class c on c.oid = to_regclass(t)
    union all
    select 'a server that takes writes', not pg_is_in_recovery() and current_setting('transaction_read_only') = 'off', false
)
select name, migrating from needed where granted is not true and name is not null`)

// MissingRights returns the rights that the daemon's role lacks: those that are needed to serve requests, and those
// that only migrations need.
func (db *DB) MissingRights(ctx context.Context) (serving, migrating []string, err error) {
	err = db.query(ctx, "missing rights", func(r pgx.Rows) error {
		var name string
		var forMigrations bool
		err := scanRow(r, []any{&name, &forMigrations})
		if forMigrations {
			migrating = append(migrating, name)
		} else {
			serving = append(serving, name)
		}
		return err
	}, missingRights)
	return serving, migrating, err
}

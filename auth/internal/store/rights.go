package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// What migrations and statements need, asked of the catalogue: nothing is created for the question.
// A table that isn't there yet will be ours.
var missingRights = define(`
with needed (name, granted) as (
    values
        ('CONNECT on database ' || current_database(), has_database_privilege(current_database(), 'connect')),
        ('a schema on the search_path', current_schema() is not null),
        ('USAGE on schema ' || current_schema(), has_schema_privilege(current_schema(), 'usage')),
        ('CREATE on schema ' || current_schema(), has_schema_privilege(current_schema(), 'create'))
    union all
    select word || ' on table ' || t, has_table_privilege(to_regclass(t), word)
    from unnest(array['{users}', '{identities}', '{sessions}', '{one_time_tokens}', '{flows}', '{outbox}',
                      '{audit}', '{limits}', '{signing_keys}', '{external_states}', '{spent_id_tokens}', '{factors}', '{challenges}', '{schema_migrations}']) t,
         unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE']) word
    where to_regclass(t) is not null
    union all
    select 'ownership of table ' || t, pg_has_role(c.relowner, 'usage')
    from unnest(array['{users}', '{identities}', '{sessions}', '{one_time_tokens}', '{flows}', '{outbox}',
                      '{audit}', '{limits}', '{signing_keys}', '{external_states}', '{spent_id_tokens}', '{factors}', '{challenges}', '{schema_migrations}']) t
    join pg_class c on c.oid = to_regclass(t)
    union all
    select 'a server that takes writes', not pg_is_in_recovery()
)
select name from needed where granted is not true and name is not null`)

// MissingRights names each right that the daemon's database user lacks; none for a good one.
func (db *DB) MissingRights(ctx context.Context) (missing []string, err error) {
	err = db.each(ctx, "missing rights", func(r pgx.Rows) error {
		var name string
		err := r.Scan(&name)
		missing = append(missing, name)
		return err
	}, missingRights)
	return missing, err
}

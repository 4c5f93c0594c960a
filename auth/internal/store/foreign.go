package store

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// ForeignTables says whether the schema that this program would use holds tables of another one.
type ForeignTables struct {
	// Schema is the first one on the search_path that exists; "": none.
	Schema string
	// Former: its table users is that of the service that this one replaces, and without a namespace it would be ours.
	Former bool
	// Migrations: it has a table with the name of our {schema_migrations}, and another shape.
	Migrations bool
}

// Read from the catalogue, which needs no right and creates nothing: before the first statement on our own tables.
var selectForeignTables = define(`
with columns as (
    select c.relname::text as relation, a.attname::text as name
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where n.nspname = current_schema() and c.relkind in ('r', 'p', 'v', 'm', 'f')
      and c.relname in ('{users}', '{schema_migrations}')
)
select current_schema()::text,
    (select count(*) = 2 from columns where relation = '{users}' and name in ('instance_id', 'raw_app_meta_data')),
    exists (select from columns where relation = '{schema_migrations}')
        and not exists (select from columns where relation = '{schema_migrations}' and name = 'checksum')`)

// ForeignTables looks for them.
func (db *DB) ForeignTables(ctx context.Context) (f ForeignTables, err error) {
	err = db.queryRow(ctx, "foreign tables", func(r pgx.Row) error {
		return r.Scan((*nullText)(&f.Schema), &f.Former, &f.Migrations)
	}, selectForeignTables)
	f.Former = f.Former && db.ns == ""
	return f, err
}

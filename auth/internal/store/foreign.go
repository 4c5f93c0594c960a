package store

import (
	"context"
)

// ForeignTables says whether the schema that this program would use holds another program's tables.
type ForeignTables struct {
	// Schema is the first one on the search_path that exists; "": none.
	Schema string
	// Former: the schema's table users belongs to the replaced service; without a namespace, ours would have the same
	// name.
	Former bool
	// Taken is a table with the name of one of ours, in a schema without our {schema_migrations}; "": none.
	Taken string
	// Role is the role that this program connects as.
	Role string
	// Readers are the other roles that Role's default privileges would give a right to new tables in the schema; even
	// the right to add a trigger matters, since a trigger runs with the rights of the role that writes. "" if
	// {schema_migrations} exists already.
	Readers string
}

// It runs before the first statement on our own tables and reads only the catalogue, for which no right is needed.
var selectForeignTables = define(`
with columns as (
    select c.relname::text as relation, a.attname::text as name
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where n.nspname = current_schema() and c.relkind in ('r', 'p', 'v', 'm', 'f')
      and c.relname = any (` + ourTables + `)
)
select current_schema()::text,
    (select count(*) = 2 from columns where relation = '{users}' and name in ('instance_id', 'raw_app_meta_data')),
    (select min(relation) from columns
     where not exists (select from columns where relation = '{schema_migrations}' and name = 'checksum')),
    current_user::text,
    (select string_agg(distinct coalesce(r.rolname::text, 'public'), ', ')
     from pg_default_acl d cross join aclexplode(d.defaclacl) a left join pg_roles r on r.oid = a.grantee
     where d.defaclrole = (select oid from pg_roles where rolname = current_user) and d.defaclobjtype = 'r'
       and a.grantee <> d.defaclrole
       and (d.defaclnamespace = 0
         or d.defaclnamespace = (select oid from pg_namespace where nspname = current_schema()))
       and not exists (select from columns where relation = '{schema_migrations}'))`)

// mayRead lists the other roles that have any right to our tables, one row for each role. Its names can be typed into a
// statement, whose search_path may be another one.
var mayRead = define(`
select role, array_agg(format('%I.%I', schema, relation) order by array_position($1, relation))
from (
    select distinct coalesce(quote_ident(r.rolname), 'public') as role, n.nspname as schema, c.relname::text as relation
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    cross join aclexplode(c.relacl) a
    left join pg_roles r on r.oid = a.grantee
    where n.nspname = current_schema() and c.relkind = 'r' and c.relname::text = any ($1)
      and a.grantee <> c.relowner and r.rolname is distinct from current_user) granted
group by role order by role`)

// Reader is a role that a grant lets read or write our tables.
type Reader struct {
	Role   string   // as SQL wants it, quoted where that is needed
	Tables []string // at least one, each with its schema
}

// Readers returns the roles other than ours that may read or write our tables.
func (db *DB) Readers(ctx context.Context) (list []Reader, err error) {
	err = db.query(ctx, "readers", appendTo(&list, func(one *Reader) []any { return []any{&one.Role, &one.Tables} }),
		mayRead, db.tableNames())
	return list, err
}

// ForeignTables reads from the catalogue which tables of other programs the schema holds.
func (db *DB) ForeignTables(ctx context.Context) (f ForeignTables, err error) {
	err = db.queryRow(ctx, "foreign tables", []any{&f.Schema, &f.Former, &f.Taken, &f.Role, &f.Readers},
		selectForeignTables)
	f.Former = f.Former && db.ns == ""
	return f, err
}

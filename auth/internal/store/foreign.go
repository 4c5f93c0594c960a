package store

import (
	"context"
)

// ForeignTables says whether the schema that this program would use holds tables of another one.
type ForeignTables struct {
	// Schema is the first one on the search_path that exists; "": none.
	Schema string
	// Former: its table users is that of the service that this one replaces, and without a namespace it would be ours.
	Former bool
	// Migrations: it has a table with the name of our {schema_migrations}, and another shape.
	Migrations bool
	// Role is the one that this program connects as.
	Role string
	// Readers are the other roles that would have any right to tables which Role makes there, by its default
	// privileges: a trigger, too, runs with the rights of the program that writes. "" where {schema_migrations} exists
	// already.
	Readers string
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
        and not exists (select from columns where relation = '{schema_migrations}' and name = 'checksum'),
    current_user::text,
    (select string_agg(distinct coalesce(r.rolname::text, 'public'), ', ')
     from pg_default_acl d cross join aclexplode(d.defaclacl) a left join pg_roles r on r.oid = a.grantee
     where d.defaclrole = (select oid from pg_roles where rolname = current_user) and d.defaclobjtype = 'r'
       and a.grantee <> d.defaclrole
       and (d.defaclnamespace = 0
         or d.defaclnamespace = (select oid from pg_namespace where nspname = current_schema()))
       and not exists (select from columns where relation = '{schema_migrations}'))`)

// mayRead lists who else has any right to our tables, a row for each role.
var mayRead = define(`
select role, array_agg(relation order by array_position($1, relation))
from (
    select distinct coalesce(r.rolname::text, 'public') as role, c.relname::text as relation
    from pg_class c
    join pg_namespace n on n.oid = c.relnamespace
    cross join aclexplode(c.relacl) a
    left join pg_roles r on r.oid = a.grantee
    where n.nspname = current_schema() and c.relkind = 'r' and c.relname::text = any ($1)
      and a.grantee <> c.relowner and r.rolname is distinct from current_user) granted
group by role order by role`)

// Reader is a role that may read or write tables of ours by a grant.
type Reader struct {
	Role   string
	Tables []string // at least one
}

// Readers are the roles other than ours that may read or write tables of this program.
func (db *DB) Readers(ctx context.Context) (list []Reader, err error) {
	err = db.query(ctx, "readers", appendTo(&list, func(one *Reader) []any { return []any{&one.Role, &one.Tables} }),
		mayRead, db.tableNames())
	return list, err
}

// ForeignTables finds them.
func (db *DB) ForeignTables(ctx context.Context) (f ForeignTables, err error) {
	err = db.queryRow(ctx, "foreign tables", []any{
		(*nullText)(&f.Schema), &f.Former, &f.Migrations, &f.Role, (*nullText)(&f.Readers)}, selectForeignTables)
	f.Former = f.Former && db.ns == ""
	return f, err
}

package store

import (
	"context"
)

// ForeignTables says whether the schema that this program would use contains tables of another program.
type ForeignTables struct {
	// Schema is the first schema on the search_path that exists; "" if none does.
	Schema string
	// Former is true if the schema has a table users of supabase/auth and no namespace is set, so that our table would
	// have the same name.
	Former bool
	// Taken is the name of a table that has the name of one of ours, in a schema without our table schema_migrations;
	// "" if there is none.
	Taken string
	// Role is the role as which this program connects.
	Role string
	// Readers are other roles that would get a right on new tables in the schema, because of Role's default privileges.
	// Even the right to add a trigger matters, since a trigger runs with the rights of the role that writes. "" if
	// there are no such roles or if the table schema_migrations exists already.
	Readers string
}

// selectForeignTables is executed before the first statement that uses our tables. It reads only the system catalogue,
// for which no right is needed.
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

// mayRead returns a row for each other role that has a right on any of our tables. The names are quoted and have their
// schema, so that an operator can copy them into a statement in a session with another search_path.
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

// Reader is a role that was granted rights on our tables.
type Reader struct {
	Role   string   // quoted if SQL requires that
	Tables []string // at least one, each with its schema
}

// Readers returns the other roles that were granted rights on our tables.
func (db *DB) Readers(ctx context.Context) (list []Reader, err error) {
	err = db.query(ctx, "readers", appendTo(&list, func(one *Reader) []any { return []any{&one.Role, &one.Tables} }),
		mayRead, db.tableNames())
	return list, err
}

// ForeignTables reads from the system catalogue which tables of other programs the schema contains.
func (db *DB) ForeignTables(ctx context.Context) (f ForeignTables, err error) {
	err = db.queryRow(ctx, "foreign tables", []any{&f.Schema, &f.Former, &f.Taken, &f.Role, &f.Readers},
		selectForeignTables)
	f.Former = f.Former && db.ns == ""
	return f, err
}

package store

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/migrations"
)

// Location says where our tables are. It does not depend on how the connection string names the server.
type Location struct {
	// Cluster is the system identifier of the server, Database the oid of the database.
	Cluster, Database string
	// Schema is the first schema of the search path, Role the role as which this program connects.
	Schema, Role string
}

var selectLocation = define(`
select (select system_identifier from pg_control_system())::text,
    (select oid from pg_database where datname = current_database())::text, coalesce(current_schema()::text, ''), current_user::text`)

// Location reads the Location from the server.
func (db *DB) Location(ctx context.Context) (p Location, err error) {
	err = db.queryRow(ctx, "location", []any{&p.Cluster, &p.Database, &p.Schema, &p.Role}, selectLocation)
	return p, err
}

// ForeignKey is a foreign key of an application's table that refers to one of our tables.
type ForeignKey struct {
	// Table is the application's table, Target is our table without the namespace. Both are without quotes.
	Table, Target string
	// QuotedTable and Name are quoted for SQL. Definition is the result of pg_get_constraintdef, without the name of
	// the Target.
	QuotedTable, Name, Definition string
}

// ours is the start of a query. It finds the table users and those of our tables that refer to it, directly or through
// another table.
const ours = `
with recursive ours (oid) as (
    select to_regclass('{users}')::oid
    union
    select c.conrelid from pg_constraint c join ours o on c.confrelid = o.oid
    join pg_class t on t.oid = c.conrelid join pg_class u on u.oid = to_regclass('{users}')
    where c.contype = 'f' and t.relnamespace = u.relnamespace and t.relname::text = any($1)
)`

var selectForeignKeys = define(ours + `
select n.nspname || '.' || t.relname, substr(u.relname, $2), format('%I.%I', n.nspname, t.relname), format('%I', c.conname),
    replace(pg_get_constraintdef(c.oid), ' REFERENCES ' || c.confrelid::regclass || '(', ' REFERENCES (')
from pg_constraint c
join pg_class t on t.oid = c.conrelid
join pg_namespace n on n.oid = t.relnamespace
join pg_class u on u.oid = c.confrelid
where c.contype = 'f' and c.confrelid in (select oid from ours) and c.conrelid not in (select oid from ours)
    and c.conparentid = 0
order by 1, 4`)

// tableNames returns migrations.Names with the namespace: the names of our tables. It also has the names of indexes,
// but no table has one of these.
func (db *DB) tableNames() []string {
	names := make([]string, len(migrations.Names))
	for i, n := range migrations.Names {
		names[i] = db.ns + n
	}
	return names
}

// ForeignKeys returns the foreign keys of the application's tables that refer to our table users, or to a table of ours
// that refers to users.
func (db *DB) ForeignKeys(ctx context.Context) (list []ForeignKey, err error) {
	err = db.query(ctx, "foreign keys", appendTo(&list, func(k *ForeignKey) []any {
		return []any{&k.Table, &k.Target, &k.QuotedTable, &k.Name, &k.Definition}
	}), selectForeignKeys, db.tableNames(), len(db.ns)+1)
	return list, err
}

var selectOurs = define(ours + `
select format('%I.%I', n.nspname, t.relname) from ours o join pg_class t on t.oid = o.oid join pg_namespace n on n.oid = t.relnamespace
order by 1`)

var deleteMove = define(`delete from {moves} where id = $1 and state = 'open'`)

// AbandonMove deletes an open takeover, and all rows of our table users and of our tables that refer to it. It fails if
// a table of another program refers to one of these tables, since the deletion does not cascade.
func (db *DB) AbandonMove(ctx context.Context, id uuid.UUID) error {
	return db.InTx(ctx, func(t *Tx) error {
		if _, err := t.tx.Exec(ctx, carrySettings, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		n, err := t.exec(ctx, deleteMove, id)
		if err != nil {
			return err
		}
		if n == 0 {
			return ErrMoveLost
		}
		var names []string
		err = t.query(ctx, appendTo(&names, func(name *string) []any { return []any{name} }), selectOurs, db.tableNames())
		if err != nil {
			return err
		}
		_, err = t.tx.Exec(ctx, "truncate "+strings.Join(names, ", "), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

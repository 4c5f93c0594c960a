package store

import (
	"context"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/migrations"
)

// Location is where our tables are, however the connection names it.
type Location struct {
	// Cluster is the server's identifier, Database the number of the database.
	Cluster, Database string
	// Schema is the first of the search path, Role the one that we are.
	Schema, Role string
}

var selectLocation = define(`
select (select system_identifier from pg_control_system())::text,
    (select oid from pg_database where datname = current_database())::text, coalesce(current_schema()::text, ''), current_user::text`)

// Location asks the catalogue.
func (db *DB) Location(ctx context.Context) (p Location, err error) {
	err = db.queryRow(ctx, "location", []any{&p.Cluster, &p.Database, &p.Schema, &p.Role}, selectLocation)
	return p, err
}

// ForeignKey is one of a table that is not ours.
type ForeignKey struct {
	// Table is the one that has it, Target ours, without the namespace; both without quotes.
	Table, Target string
	// Name and Definition are as SQL wants them: the definition is pg_get_constraintdef's.
	QuotedTable, Name, Definition string
}

// Ours are the tables that hang on users, directly or through another one.
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
    pg_get_constraintdef(c.oid)
from pg_constraint c
join pg_class t on t.oid = c.conrelid
join pg_namespace n on n.oid = t.relnamespace
join pg_class u on u.oid = c.confrelid
where c.contype = 'f' and c.confrelid in (select oid from ours) and c.conrelid not in (select oid from ours)
    and c.conparentid = 0
order by 1, 4`)

// tableNames are ours with the namespace; other names of migrations are those of indexes, which no table has.
func (db *DB) tableNames() []string {
	names := make([]string, len(migrations.Names))
	for i, n := range migrations.Names {
		names[i] = db.ns + n
	}
	return names
}

// ForeignKeys are those of the application's tables on users, or on another of ours that hangs on users.
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

// AbandonMove empties users and the tables of ours that hang on it, and forgets the open takeover. A table of another
// program that refers to one of them makes it fail: nothing cascades.
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
		rows, err := t.tx.Query(ctx, db.sql[selectOurs], db.tableNames())
		if err != nil {
			return err
		}
		var names []string
		if err := eachRow(rows, appendTo(&names, func(name *string) []any { return []any{name} })); err != nil {
			return err
		}
		_, err = t.tx.Exec(ctx, "truncate "+strings.Join(names, ", "), pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// denied reads a refusal's text, ran the table that the statement in its context writes. PostgreSQL has neither in a
// field.
var (
	denied = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^permission denied for ([a-z ]+) (\S+)$`) })
	ran    = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)SQL statement "\s*(insert|update|delete)(?: into| from)?(?: only)?\s+([\w.]+)`)
	})
)

// lacking are the relations of a name that a hook's function may not touch, and the role that it runs as.
var lacking = define(`
with who as (
    select coalesce((select p.proowner from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = $1 and p.proname = $2 and p.prosecdef limit 1), (select oid from pg_roles where rolname = current_user)) as role)
select format('%I', pg_get_userbyid(role)), coalesce((
    select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relname = $3 and c.relkind in ('r', 'p', 'v', 'm', 'f') and not has_table_privilege(role, c.oid, $4)
    order by array_position(current_schemas(false), n.nspname), n.nspname limit 1), '')
from who`)

// GrantFor returns what TryFunction's function was not allowed to do, with the GRANT that helps; "" if err is no such
// refusal.
func (db *DB) GrantFor(ctx context.Context, schema, function string, err error) string {
	pg, _ := errors.AsType[*pgconn.PgError](err)
	if pg == nil || pg.Code != "42501" { // insufficient_privilege
		return ""
	}
	m := denied().FindStringSubmatch(pg.Message)
	if m == nil { // another language, or raised by the function
		return pg.Message
	}
	kind, name, verb, word := m[1], m[2], "read", "select"
	if m := ran().FindStringSubmatch(pg.Where); m != nil && strings.HasSuffix("."+m[2], "."+name) {
		verb, word = "write", strings.ToLower(m[1])
	}
	var role, relation string
	err = db.query(ctx, "grant", func(r pgx.Rows) error { return r.Scan(&role, &relation) }, lacking, schema, function,
		name, word)
	switch {
	case err != nil:
		return pg.Message
	case kind == "schema":
		return fmt.Sprintf("may not use schema %s: grant usage on schema %s to %s", name, name, role)
	case relation != "":
		return fmt.Sprintf("may not %s %s: grant %s on %s to %s", verb, relation, word, relation, role)
	}
	return fmt.Sprintf("%s: grant it to %s", pg.Message, role)
}

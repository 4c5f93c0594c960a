package store

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"
)

// denied matches PostgreSQL's message for a missing right and extracts the object's kind and name. ran extracts from
// the error's context which statement writes which table. PostgreSQL does not report these in fields of the error.
var (
	denied = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^permission denied for ([a-z ]+) (\S+)$`) })
	ran    = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?i)SQL statement "\s*(insert|update|delete)(?: into| from)?(?: only)?\s+([\w.]+)`)
	})
)

// lacking returns the role as which a hook's function runs, the name of the table or view that this role may not
// access, and whether a view of another owner reads this table or view. If several functions have the hook's name,
// lacking takes the one that PostgreSQL would call: PostgreSQL prefers a parameter of type text, then fewer parameters.
var lacking = define(`
with who as (
    select coalesce((select case when p.prosecdef then p.proowner end
        from pg_proc p join pg_namespace n on n.oid = p.pronamespace
        where n.nspname = $1 and p.proname = $2 and p.pronargs > 0 and p.pronargs - p.pronargdefaults <= 1
            and p.proargtypes[0] in ('json'::regtype, 'jsonb'::regtype, 'text'::regtype)
        order by p.proargtypes[0] = 'text'::regtype desc, p.pronargs limit 1),
        (select oid from pg_roles where rolname = current_user)) as role),
what as (
    select c.oid, format('%I.%I', n.nspname, c.relname) as name
    from who, pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relname = $3 and c.relkind in ('r', 'p', 'v', 'm', 'f') and not has_table_privilege(role, c.oid, $4)
    order by array_position(current_schemas(false), n.nspname), n.nspname limit 1)
select format('%I', pg_get_userbyid(role)), format('%I', $3::text), coalesce((select name from what), ''), exists (
    select from what join pg_depend d on d.refobjid = what.oid and d.refclassid = 'pg_class'::regclass
    join pg_rewrite w on d.classid = 'pg_rewrite'::regclass and w.oid = d.objid join pg_class v on v.oid = w.ev_class
    where v.oid <> what.oid and v.relowner <> role)
from who`)

// between is appended to the advice to grant a right to a role if the right may instead be missing to the owner of a
// view or function through which the statement accesses the table.
const between = ", or to the owner of the view or function that the statement goes through"

// GrantFor returns a text for the operator: what a function called by TryFunction was not allowed to do, and the GRANT
// statement that would allow it. It returns "" if err does not come from a missing right; a function may also raise
// insufficient_privilege on purpose.
func (db *DB) GrantFor(ctx context.Context, schema, function string, err error) string {
	pg, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case pg == nil || pg.Code != "42501": // insufficient_privilege
		return ""
	case pg.Routine == "ExecWithCheckOptions" || pg.Routine == "check_enable_rls": // row-level security
		return pg.Message
	case pg.Routine != "aclcheck_error":
		return ""
	}
	m := denied().FindStringSubmatch(pg.Message)
	if m == nil { // the message is in another language, or the role must be the owner
		return pg.Message
	}
	kind, name, verb, word := m[1], m[2], "read", "select"
	if m := ran().FindStringSubmatch(pg.Where); m != nil && strings.HasSuffix("."+m[2], "."+name) {
		verb, word = "write", strings.ToLower(m[1])
	}
	var role, quoted, relation string
	var viewed bool
	err = db.query(ctx, "grant", rowInto(&role, &quoted, &relation, &viewed), lacking, schema, function, name, word)
	if viewed && verb == "read" || len(functionsIn(pg)) > 1 {
		role += between
	}
	switch {
	case err != nil:
		return pg.Message
	case kind == "schema":
		return fmt.Sprintf("may not use schema %s: grant usage on schema %s to %s", name, quoted, role)
	case relation != "":
		return fmt.Sprintf("may not %s %s: grant %s on %s to %s", verb, relation, word, relation, role)
	case strings.HasSuffix(kind, "table") || strings.HasSuffix(kind, "view"): // another role lacks the right
		return fmt.Sprintf("%s: grant %s on it to %s", pg.Message, word, strings.TrimPrefix(between, ", or to "))
	}
	return fmt.Sprintf("%s: grant it to %s", pg.Message, role)
}

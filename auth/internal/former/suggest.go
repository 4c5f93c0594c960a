package former

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Target says where our tables are, to which the application should refer after the takeover.
type Target struct {
	// Schema is the name of our schema, Namespace the prefix of our names in it.
	Schema, Namespace string
	// Role is the quoted name of the role that owns our tables.
	Role string
	// Same is true if our tables are in the source's database. Only then can foreign keys and triggers of the
	// application refer to them.
	Same bool
}

// table returns the name of our table that corresponds to a table of the source.
func (to *Target) table(name string) string { return Name(to.Schema, to.Namespace+name) }

// mirror returns the names of the mirror's functions (package mirror). They are in our schema but do not belong to the
// application.
func (to *Target) mirror(ctx context.Context, q Querier) ([]string, error) {
	if !to.Same {
		return nil, nil
	}
	rows, err := q.Query(ctx, `select n.nspname || '.' || p.proname from pg_proc p
join pg_namespace n on n.oid = p.pronamespace where n.nspname = $1 and starts_with(p.proname, $2)`, to.Schema, to.Namespace+"mirror_")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Advice is what the operator of an application that uses the schema's tables should do. This program never does any of
// it itself.
type Advice struct {
	// Suggestions and WayBack are lines of SQL and comments. WayBack undoes Suggestions. WayBackEnd is the end of
	// WayBack. It fails as long as the application has rows of users whom the source lacks.
	Suggestions, WayBack, WayBackEnd []string
	// Objects are the names of the objects that the suggestions change, and of objects that the operator has to
	// inspect.
	Objects []string

	validate []string // statements that validate the foreign keys, whichever tables these refer to
}

// foreignKey is a foreign key of the application that refers to a table of the schema.
type foreignKey struct{ Table, Owner, Name, Target, Definition string }

// selectKeys omits the name of the referenced table from the definition.
const selectKeys = `
select format('%I.%I', n.nspname, t.relname), format('%I', pg_get_userbyid(t.relowner)), format('%I', c.conname), u.relname::text,
    replace(pg_get_constraintdef(c.oid), ' REFERENCES ' || c.confrelid::regclass || '(', ' REFERENCES (')
from pg_constraint c
join pg_class t on t.oid = c.conrelid
join pg_namespace n on n.oid = t.relnamespace
join pg_class u on u.oid = c.confrelid
join pg_namespace s on s.oid = u.relnamespace
where c.contype = 'f' and s.nspname = $1 and n.nspname <> $1 and c.conparentid = 0 and u.relname in ('users', 'sessions', 'identities')
order by 1, 3`

// parse splits the definition of a foreign key that refers to the column id of users. column is the application's
// column. rules is the end of the definition: the actions on a delete or update, and when the key is checked. validated
// is true if all rows satisfy the key. ok is false for a key that refers to other columns or to another table.
func (k *foreignKey) parse() (column, rules string, validated, ok bool) {
	head, rules, ok := strings.Cut(k.Definition, " REFERENCES (id)")
	if !ok || k.Target != "users" {
		return "", "", false, false
	}
	parts := strings.Split(rules, `"`)
	for i := 0; i < len(parts); i += 2 { // the odd parts are quoted names
		parts[i] = strings.ToLower(parts[i])
	}
	rules, unvalidated := strings.CutSuffix(strings.Join(parts, `"`), " not valid")
	return strings.TrimSuffix(strings.TrimPrefix(head, "FOREIGN KEY ("), ")"), rules, !unvalidated, true
}

// Advise finds in the catalogue which objects of the application refer to the schema's tables, and returns what to do
// about them.
func (s *Source) Advise(ctx context.Context, to Target) (a Advice, err error) {
	var keys []foreignKey
	var mirror []string
	err = s.read(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, selectKeys, s.Schema)
		if err == nil {
			keys, err = pgx.CollectRows(rows, pgx.RowToStructByPos[foreignKey])
		}
		if err == nil {
			mirror, err = to.mirror(ctx, c)
		}
		if err != nil {
			return err
		}
		a.moveKeys(keys, s.Schema, &to)
		return s.triggers(ctx, c, to, mirror, &a)
	})
	if err == nil {
		err = s.readers(ctx, mirror, &a)
	}
	if err != nil {
		return a, err
	}
	if !to.Same && len(a.Objects) > 0 {
		a.Suggestions = append(a.Suggestions, "-- they cannot refer to another database")
	}
	a.Suggestions = append(append(a.Suggestions, renamed), a.validate...)
	a.WayBackEnd = append(a.validate, a.WayBackEnd...)
	a.onOneLine()
	return a, nil
}

// moveKeys adds to Suggestions the statements that make foreign keys on the former service's table users refer to our
// table users, and to the way back the statements that make them refer to the former service's table again.
func (a *Advice) moveKeys(keys []foreignKey, source string, to *Target) {
	users := to.table("users")
	for _, k := range keys {
		refers := fmt.Sprintf("foreign key %s of %s refers to %s.%s", k.Name, k.Table, source, k.Target)
		a.Objects = append(a.Objects, refers)
		column, rules, validated, ok := k.parse()
		if !ok || !to.Same {
			a.Suggestions = append(a.Suggestions, "-- "+refers)
			continue
		}
		a.Suggestions = append(a.Suggestions,
			fmt.Sprintf("-- rows of users who were left out: select * from %[1]s t where t.%[2]s is not null and not "+
				"exists (select from %[3]s u where u.id = t.%[2]s);", k.Table, column, users))
		if k.Owner != to.Role {
			a.Suggestions = append(a.Suggestions, fmt.Sprintf("grant references on %s to %s;", users, k.Owner))
			a.WayBackEnd = append(a.WayBackEnd, fmt.Sprintf("revoke references on %s from %s;", users, k.Owner))
		}
		move := func(users string) string {
			return fmt.Sprintf("alter table %[1]s drop constraint %[2]s, add constraint %[2]s foreign key (%[3]s) "+
				"references %[4]s (id)%[5]s not valid;", k.Table, k.Name, column, users, rules)
		}
		a.Suggestions, a.WayBack = append(a.Suggestions, move(users)), append(a.WayBack, move(Name(source, "users")))
		if validated {
			a.validate = append(a.validate, fmt.Sprintf("alter table %s validate constraint %s;", k.Table, k.Name))
		}
	}
	slices.Sort(a.WayBackEnd)
	a.WayBackEnd = slices.Compact(a.WayBackEnd)
}

// onOneLine removes line breaks from comments and names.
func (a *Advice) onOneLine() {
	for _, lines := range [][]string{a.Suggestions, a.WayBack, a.WayBackEnd} {
		for i, line := range lines {
			if strings.HasPrefix(line, "--") {
				lines[i] = oneLine(line)
			}
		}
	}
	for i, name := range a.Objects {
		a.Objects[i] = oneLine(name)
	}
}

// oneLine replaces line breaks, which names may contain, by blanks. In a comment, the text after a line break would be
// executed as a statement. Names in statements are quoted, so line breaks do no harm there.
func oneLine(text string) string { return strings.NewReplacer("\n", " ", "\r", " ").Replace(text) }

const selectTriggers = `
select format('%I', t.tgname), c.relname::text, pg_get_triggerdef(t.oid),
    format('%I.%I', f.nspname, p.proname), p.prosrc
from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_namespace f on f.oid = p.pronamespace
join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1 and not t.tgisinternal and (f.nspname || '.' || p.proname = any($2::text[])) is not true order by 2, 1`

// renamed is a comment for the operator that lists the tables and columns that have other names in our schema.
const renamed = "-- columns that are called otherwise here: raw_user_meta_data is user_metadata, raw_app_meta_data " +
	"is app_metadata, " +
	"encrypted_password is password_hash, email_change is new_email, phone_change is new_phone, confirmed_at is " +
	"least(email_confirmed_at, phone_confirmed_at); email and phone are '' instead of null; mfa_factors is factors, " +
	"factor_type is kind, status 'verified' is verified_at that is not null; sessions that have ended stay, with ended_at"

// columnsHere maps the source's names of columns to ours, for columns whose names differ.
var columnsHere = map[string]string{"raw_user_meta_data": "user_metadata", "raw_app_meta_data": "app_metadata",
	"encrypted_password": "password_hash", "email_change": "new_email", "phone_change": "new_phone",
	"confirmed_at": "email_confirmed_at, phone_confirmed_at"}

var columnsThere = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(\b(?:new|old)\.)?\b(raw_user_meta_data|raw_app_meta_data|encrypted_password|` +
		`email_change|phone_change|confirmed_at)\b`)
})

// renamedIn returns why a trigger would not work with our tables: its definition or its function names a column that
// has another name in our tables. It returns "" if neither does.
func renamedIn(definition, function, source string) string {
	if m := columnsThere().FindStringSubmatch(source); m != nil {
		return "function " + function + " reads " + strings.ToLower(m[2]) + ", which has another name; mend a copy first"
	}
	if m := columnsThere().FindStringSubmatch(definition); m != nil {
		return "it names " + strings.ToLower(m[2]) + ", which has another name"
	}
	return ""
}

// mend replaces the names of renamed columns in a trigger's definition, and removes duplicates from the list in UPDATE
// OF.
func mend(definition string) string {
	head, rest, found := strings.Cut(rename(definition), " UPDATE OF ")
	if !found {
		return head
	}
	list, rest, _ := strings.Cut(rest, " ON ")
	var columns []string
	for column := range strings.SplitSeq(list, ", ") {
		if !slices.Contains(columns, column) {
			columns = append(columns, column)
		}
	}
	return head + " UPDATE OF " + strings.Join(columns, ", ") + " ON " + rest
}

func rename(definition string) string {
	return columnsThere().ReplaceAllStringFunc(definition, func(text string) string {
		m := columnsThere().FindStringSubmatch(text)
		row, column := m[1], strings.ToLower(m[2])
		if column == "confirmed_at" && row != "" {
			return "least(" + row + "email_confirmed_at, " + row + "phone_confirmed_at)"
		}
		return row + columnsHere[column]
	})
}

func (s *Source) triggers(ctx context.Context, c *pgx.Conn, to Target, mirror []string, a *Advice) error {
	rows, err := c.Query(ctx, selectTriggers, s.Schema, mirror)
	if err != nil {
		return err
	}
	var name, table, definition, function, source string
	_, err = pgx.ForEachRow(rows, []any{&name, &table, &definition, &function, &source}, func() error {
		a.Objects = append(a.Objects, fmt.Sprintf("trigger %s on %s.%s", name, s.Schema, table))
		here := to.table(table)
		on := " ON " + pgx.Identifier{s.Schema, table}.Sanitize() + " "
		plain := " ON " + Name(s.Schema, table) + " "
		moved := strings.Replace(strings.Replace(definition, plain, " ON "+here+" ", 1), on, " ON "+here+" ", 1)
		if !to.Same || moved == definition || strings.HasPrefix(table, "mfa_") || table == "refresh_tokens" {
			a.Suggestions = append(a.Suggestions, fmt.Sprintf("-- trigger %s on %s.%s: %s", name, s.Schema, table,
				definition))
			return nil
		}
		if reason := renamedIn(definition, function, source); reason != "" {
			a.Suggestions = append(a.Suggestions, fmt.Sprintf("-- trigger %s on %s.%s would fail here: %s; mended: %s;", name,
				s.Schema, table, reason, mend(moved)))
			return nil
		}
		a.Suggestions = append(a.Suggestions, moved+";")
		a.WayBack = append(a.WayBack, fmt.Sprintf("drop trigger %s on %s;", name, here))
		return nil
	})
	return err
}

// selectReaders finds the objects that read a table, or one column of the table users. For functions it searches their
// texts for the names.
const selectReaders = `
with tables as (
    select c.oid, c.relname::text, 0 as attnum, '' as attname from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = $1 and c.relname = any($2)
    union all
    select c.oid, c.relname || '.' || a.attname, a.attnum, a.attname
    from pg_class c join pg_namespace n on n.oid = c.relnamespace join pg_attribute a on a.attrelid = c.oid
    where n.nspname = $1 and c.relname = 'users' and a.attname = $3
)
select distinct kind, name, relation::text from (
    select 'view ' as kind, format('%I.%I', n.nspname, c.relname) as name, n.nspname, t.relname as relation
    from pg_depend d join pg_rewrite w on w.oid = d.objid join pg_class c on c.oid = w.ev_class and c.relkind in ('v', 'm')
    join pg_namespace n on n.oid = c.relnamespace join tables t on t.oid = d.refobjid and t.attnum in (0, d.refobjsubid)
    where d.classid = 'pg_rewrite'::regclass and d.refclassid = 'pg_class'::regclass
    union all
    select 'policy ', format('%I on %I.%I', p.polname, n.nspname, c.relname), n.nspname, t.relname
    from pg_depend d join pg_policy p on p.oid = d.objid join pg_class c on c.oid = p.polrelid
    join pg_namespace n on n.oid = c.relnamespace join tables t on t.oid = d.refobjid and t.attnum in (0, d.refobjsubid)
    where d.classid = 'pg_policy'::regclass and d.refclassid = 'pg_class'::regclass
    union all
    select 'function ', format('%I.%I', n.nspname, p.proname), n.nspname, t.relname
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace join tables t on case when t.attnum > 0
        then p.prosrc ~ ('\m' || t.attname || '\M')
        else p.prosrc ~ ('\m' || regexp_replace($1::text, '(\W)', '\\\1', 'g') || '\.' || t.relname || '\M')
            or position(format('%I.%I', $1::text, t.relname) in p.prosrc) > 0 end
    where n.nspname not in ('pg_catalog', 'information_schema')
        and (n.nspname || '.' || p.proname = any($4::text[])) is not true
) d where nspname <> $1
order by 1, 2, 3`

// Read says what Readers looks for: objects that read one of the Tables of Schema, or the Column of its table users.
// The functions in Ours (schema.name, without quotes) are left out.
type Read struct {
	Schema, Column string
	Tables, Ours   []string
}

// Readers returns the views, policies and functions outside of the schema that read one of the tables or the column.
func Readers(ctx context.Context, q Querier, r Read) (list []string, err error) {
	rows, err := q.Query(ctx, selectReaders, r.Schema, r.Tables, r.Column, r.Ours)
	if err != nil {
		return nil, err
	}
	var kind, name, table string
	_, err = pgx.ForEachRow(rows, []any{&kind, &name, &table}, func() error {
		list = append(list, kind+name+" reads "+r.Schema+"."+table)
		return nil
	})
	return list, err
}

// selectHelpers searches the texts of functions, since the catalogue does not show which functions a function calls.
const selectHelpers = `
select name, policies, defaults, functions from (
    select p.proname::text as name,
        (select count(distinct d.objid) from pg_depend d where d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid
            and d.classid = 'pg_policy'::regclass) as policies,
        (select count(distinct d.objid) from pg_depend d where d.refclassid = 'pg_proc'::regclass and d.refobjid = p.oid
            and d.classid = 'pg_attrdef'::regclass) as defaults,
        (select count(*) from pg_proc f join pg_namespace m on m.oid = f.pronamespace
            where m.nspname not in ('pg_catalog', 'information_schema', $1)
            and position(format('%I.%I(', $1::text, p.proname) in f.prosrc) > 0) as functions
    from pg_proc p join pg_namespace n on n.oid = p.pronamespace
    where n.nspname = $1 and p.proname in ('uid', 'role', 'email', 'jwt')
) h where policies + defaults + functions > 0
order by array_position(array['uid', 'role', 'email', 'jwt'], name)`

// readers adds the objects that read the schema's tables. It also adds functions of the schema that are still used, so
// that the schema must be kept even if its tables are dropped.
func (s *Source) readers(ctx context.Context, mirror []string, a *Advice) error {
	add := func(line string) {
		a.Objects, a.Suggestions = append(a.Objects, line), append(a.Suggestions, "-- "+line)
	}
	err := s.read(ctx, func(c *pgx.Conn) error {
		list, err := Readers(ctx, c, Read{Schema: s.Schema, Ours: mirror,
			Tables: []string{"users", "identities", "sessions", "mfa_factors", "refresh_tokens"}})
		for _, one := range list {
			add(one)
		}
		return err
	})
	if err != nil {
		return err
	}
	var used []string
	err = s.rows(ctx, selectHelpers, func(r pgx.Rows) error {
		var name string
		var policies, defaults, functions int
		err := r.Scan(&name, &policies, &defaults, &functions)
		used = append(used, fmt.Sprintf("%s is used by %d policies, %d defaults and %d functions", name, policies, defaults,
			functions))
		return err
	}, s.Schema)
	if len(used) > 0 {
		add("keep schema " + s.Schema + ": " + strings.Join(used, "; "))
	}
	return err
}

// Retire returns the statements that invalidate the valid refresh tokens in the schema. The operator executes them when
// it is certain that the former service will not be used again.
func (s *Source) Retire() []string {
	lines := []string{"update " + Name(s.Schema, "refresh_tokens") + " set revoked = true;"}
	if s.Catalog.Has("sessions", "refresh_token_hmac_key") {
		lines[0] += " update " + Name(s.Schema, "sessions") + " set refresh_token_hmac_key = null;"
	}
	return append([]string{
		"-- when nobody wants back any more, and not later than 30 days: live tokens lie there in clear"}, lines...)
}

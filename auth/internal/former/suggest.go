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

// Target is our table of users, to which the application should refer.
type Target struct {
	// Users is the quoted name of the table, such as gatehouse.users.
	Users string
	// Role is the quoted name of the table's owner.
	Role string
	// Same: the table is in the source's database. Foreign keys and triggers can refer only to tables of their own
	// database.
	Same bool
}

// selectMirror lists the functions of a mirror, which are beside our table of users and are not the application's.
const selectMirror = `
select n.nspname || '.' || p.proname
from pg_class u join pg_namespace n on n.oid = u.relnamespace join pg_proc p on p.pronamespace = n.oid
where format('%I.%I', n.nspname, u.relname) = $1 and starts_with(p.proname, left(u.relname, -length('users')) || 'mirror_')`

func (to *Target) mirror(ctx context.Context, q Querier) ([]string, error) {
	if !to.Same {
		return nil, nil
	}
	rows, err := q.Query(ctx, selectMirror, to.Users)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// Advice is what the operator of an application that uses the schema's tables should do. This program never runs any of
// it.
type Advice struct {
	// Suggestions and WayBack are lines of SQL and comments; WayBack undoes Suggestions. WayBackEnd is the end of
	// WayBack, which fails while the application has rows of users whom the source lacks.
	Suggestions, WayBack, WayBackEnd []string
	// Objects are the names of objects in the suggestions, and of objects that the operator has to inspect.
	Objects []string
}

// foreignKey is a foreign key of the application on a table of the schema.
type foreignKey struct {
	table, owner, name, target string
	columns, refers            []string
	update, delete             string
	setColumns                 []string
	deferrable, deferred       bool
	validated, full            bool
}

const selectKeys = `
select format('%I.%I', n.nspname, t.relname), format('%I', pg_get_userbyid(t.relowner)), format('%I', c.conname), u.relname::text,
    array(select format('%I', a.attname) from unnest(c.conkey) with ordinality k (n, i) join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.n order by k.i),
    array(select a.attname::text from unnest(c.confkey) with ordinality k (n, i) join pg_attribute a on a.attrelid = c.confrelid and a.attnum = k.n order by k.i),
    c.confupdtype::text, c.confdeltype::text, c.condeferrable, c.condeferred, c.convalidated, c.confmatchtype = 'f',
    array(select format('%I', a.attname) from jsonb_array_elements_text(case when jsonb_typeof(to_jsonb(c)->'confdelsetcols') = 'array'
        then to_jsonb(c)->'confdelsetcols' else '[]' end) k (n) join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.n::int)
from pg_constraint c
join pg_class t on t.oid = c.conrelid
join pg_namespace n on n.oid = t.relnamespace
join pg_class u on u.oid = c.confrelid
join pg_namespace s on s.oid = u.relnamespace
where c.contype = 'f' and s.nspname = $1 and n.nspname <> $1 and c.conparentid = 0 and u.relname in ('users', 'sessions', 'identities')
order by 1, 3`

var actions = map[string]string{"r": "restrict", "c": "cascade", "n": "set null", "d": "set default"}

// rules returns the SQL for the key's actions and for when it is checked.
func (k *foreignKey) rules() string {
	var b strings.Builder
	if k.full {
		b.WriteString(" match full")
	}
	if a := actions[k.update]; a != "" {
		b.WriteString(" on update " + a)
	}
	if a := actions[k.delete]; a != "" {
		b.WriteString(" on delete " + a)
		if len(k.setColumns) > 0 {
			b.WriteString(" (" + strings.Join(k.setColumns, ", ") + ")")
		}
	}
	if k.deferrable {
		b.WriteString(" deferrable")
		if k.deferred {
			b.WriteString(" initially deferred")
		}
	}
	return b.String()
}

// move returns the SQL that makes the key refer to another table.
func (k *foreignKey) move(users string) string {
	return fmt.Sprintf(
		"alter table %s drop constraint %s, add constraint %s foreign key (%s) references %s (id)%s not valid;",
		k.table, k.name, k.name, strings.Join(k.columns, ", "), users, k.rules())
}

func (k *foreignKey) validate() string {
	return fmt.Sprintf("alter table %s validate constraint %s;", k.table, k.name)
}

// Advise finds in the catalogue what refers to the schema's tables.
func (s *Source) Advise(ctx context.Context, to Target) (a Advice, err error) {
	there := Name(s.Schema, "users")
	var validateThere, validateHere, revoke, mirror []string
	err = s.read(ctx, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, selectKeys, s.Schema)
		if err != nil {
			return err
		}
		var k foreignKey
		_, err = pgx.ForEachRow(rows, []any{&k.table, &k.owner, &k.name, &k.target, &k.columns, &k.refers, &k.update,
			&k.delete, &k.deferrable, &k.deferred, &k.validated, &k.full, &k.setColumns}, func() error {
			a.Objects = append(a.Objects, fmt.Sprintf("foreign key %s of %s refers to %s.%s", k.name, k.table, s.Schema,
				k.target))
			if k.target != "users" || !slices.Equal(k.refers, []string{"id"}) || !to.Same {
				a.Suggestions = append(a.Suggestions, fmt.Sprintf("-- foreign key %s of %s refers to %s.%s", k.name,
					k.table, s.Schema, k.target))
				return nil
			}
			column := k.columns[0]
			a.Suggestions = append(a.Suggestions,
				fmt.Sprintf("-- rows of users who were left out: select * from %s t where t.%s is not null and not "+
					"exists (select from %s u where u.id = t.%s);",
					k.table, column, to.Users, column))
			if k.owner != to.Role {
				a.Suggestions = append(a.Suggestions, fmt.Sprintf("grant references on %s to %s;", to.Users, k.owner))
				revoke = append(revoke, fmt.Sprintf("revoke references on %s from %s;", to.Users, k.owner))
			}
			a.Suggestions, a.WayBack = append(a.Suggestions, k.move(to.Users)), append(a.WayBack, k.move(there))
			if k.validated {
				validateHere, validateThere = append(validateHere, k.validate()), append(validateThere, k.validate())
			}
			return nil
		})
		if err != nil {
			return err
		}
		if mirror, err = to.mirror(ctx, c); err != nil {
			return err
		}
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
	a.Suggestions = append(append(a.Suggestions, renamed), validateHere...)
	slices.Sort(revoke)
	a.WayBackEnd = append(validateThere, slices.Compact(revoke)...)
	a.onOneLine()
	return a, nil
}

// onOneLine keeps names with line breaks from ending a comment.
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

// oneLine removes line breaks, which names may contain: in a comment, the text behind a line break would be a
// statement. In statements names are quoted.
func oneLine(text string) string { return strings.NewReplacer("\n", " ", "\r", " ").Replace(text) }

const selectTriggers = `
select format('%I', t.tgname), c.relname::text, pg_get_triggerdef(t.oid),
    format('%I.%I', f.nspname, p.proname), p.prosrc
from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_namespace f on f.oid = p.pronamespace
join pg_class c on c.oid = t.tgrelid join pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1 and not t.tgisinternal and (f.nspname || '.' || p.proname = any($2::text[])) is not true order by 2, 1`

// renamed is the comment on tables and columns that have other names here.
const renamed = "-- columns that are called otherwise here: raw_user_meta_data is user_metadata, raw_app_meta_data " +
	"is app_metadata, " +
	"encrypted_password is password_hash, email_change is new_email, phone_change is new_phone, confirmed_at is " +
	"least(email_confirmed_at, phone_confirmed_at); email and phone are '' instead of null; mfa_factors is factors, " +
	"factor_type is kind, status 'verified' is verified_at that is not null; sessions that have ended stay, with ended_at"

// columnsHere has our names of columns by their different names in the source.
var columnsHere = map[string]string{"raw_user_meta_data": "user_metadata", "raw_app_meta_data": "app_metadata",
	"encrypted_password": "password_hash", "email_change": "new_email", "phone_change": "new_phone",
	"confirmed_at": "email_confirmed_at, phone_confirmed_at"}

var columnsThere = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(\b(?:new|old)\.)?\b(raw_user_meta_data|raw_app_meta_data|encrypted_password|` +
		`email_change|phone_change|confirmed_at)\b`)
})

// renamedIn returns a renamed column of the source that a trigger's definition or function names; "": none.
func renamedIn(definition, function, source string) string {
	if m := columnsThere().FindStringSubmatch(source); m != nil {
		return "function " + function + " reads " + strings.ToLower(m[2]) + ", which has another name; mend a copy first"
	}
	if m := columnsThere().FindStringSubmatch(definition); m != nil {
		return "it names " + strings.ToLower(m[2]) + ", which has another name"
	}
	return ""
}

// mend replaces the names of renamed columns in a trigger's definition, and removes duplicates in UPDATE OF.
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
		here := to.Users
		if table != "users" {
			here = strings.TrimSuffix(strings.TrimSuffix(to.Users, "users"), `users"`)
			if strings.HasSuffix(to.Users, `"`) {
				here += table + `"`
			} else {
				here += table
			}
		}
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

// selectReaders finds the objects that read a table, or one column of the table users. It searches the texts of
// functions for the names.
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

// Read is what Readers looks for: Tables of Schema, and a Column of its users. Functions in Ours (schema.name, without
// quotes) are left out.
type Read struct {
	Schema, Column string
	Tables, Ours   []string
}

// Readers lists the views, policies and functions outside of the schema that read one of the tables or the column.
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

// The catalogue does not show which functions a function calls, so its text is searched.
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

// readers adds what reads the tables, and the objects of the schema that must stay even if the tables go.
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

// Retire returns the statements that invalidate the live tokens of the schema, once the way back is no longer needed.
func (s *Source) Retire() []string {
	lines := []string{"update " + Name(s.Schema, "refresh_tokens") + " set revoked = true;"}
	if s.Catalog.Has("sessions", "refresh_token_hmac_key") {
		lines[0] += " update " + Name(s.Schema, "sessions") + " set refresh_token_hmac_key = null;"
	}
	return append([]string{
		"-- when nobody wants back any more, and not later than 30 days: live tokens lie there in clear"}, lines...)
}

package mirror

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/store"
)

// examine looks for everything that prevents an install, and returns ErrRefused if it finds anything. It also prints
// warnings. first is true if no mirror was installed before.
func (r *run) examine(ctx context.Context, first bool) error {
	ours, theirs := []string{r.ours("users")}, []string{r.theirs("users")}
	for _, t := range r.tables() {
		ours, theirs = append(ours, r.ours(t.here)), append(theirs, r.theirs(t.there))
	}
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{selectRights, []any{r.there.Name, r.mirrored(), r.writer}},
		{selectMoved, []any{r.here, ours, theirs}},
		{selectKinds, []any{r.there.Name}},
	} {
		list, err := r.lines(ctx, q.sql, q.args...)
		if err != nil {
			return err
		}
		r.refusals = append(r.refusals, list...)
	}
	if err := r.columns(ctx); err != nil {
		return err
	}
	doubts, err := r.warnings(ctx)
	if err != nil {
		return err
	}
	r.warn(doubts)
	if len(r.refusals) == 0 { // otherwise it may not be possible to read the rows
		if err := r.strangers(ctx); err != nil {
			return err
		}
		if first {
			if err := r.gone(ctx); err != nil {
				return err
			}
		}
	}
	return r.told()
}

// mirrored returns the names of the former service's tables that the mirror writes.
func (r *run) mirrored() []string {
	list := []string{"users"}
	for _, t := range r.tables() {
		list = append(list, t.there)
	}
	return list
}

// selectRights returns a line for each right that the writer, the role that writes the former service's tables, lacks,
// with the statement that grants the right. It casts no name to regclass, since the cast fails if the role that runs
// the query has no USAGE on the schema.
const selectRights = `
with w as (select oid, rolsuper, rolbypassrls from pg_roles where rolname = $3), t as (
    select c.*, c.oid as id, format('%I.%I', n.nspname, c.relname) as name
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1::text and c.relname = any($2::text[]))
select format('role %I lacks USAGE on schema %I: grant usage on schema %I to %I;', $3::text, $1::text, $1::text, $3::text)
from w where not has_schema_privilege(w.oid, $1::text, 'usage')
union all
select format('role %I lacks %s on %s: grant %s on %s to %I;', $3::text, word, t.name, lower(word), t.name, $3::text)
from t, unnest(array['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRIGGER']) word, w where not has_table_privilege(w.oid, t.id, word)
union all
select format('row-level security hides rows of %s from role %I: alter role %I bypassrls;', t.name, $3::text, $3::text)
from t, w where t.relrowsecurity and not t.relforcerowsecurity and not w.rolsuper and not w.rolbypassrls
    and not pg_has_role(w.oid, t.relowner, 'usage')
union all
select format('row-level security is forced on %s: alter table %s no force row level security;', t.name, t.name)
from t where t.relforcerowsecurity`

// selectMoved returns the foreign keys and triggers of the application that were changed to refer to our tables. They
// must refer to the former service's tables again when there is a mirror.
const selectMoved = `
select format('%s of %s refers to %s: alter table %s drop constraint %I, add constraint %I %s;', c.conname, c.conrelid::regclass,
    c.confrelid::regclass, c.conrelid::regclass, c.conname, c.conname,
    replace(pg_get_constraintdef(c.oid), 'REFERENCES ' || c.confrelid::regclass, 'REFERENCES ' || m.there))
from pg_constraint c join unnest($2::text[], $3::text[]) m (here, there) on c.confrelid = m.here::regclass
join pg_class t on t.oid = c.conrelid join pg_namespace n on n.oid = t.relnamespace
where c.contype = 'f' and n.nspname <> $1
union all
select format('trigger %s of %s runs the application''s function %s: drop trigger %I on %s; %s;', t.tgname, t.tgrelid::regclass,
    p.oid::regprocedure, t.tgname, t.tgrelid::regclass,
    replace(pg_get_triggerdef(t.oid), 'ON ' || t.tgrelid::regclass, 'ON ' || m.there))
from pg_trigger t join unnest($2::text[], $3::text[]) m (here, there) on t.tgrelid = m.here::regclass
join pg_proc p on p.oid = t.tgfoid join pg_namespace f on f.oid = p.pronamespace
where not t.tgisinternal and f.nspname <> $1`

const selectColumns = `
select format('column %I of %s takes no null and has no default: alter table %s alter %I set default …;', a.attname, a.attrelid::regclass,
    a.attrelid::regclass, a.attname)
from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
where n.nspname = $1 and c.relname = any($2) and a.attnum > 0 and not a.attisdropped and a.attnotnull and not a.atthasdef
    and a.attidentity = '' and c.relname || '.' || a.attname <> all($3::text[])`

// columns refuses an install if a table of the former service has a column that requires a value and that the mirror
// does not write.
func (r *run) columns(ctx context.Context) error {
	given := []string{"users.instance_id", "users.encrypted_password", "users.email_change"}
	for _, c := range tokens {
		given = append(given, "users."+c)
	}
	for _, t := range append(r.tables(), rows{there: "users", columns: userColumns}) {
		given = append(given, t.there+".updated_at")
		for _, c := range t.columns {
			given = append(given, t.there+"."+c.name)
		}
	}
	list, err := r.lines(ctx, selectColumns, r.there.Name, r.mirrored(), given)
	r.refusals = append(r.refusals, list...)
	return err
}

// selectKinds returns the kinds of second factors that our tables can have and that the former service's enum type
// factor_type lacks.
const selectKinds = `
select format('type %I.factor_type lacks %s: alter type %I.factor_type add value ''%s'';', $1::text, kind, $1::text, kind)
from unnest(array['totp', 'phone']) kind
where not exists (select from pg_enum e join pg_type t on t.oid = e.enumtypid join pg_namespace n on n.oid = t.typnamespace
    where n.nspname = $1 and t.typname = 'factor_type' and e.enumlabel = kind)`

// selectWarnings returns rights that are wider than needed: of PUBLIC, and of the roles anon and authenticated, whether
// granted directly or through another role. It also returns whether the writer is a superuser.
const selectWarnings = `
with w as (select 'public' as name union all select rolname from pg_roles where rolname in ('anon', 'authenticated'))
select format('role %s may write %s', replace(w.name, 'public', 'PUBLIC'), c.oid::regclass)
from w, pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = any($2)
    and (has_table_privilege(w.name, c.oid, 'insert, update, delete, truncate, trigger')
        or has_any_column_privilege(w.name, c.oid, 'insert, update'))
union all
select format('role %s may create in schema %s', replace(w.name, 'public', 'PUBLIC'), $1::text)
from w where has_schema_privilege(w.name, $1::text, 'create')
union all
select format('role %s, which writes there, is a superuser: the application''s triggers run with its rights', rolname)
from pg_roles where rolname = $3 and rolsuper`

// warnings returns the rights and memberships of roles that allow more than intended.
func (r *run) warnings(ctx context.Context) ([]string, error) {
	list, err := r.lines(ctx, selectWarnings, r.there.Name, r.mirrored(), r.writer)
	for _, of := range []struct{ role, why string }{
		{r.role, "functions of theirs that run there read the hashes here"},
		{r.writer, "they may alter the mirror's functions"},
	} {
		members, err2 := r.members(ctx, of.role)
		err = cmp.Or(err, err2)
		for _, m := range members {
			list = append(list, fmt.Sprintf("role %s is a member of %s: %s (revoke %s from %s;)", m, of.role, of.why,
				ident(of.role), ident(m)))
		}
	}
	return list, err
}

func (r *run) warn(list []string) {
	for _, text := range list {
		fmt.Fprintln(r.Log, "mirror: warning:", text)
	}
}

// members returns the direct and indirect members of a role, without superusers, who have all rights anyway.
func (r *run) members(ctx context.Context, role string) ([]string, error) {
	return r.lines(ctx, `select rolname::text from pg_roles where not rolsuper and rolname <> $1 and
		pg_has_role(oid, $1::name, 'member') order by 1`, role)
}

// strangers looks for users of the former service whom our tables lack. It refuses an install if such a user has the
// email address or phone number of a user of ours, and otherwise prints a warning.
func (r *run) strangers(ctx context.Context) error {
	type strangers struct {
		Taken bool
		Count int
		Some  string
	}
	list, err := query(ctx, r, pgx.RowToStructByPos[strangers], fmt.Sprintf(`
select taken, count(*), array_to_string((array_agg(id order by id))[:20], ' ') || case when count(*) > 20 then ' …' else '' end from (
    select o.id::text, bool_or(e.id is not null or p.id is not null) as taken
    from %[1]s o left join %[2]s e on e.email <> '' and e.email = lower(o.email)
    left join %[2]s p on p.phone <> '' and p.phone = ltrim(o.phone, '+')
    where not exists (select from %[2]s u where u.id = o.id) and (coalesce(o.email, '') <> '' or coalesce(o.phone, '') <> '')
        and not o.is_sso_user and not exists (select from %[3]s a where a.action = %[4]d and a.traits ->> 'user_id' = o.id::text)
    group by o.id) s
group by taken`, r.theirs("users"), r.ours("users"), r.ours("audit"), store.ActionUserDeleted))
	for _, s := range list {
		if s.Taken {
			r.refuse("%d users there, who are not here, have the address of a user here: delete them, or change their "+
				"addresses: %s", s.Count, s.Some)
		} else {
			r.warn([]string{fmt.Sprintf("%d users there are not here, and nobody can sign up with their addresses: %s", s.Count,
				s.Some)})
		}
	}
	return err
}

// gone refuses an install if users whom the takeover copied were deleted from the former service's tables since then.
func (r *run) gone(ctx context.Context) error {
	list, err := r.lines(ctx, fmt.Sprintf(`
select u.id::text from %s u where u.created_at < $1 and not exists (select from %s o where o.id = u.id) order by 1`,
		r.ours("users"), r.theirs("users")), r.move.StartedAt)
	if err == nil && len(list) > 0 {
		r.refuse("%d users were deleted there since the takeover was closed: delete from %s where id in ('%s');", len(list),
			r.ours("users"), strings.Join(list, "', '"))
	}
	return err
}

package mirror_test

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// role makes a role of this test, since roles are the cluster's, and drops it at the end.
func (m *moved) role(t testing.TB, what, options string) string {
	t.Helper()
	name := what + "_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	m.exec(t, "create role "+name+" login "+options)
	t.Cleanup(func() { formertest.Exec(t, m.admin, "drop owned by "+name+"; drop role "+name) })
	return name
}

// refused runs an install that must be refused with each text, and change nothing.
func (m *moved) refused(t testing.TB, role string, wants ...string) {
	t.Helper()
	var out bytes.Buffer
	o := m.options(&out)
	if role != "" {
		o.URL = as(t, m.admin, role, "")
	}
	err := mirror.Install(t.Context(), o)
	for _, want := range wants {
		if !errors.Is(err, mirror.ErrRefused) || !strings.Contains(out.String(), "mirror: "+want) {
			t.Errorf("%v\n%s\nwant %s", err, out.String(), want)
		}
	}
	if n := one[int](t, m, "select count(*) from pg_proc where proname like 'mirror\\_%'"); n != 0 {
		t.Errorf("%q: a refused install has left %d functions", wants, n)
	}
}

// install is refused, with the statement that helps, whatever it lacks; what it lacks is told together.
func TestInstall_refusals(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	carried := m.Users[0].ID
	stranger, poor := m.role(t, "stranger", ""), m.role(t, "poor", "in role gatehouse")
	for _, test := range []struct{ change, undo, role, want string }{
		{"update {H}moves set state = 'open', closed_at = null", "update {H}moves set state = 'closed', closed_at = now()", "",
			"no takeover of this database is closed: auth takeover comes first"},
		{"update {H}moves set source_mark = source_mark || '9'", "update {H}moves set source_mark = left(source_mark, -1)", "",
			"the takeover has read the tables of " + one[string](t, m, "select source from {H}moves") +
				`, not those of schema "auth" in this database`},
		{`grant references on gatehouse.users to app_owner; grant usage on schema gatehouse to app_owner;
			create table app.moved (id uuid references gatehouse.users)`, "drop table app.moved", "",
			"moved_id_fkey of app.moved refers to gatehouse.users: alter table app.moved drop constraint moved_id_fkey, " +
				"add constraint moved_id_fkey FOREIGN KEY (id) REFERENCES \"auth\".\"users\"(id);"},
		{"create trigger moved after insert on gatehouse.users for each row execute function app.handle_new_user()",
			"drop trigger moved on gatehouse.users", "", "trigger moved of gatehouse.users runs the application's function " +
				"app.handle_new_user(): drop trigger moved on gatehouse.users; CREATE TRIGGER moved AFTER INSERT ON \"auth\".\"users\""},
		{"create trigger moved after insert on gatehouse.identities for each row execute function app.handle_gone()",
			"drop trigger moved on gatehouse.identities", "", "trigger moved of gatehouse.identities runs the application's function " +
				"app.handle_gone(): drop trigger moved on gatehouse.identities; CREATE TRIGGER moved AFTER INSERT ON \"auth\".\"identities\""},
		{"create trigger moved after insert on gatehouse.factors for each row execute function app.handle_gone()",
			"drop trigger moved on gatehouse.factors", "", "trigger moved of gatehouse.factors runs the application's function " +
				"app.handle_gone(): drop trigger moved on gatehouse.factors; CREATE TRIGGER moved AFTER INSERT ON \"auth\".\"mfa_factors\""},
		{"alter table auth.users add must text default 'x' not null; alter table auth.users alter must drop default",
			"alter table auth.users drop must", "", "column must of auth.users takes no null"},
		{"alter table auth.users force row level security", "alter table auth.users no force row level security", "",
			"row-level security is forced on auth.users: alter table auth.users no force row level security;"},
		{"alter type auth.factor_type rename value 'phone' to 'telex'", "alter type auth.factor_type rename value 'telex' to 'phone'",
			"", "type auth.factor_type lacks phone: alter type auth.factor_type add value 'phone';"},
		{"insert into auth.users (id, email) select gen_random_uuid(), upper(email) from gatehouse.users where email <> '' limit 1",
			"delete from auth.users where email ~ '^[A-Z0-9@.-]+$'", "", "1 users there, who are not here, have the address of a user here"},
		{"", "", stranger, "role " + stranger + " is no member of role gatehouse: grant \"gatehouse\" to \"" + stranger + "\";"},
		{"", "", poor, "role " + poor + " lacks USAGE on schema auth: grant usage on schema auth to " + poor + ";"},
		{"", "", poor, "role " + poor + " lacks TRIGGER on auth.identities: grant trigger on auth.identities to " + poor + ";"},
		{"", "", poor, "row-level security hides rows of auth.users from role " + poor + ": alter role " + poor + " bypassrls;"},
	} {
		if test.change != "" {
			m.exec(t, test.change)
		}
		m.refused(t, test.role, test.want)
		if test.undo != "" {
			m.exec(t, test.undo)
		}
	}
	must.Succeed(t, pgx.BeginFunc(t.Context(), m.conn, func(pgx.Tx) error {
		m.exec(t, "delete from auth.users where id = $1", carried)
		return nil
	}))
	m.refused(t, "", "1 users were deleted there since the takeover was closed: delete from \"gatehouse\".\"users\" where id in ('"+
		carried.String()+"');")
	m.exec(t, "alter table auth.users force row level security; alter table auth.identities force row level security")
	m.refused(t, "", "row-level security is forced on auth.users", "row-level security is forced on auth.identities")
	m.exec(t, "alter table auth.users no force row level security; alter table auth.identities no force row level security")
	m.exec(t, "delete from {H}users where id = $1", carried)
	m.exec(t, "create table app.session (id uuid references gatehouse.sessions)") // which are not mirrored
	m.install(t)
	if n := one[int](t, m, "select count(*) from auth.users where id = $1", carried); n != 0 {
		t.Error("a user who was deleted there is made again")
	}
}

// advice is what auth takeover -suggest has of the application, by the role that owns the tables there.
func (m *moved) advice(t testing.TB) former.Advice {
	t.Helper()
	source, err := former.OpenSource(t.Context(), as(t, m.admin, "supabase_auth_admin", ""), "auth")
	must.Succeed(t, err)
	defer source.Close()
	must.Succeed(t, source.Inspect(t.Context()))
	a, err := source.Advise(t.Context(), former.Target{Schema: "gatehouse", Namespace: m.namespace, Role: "gatehouse", Same: true})
	must.Succeed(t, err)
	return a
}

// What -sql prints makes the same functions, triggers and rights as the command, and drop's takes them away.
func TestInstall_sql(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "gh_")
	before := m.dump(t, "auth", "gatehouse")
	printed := func(f func(context.Context, mirror.Options) error) string {
		const functions = "select count(*) from pg_proc where proname like '%mirror\\_%'"
		n := one[int](t, m, functions)
		var out bytes.Buffer
		o := m.options(&out)
		o.SQL = true
		if err := f(t.Context(), o); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		if after := one[int](t, m, functions); after != n {
			t.Errorf("-sql makes %d functions of %d", after, n)
		}
		return out.String()
	}
	install := printed(mirror.Install)
	advice := m.advice(t)
	m.install(t)
	if after := m.advice(t); !reflect.DeepEqual(after, advice) {
		t.Errorf("with a mirror the application is told\n%v\nwithout\n%v", after, advice)
	}
	made := m.dump(t, "auth", "gatehouse")
	drop := printed(mirror.Drop)
	first, locks, _ := strings.Cut(drop, "\n")
	if !strings.HasPrefix(first, "-- psql -v ON_ERROR_STOP=1 -f FILE; ") || !strings.HasPrefix(locks, `begin;
set local lock_timeout = '3s';
lock table "gatehouse"."gh_users", `) {
		t.Errorf("drop -sql locks other tables first:\n%s", drop)
	}
	m.exec(t, drop)
	usage := "revoke usage on schema gatehouse from supabase_auth_admin" // harmless: R still grants no table
	m.exec(t, usage)
	if after := m.dump(t, "auth", "gatehouse"); after != before {
		t.Errorf("drop -sql leaves\n%s", diff(before, after))
	}
	if m.installed(t) {
		t.Error("after drop -sql a mirror is still recorded as installed")
	}
	var out bytes.Buffer
	if err := mirror.Check(t.Context(), m.options(&out), false, false); !errors.Is(err, mirror.ErrRefused) ||
		out.String() != "mirror: no mirror is installed\n" {
		t.Errorf("check after drop -sql: %v\n%s", err, out.String())
	}
	// What is left for drop, the way back, needs no rights on our tables.
	out.Reset()
	stranger := m.options(&out)
	stranger.URL = as(t, m.admin, m.role(t, "stranger", ""), "")
	if err := mirror.Drop(t.Context(), stranger); err != nil || !strings.Contains(out.String(), "-- way back") {
		t.Errorf("drop after drop -sql: %v\n%s", err, out.String())
	}
	if again := printed(mirror.Drop); again != "-- the mirror is dropped; without -sql, auth mirror drop prints the way back\n" {
		t.Errorf("drop -sql after drop -sql:\n%s", again)
	}
	m.exec(t, install)
	m.exec(t, printed(mirror.Install)) // replaces what is there
	if after := m.dump(t, "auth", "gatehouse"); after != made {
		t.Errorf("install -sql makes something else:\n%s", diff(made, after))
	}
	m.install(t)
	m.check(t, false)
	if err := mirror.Drop(t.Context(), m.options(&out)); err != nil {
		t.Error(err)
	}
	m.exec(t, usage)
	if after := m.dump(t, "auth", "gatehouse"); after != before {
		t.Errorf("drop leaves\n%s", diff(before, after))
	}
	// Nothing records that an operator has run what install -sql prints.
	m.exec(t, "delete from {H}moves where kind = 'mirror'")
	m.exec(t, install)
	if drop := printed(mirror.Drop); !strings.Contains(drop, " in access exclusive mode;") {
		t.Errorf("drop -sql after install -sql locks too little for the triggers:\n%s", drop)
	}
	if err := mirror.Drop(t.Context(), m.options(&out)); err != nil {
		t.Error(err)
	}
	m.exec(t, usage)
	if after := m.dump(t, "auth", "gatehouse"); after != before {
		t.Errorf("drop after install -sql leaves\n%s", diff(before, after))
	}
}

// The mirror may be made, compared and dropped by each kind of role, and nothing of it is left.
func TestInstall_roles(t *testing.T) {
	t.Parallel()
	m := takeOver(t, formertest.Newest, "")
	before := m.dump(t, "auth")
	member := m.role(t, "member", "in role gatehouse, supabase_auth_admin")
	hosted := m.role(t, "hosted", "bypassrls in role gatehouse")
	m.exec(t, "grant usage on schema auth to "+hosted)
	m.refused(t, hosted, "role "+hosted+" lacks DELETE on auth.mfa_factors: grant delete on auth.mfa_factors to "+hosted+";")
	m.exec(t, "grant select, insert, update, delete, trigger on auth.users, auth.identities, auth.mfa_factors to "+hosted)
	for _, role := range []string{"", member, hosted} {
		with := func(o *mirror.Options) {
			if role != "" {
				o.URL = as(t, m.admin, role, "")
			}
		}
		out := m.install(t, with)
		if role != "" && !strings.Contains(out, `revoke "gatehouse" from "`+role+`"`) {
			t.Errorf("%s: no revoke in\n%s", role, out)
		}
		m.check(t, true, with)
		if role != "" {
			m.exec(t, "revoke gatehouse from "+role)
			m.check(t, false, with) // for which rights on the tables there are enough
		}
		u := m.add(t, "mia@staff.example")
		if got := one[bool](t, m, "select (app_metadata ->> 'staff')::boolean from {H}users where id = $1", u.ID); !got {
			t.Errorf("%s: the application's claim is not here", role)
		}
		m.exec(t, "update {H}users set email = 'mia@example.org' where id = $1", u.ID)
		m.exec(t, "update auth.users set banned_until = 'infinity' where id = $1", u.ID)
		m.check(t, true)
		if err := m.send(t, func(b *store.Batch) { b.DeleteUser(u.ID) }); err != nil {
			t.Error(err)
		}
		if n := one[int](t, m, "select count(*) from app.gone where id = $1", u.ID); n != 1 {
			t.Errorf("%s: %d rows of the deletion", role, n)
		}
		if role != "" {
			m.exec(t, "grant gatehouse to "+role)
		}
		var text bytes.Buffer
		o := m.options(&text)
		with(&o)
		if err := mirror.Drop(t.Context(), o); err != nil || !strings.Contains(text.String(), "way back") {
			t.Errorf("%s: %v\n%s", role, err, text.String())
		}
	}
	m.exec(t, "revoke all on auth.users, auth.identities, auth.mfa_factors from "+hosted+"; revoke all on schema auth from "+hosted)
	if after := m.dump(t, "auth"); before != after {
		t.Errorf("schema auth has changed:\n%s", diff(before, after))
	}
	m.install(t)
	m.exec(t, "drop schema gatehouse cascade")
	if after := m.dump(t, "auth"); before != after {
		t.Errorf("drop schema leaves:\n%s", diff(before, after))
	}
}

// pgDump is what pg_dump writes, which has to be of the server's version or a newer one.
func (m *moved) pgDump(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command(testdb.Program(t, "pg_dump"), append(args, m.admin)...).CombinedOutput()
	if err != nil {
		t.Fatalf("pg_dump: %v\n%s", err, out)
	}
	return string(out)
}

// dump are the schemas as pg_dump writes them, but for the rows.
func (m *moved) dump(t testing.TB, schemas ...string) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(m.pgDump(t, "-s", "-n", strings.Join(schemas, "|"))) {
		if !strings.Contains(line, "restrict ") { // a random word of newer releases
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// diff are the lines that only one of two texts has.
func diff(a, b string) string {
	var out strings.Builder
	for _, pair := range [][3]string{{a, b, "-"}, {b, a, "+"}} {
		for line := range strings.Lines(pair[0]) {
			if !strings.Contains(pair[1], line) {
				out.WriteString(pair[2] + line)
			}
		}
	}
	return out.String()
}

package test

import (
	"strings"
	"testing"

	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// auth check -hooks calls each hook in PostgreSQL and leaves nothing of it. A missing right is an error with its GRANT,
// any other refusal a warning.
func TestCheck_callsHooks(t *testing.T) {
	t.Parallel()
	owner := testdb.PrivatePostgres(t, localserver.PostgresOptions{}).PostgresURL("postgres")
	execSQL(t, owner, "create role rows login; create schema gatehouse authorization rows; create schema closed",
		"create table public.user_roles (user_id uuid, role text); create table public.calls (what text)",
		"create role rights; create table closed.plans (id int); grant usage on schema closed to rights",
		"grant insert on public.calls to rows",
		// Each point of the seven has a function that asserts the shape of its sample.
		`create function claims(event jsonb) returns jsonb language plpgsql as $$ begin
			insert into calls select event ->> 'user_id' from user_roles; return event; end $$`,
		"create table public.locked (id int)",
		`create function password(event jsonb) returns jsonb language plpgsql security definer as $$ begin
			insert into public.calls values ('password'); assert (event ->> 'valid')::boolean; return '{"decision": "continue"}'; end $$`,
		`create function factor(event jsonb) returns jsonb language sql as $$ select jsonb_build_object('plan', max(id)) from closed.plans $$`,
		`create function email(event jsonb) returns void language plpgsql security definer as $$ begin perform from closed.plans;
			end $$; alter function email(jsonb) owner to rights`,
		`create function sms(event jsonb) returns void language plpgsql as $$ begin
			assert event -> 'sms' ->> 'phone' <> '' and event -> 'user' ->> 'id' <> ''; insert into calls values ('sms');
			delete from only public.locked; end $$`,
		`create function before(event jsonb) returns jsonb language sql as $$
			select jsonb_build_object('error', jsonb_build_object('http_code', 403, 'message', 'no ' || (event -> 'user' ->> 'email'))) $$`,
		`create function after(event jsonb) returns void language sql as $$ select from pg_sleep(60) $$`)
	var env []string
	for name, f := range map[string]string{"CUSTOM_ACCESS_TOKEN": "claims", "PASSWORD_VERIFICATION_ATTEMPT": "password",
		"MFA_VERIFICATION_ATTEMPT": "factor", "SEND_EMAIL": "email", "SEND_SMS": "sms", "BEFORE_USER_CREATED": "before",
		"AFTER_USER_CREATED": "after"} {
		env = append(env, "AUTH_HOOK_"+name+"_ENABLED=true", "AUTH_HOOK_"+name+"_URI=pg-functions://postgres/public/"+f)
	}
	env = append(environment(strings.Replace(owner, "postgres@", "rows@", 1)+"&search_path=gatehouse,public", "GOTRUE_JWT_EXP=60"), env...)
	status, stdout, stderr := command(t, env, "", "check")
	if status != 0 || strings.Contains(stdout, "refuses a sample") ||
		!strings.Contains(stdout, "\nAUTH_MAILER_SHOW=both\n") { // the lines for .env come before the tables
		t.Errorf("without -hooks: status %d\n%s\n%s", status, stdout, stderr)
	}
	status, stdout, stderr = command(t, env, "", "check", "-hooks")
	for _, want := range []string{
		"FAIL  hook customize-access-token: function public.claims: the function lacks a right: " +
			"may not read public.user_roles: grant select on public.user_roles to rows\n",
		"FAIL  hook mfa-verification: function public.factor: the function lacks a right: " +
			"may not use schema closed: grant usage on schema closed to rows\n",
		"FAIL  hook send-email: function public.email: the function lacks a right: " +
			"may not read closed.plans: grant select on closed.plans to rights\n",
		"ok    hook password-verification: function public.password\n",
		"FAIL  hook send-sms: function public.sms: the function lacks a right: " +
			"may not write public.locked: grant delete on public.locked to rows\n",
		"warn  hook before-user-created: function public.before refuses a sample for an unknown user: " +
			"hook_refused: no unknown@example.invalid\n",
		"warn  hook after-user-created: function public.after refuses a sample for an unknown user: " +
			"it takes longer than 2s\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s", want, stdout)
		}
	}
	if status != 1 {
		t.Errorf("status %d\n%s\n%s", status, stdout, stderr)
	}
	// What is meant, what is uncertain, and what says nothing about the function.
	execSQL(t, owner, `create role keeper; create schema "Closed"; create table public.plans (id int);
		create table public.tenants (id int); alter table tenants enable row level security; grant insert on tenants to rows`,
		"create view public.seen as select id from plans; alter view seen owner to keeper; grant select on seen to rows",
		"create table hidden (id int); create view public.unseen as select id from hidden; alter view unseen owner to keeper; "+
			"grant select on unseen, hidden to rows",
		`create or replace function claims(event jsonb) returns jsonb language plpgsql as $$ begin
			insert into tenants values (1); return event; end $$`,
		`create or replace function before(event jsonb) returns jsonb language plpgsql as $$ begin
			raise exception 'unknown user' using errcode = '42501'; end $$`,
		`create or replace function factor(event jsonb) returns jsonb language sql as
			$$ select jsonb_build_object('plan', max(id)) from seen $$`,
		`create or replace function sms(event jsonb) returns void language plpgsql as $$ begin perform from unseen; end $$`,
		`create or replace function after(event jsonb) returns void language plpgsql as
			$$ begin perform pg_terminate_backend(pg_backend_pid()); end $$`,
		// Two of the name, of which the call takes the one with a single parameter.
		`create function password(event jsonb, more int) returns jsonb language sql security definer as $$ select event $$;
			alter function password(jsonb, int) owner to keeper`,
		`create or replace function password(event jsonb) returns jsonb language plpgsql as $$ begin perform from public.plans;
			return event; end $$; alter function password(jsonb) security invoker`,
		`create or replace function email(event jsonb) returns void language plpgsql as $$ begin perform from "Closed".a; end $$`)
	_, stdout, stderr = command(t, env, "", "check", "-hooks")
	const between = ", or to the owner of the view or function that the statement goes through\n"
	for _, want := range []string{
		"FAIL  hook customize-access-token: function public.claims: the function lacks a right: " +
			"new row violates row-level security policy for table \"tenants\"\n",
		"warn  hook before-user-created: function public.before refuses a sample for an unknown user: ",
		"may not read public.plans: grant select on public.plans to rows" + between,
		"permission denied for table hidden: grant select on it to the owner of the view or function",
		"FAIL  hook after-user-created: function public.after: ",
		"FAIL  hook password-verification: function public.password: the function lacks a right: " +
			"may not read public.plans: grant select on public.plans to rows",
		"may not use schema Closed: grant usage on schema \"Closed\" to rows\n",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in\n%s\n%s", want, stdout, stderr)
		}
	}
	if n := testdb.One[int](t, owner, "select count(*) from public.calls"); n != 0 {
		t.Errorf("%d rows of the hooks are left", n)
	}
}

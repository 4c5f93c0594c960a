package test

import (
	"strings"
	"testing"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/shared/testdb"
)

// No command begins in a schema that belongs to another program, or whose tables others would read; nothing is created.
func TestStart_foreignSchema(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	formertest.CreateSchema(t, url, "auth", formertest.Newest)
	formertest.Exec(t, url, `create schema rails; create table rails.schema_migrations (version text);
		create schema shown; create schema armed; create schema gatehouse`)
	role := "reader_" + strings.ReplaceAll(t.Name(), "/", "_")
	formertest.Exec(t, url, `drop role if exists `+role+`; create role `+role+`;
		alter default privileges in schema shown grant select on tables to `+role+`;
		alter default privileges in schema armed grant insert, trigger on tables to `+role)
	t.Cleanup(func() {
		formertest.Exec(t, url, `alter default privileges in schema shown revoke select on tables from `+role+`;
			alter default privileges in schema armed revoke insert, trigger on tables from `+role+`;
			drop owned by `+role+`; drop role `+role)
	})
	in := func(schema string) []string {
		sep := "?"
		if strings.Contains(url, "?") {
			sep = "&"
		}
		return environment(url + sep + "search_path=" + schema)
	}
	granted := func(schema string) string {
		return `new tables in schema "` + schema + `" would be readable or writable by ` + strings.ToLower(role) +
			` (default privileges of role postgres),` +
			` password hashes too: give this program a schema of its own (create schema gatehouse authorization postgres;` +
			` search_path=gatehouse in DATABASE_URL)`
	}
	for schema, want := range map[string]string{
		"auth": `schema "auth" holds the tables of the service that this one replaces; they are neither read nor changed.` +
			` Give this program a schema of its own (create schema gatehouse authorization postgres;` +
			` search_path=gatehouse in DATABASE_URL) and carry the users over: auth takeover -from auth`,
		"rails": `table "rails.schema_migrations" belongs to another program: give this one a schema of its own` +
			` (search_path in DATABASE_URL) or AUTH_DB_NAMESPACE`,
		"shown": granted("shown"), "armed": granted("armed"),
	} {
		for _, args := range [][]string{{"serve"}, {"migrate"}, {"admin", "get", "mia@example.org"}, {"check"}} {
			status, stdout, stderr := command(t, in(schema), "", args...)
			text := want
			if args[0] == "check" {
				text, stderr = "FAIL  database schema: "+want, stdout
			}
			if status != 1 || !strings.Contains(stderr, text) {
				t.Errorf("%v in %s: got status %d and\n%s\nwant 1 and\n%s", args, schema, status, stderr, text)
			}
		}
	}
	if status, stdout, stderr := command(t, in("gatehouse"), "", "migrate"); status != 0 {
		t.Fatalf("migrate: %d\n%s%s", status, stdout, stderr)
	}
	formertest.Exec(t, url, `grant usage on schema gatehouse to `+role+
		`; grant select, update on gatehouse.users to `+role+`; grant trigger on gatehouse.audit to `+role)
	want := "warn  role " + strings.ToLower(role) + " may read or write table gatehouse.users:" +
		" revoke all on gatehouse.users, gatehouse.audit from " + strings.ToLower(role) + "\n"
	if _, stdout, _ := command(t, in("gatehouse"), "", "check"); !strings.Contains(stdout, want) {
		t.Errorf("check: got\n%s\nwant\n%s", stdout, want)
	}
}

package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/store"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// A function of the operator takes json or jsonb, gives either or void, and has its time.
func TestCallFunction(t *testing.T) {
	ctx, url := context.Background(), testdb.Postgres(t)
	for _, sql := range []string{
		`create schema hooks`,
		`create function hooks."Echo"(event jsonb) returns jsonb language sql as $$ select event || '{"seen": true}' $$`,
		`create function hooks.old(event json) returns json language sql as $$ select event $$`,
		`create function hooks.nothing(event jsonb) returns void language sql as $$ select $$`,
		`create function hooks.none(event jsonb) returns jsonb language sql as $$ select null::jsonb $$`,
		`create function hooks.slow(event jsonb) returns jsonb language sql as $$ select event from pg_sleep(60) $$`,
		`create function hooks.angry(event jsonb) returns jsonb language plpgsql as $$ begin raise exception 'no'; end $$`,
	} {
		testdb.Exec(t, url, sql)
	}
	db, err := store.Open(ctx, store.Options{URL: url})
	must.Succeed(t, err)
	defer db.Close()
	call := func(f string, limit time.Duration) (string, error) {
		out, err := db.CallFunction(ctx, "hooks", f, []byte(`{"a":1}`), limit)
		return string(out), err
	}
	for f, want := range map[string]string{"Echo": `{"a": 1, "seen": true}`, "old": `{"a":1}`, "nothing": "",
		"none": ""} {
		if got, err := call(f, time.Minute); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", f, got, err, want)
		}
	}
	if _, err := call("slow", 50*time.Millisecond); !errors.Is(err, store.ErrFunctionTime) {
		t.Errorf("slow: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := db.CallFunction(short, "hooks", "slow", []byte(`{}`),
		time.Minute); errors.Is(err, store.ErrFunctionTime) || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a caller whose own time was up: %v", err)
	}
	for _, f := range []string{"angry", "missing"} {
		if _, err := call(f, time.Minute); err == nil || errors.Is(err, store.ErrFunctionTime) ||
			errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", f, err)
		}
	}
	// The limit was the call's alone.
	if got, err := call("Echo", time.Minute); err != nil || got == "" {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

// What a function sets for its session is gone when the connection goes to the next caller, and what it writes is
// kept.
func TestCallFunction_leavesNothing(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), testdb.Postgres(t)
	conn := testdb.Connect(t, url)
	for _, sql := range []string{
		`create schema hooks`, `create table hooks.calls (n int)`, `create role hook_nobody`,
		`create function hooks.lost(event jsonb) returns jsonb language plpgsql as $$ begin
			insert into hooks.calls values (1);
			perform set_config('search_path', 'nowhere', false), set_config('statement_timeout', '1', false), set_config('application_name', 'x', false);
			set role hook_nobody;
			return event; end $$`,
		`create function hooks.state(event jsonb) returns jsonb language sql as $$ select to_jsonb(array[current_setting('search_path'),
			current_setting('application_name'), current_user::text, session_user::text, (select count(*) from hooks.calls)::text]) $$`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	db, err := store.Open(ctx, store.Options{URL: url, Settings: store.Settings{MaxConns: 1}})
	must.Succeed(t, err)
	defer db.Close()
	state := func() string {
		t.Helper()
		out, err := db.CallFunction(ctx, "hooks", "state", []byte(`{}`), time.Minute)
		must.Succeed(t, err)
		return string(out)
	}
	want := strings.Replace(state(), `"0"]`, `"1"]`, 1)
	must.Succeed(t, must.ErrOf(db.CallFunction(ctx, "hooks", "lost", []byte(`{}`), time.Minute)))
	if got := state(); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A function's faults are reported without calling it.
func TestCheckFunction(t *testing.T) {
	t.Parallel()
	ctx, url := t.Context(), testdb.Postgres(t)
	conn := testdb.Connect(t, url)
	for _, sql := range []string{
		`create role hook_guest`,
		`create schema hooks`, `create schema private`, `grant usage on schema hooks to hook_guest`,
		`create function hooks.good(event jsonb) returns jsonb language sql as $$ select event from pg_sleep(3600) $$`,
		`create function hooks.older(event json, more text default '') returns void language sql as $$ select $$`,
		`create function hooks.two(event jsonb) returns jsonb language sql as $$ select event $$`,
		`create function hooks.two(event json) returns json language sql as $$ select event $$`,
		`create function hooks.pair(a jsonb, b jsonb) returns jsonb language sql as $$ select a $$`,
		`create function hooks.number(a int) returns jsonb language sql as $$ select '{}'::jsonb $$`,
		`create function hooks.verdict(event jsonb) returns boolean language sql as $$ select true $$`,
		`create function hooks.rows(event jsonb) returns setof jsonb language sql as $$ select event $$`,
		`create function hooks.closed(event jsonb) returns jsonb language sql as $$ select event $$`,
		`revoke execute on function hooks.closed from public`,
		`create function private.good(event jsonb) returns jsonb language sql as $$ select event $$`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	db, err := store.Open(ctx, store.Options{URL: url + separator + "options=-c%20role%3Dhook_guest"})
	must.Succeed(t, err)
	defer db.Close()
	for name, want := range map[string]string{
		"hooks.good": "", "hooks.older": "",
		"hooks.missing": "there is no function hooks.missing",
		"nowhere.good":  "there is no function nowhere.good",
		"hooks.two":     "there are several functions hooks.two of one parameter: the hook's must be the only one",
		"hooks.pair":    "hooks.pair(jsonb,jsonb) takes no single json or jsonb",
		"hooks.number":  "hooks.number(integer) takes no single json or jsonb",
		"hooks.verdict": "hooks.verdict(jsonb) returns boolean, not json or jsonb",
		"hooks.rows":    "hooks.rows(jsonb) returns several rows, not one json or jsonb",
		"hooks.closed":  "the database user lacks EXECUTE on function hooks.closed(jsonb)",
		"private.good":  "the database user lacks USAGE on schema private",
	} {
		schema, function, _ := strings.Cut(name, ".")
		err := db.CheckFunction(ctx, schema, function)
		if got := fmt.Sprint(err); err == nil && want != "" || err != nil && got != want {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/store"
	"gatehouse/shared/testdb"
)

// A function of the operator takes json or jsonb, gives either or void, and has its time.
func TestCallFunction(t *testing.T) {
	ctx, url := context.Background(), testdb.Postgres(t)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	for _, sql := range []string{
		`create schema hooks`,
		`create function hooks."Echo"(event jsonb) returns jsonb language sql as $$ select event || '{"seen": true}' $$`,
		`create function hooks.old(event json) returns json language sql as $$ select event $$`,
		`create function hooks.nothing(event jsonb) returns void language sql as $$ select $$`,
		`create function hooks.none(event jsonb) returns jsonb language sql as $$ select null::jsonb $$`,
		`create function hooks.slow(event jsonb) returns jsonb language sql as $$ select event from pg_sleep(60) $$`,
		`create function hooks.angry(event jsonb) returns jsonb language plpgsql as $$ begin raise exception 'no'; end $$`,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	db, err := store.Open(ctx, store.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	call := func(f string, limit time.Duration) (string, error) {
		out, err := db.CallFunction(ctx, "hooks", f, []byte(`{"a":1}`), limit)
		return string(out), err
	}
	for f, want := range map[string]string{"Echo": `{"a": 1, "seen": true}`, "old": `{"a":1}`, "nothing": "", "none": ""} {
		if got, err := call(f, time.Minute); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", f, got, err, want)
		}
	}
	if _, err := call("slow", 50*time.Millisecond); !errors.Is(err, store.ErrFunctionTime) {
		t.Errorf("slow: %v", err)
	}
	for _, f := range []string{"angry", "missing"} {
		if _, err := call(f, time.Minute); err == nil || errors.Is(err, store.ErrFunctionTime) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", f, err)
		}
	}
	// The limit was the call's alone.
	if got, err := call("Echo", time.Minute); err != nil || got == "" {
		t.Errorf("afterwards: %q, %v", got, err)
	}
}

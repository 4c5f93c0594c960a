package store

import (
	"context"
	"reflect"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"gatehouse/shared/testdb"
)

// What scanRow reads is what pgx reads, in every form that PostgreSQL may send it, and so are its refusals.
func TestScanRow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, testdb.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	fresh := func() []any {
		return []any{new(nullTime), new(nullUUID), new(nullText), new(string), new(nullBytes), new(nullBytes),
			new(bool), new(nullUint), new(nullInt), new(nullBool), new(float64)}
	}
	read := func(values string, mode pgx.QueryExecMode, scan func(pgx.Rows, []any) error) ([]any, error) {
		targets := fresh()
		rows, err := conn.Query(ctx, "select "+values, mode)
		if err != nil {
			return nil, err
		}
		err = eachRow(rows, func(r pgx.Rows) error { return scan(r, targets) })
		return targets, err
	}
	f := func(values ...string) {
		t.Helper()
		list := strings.Join(values, ", ")
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
			pgx.QueryExecModeSimpleProtocol} {
			want, wantErr := read(list, mode, func(r pgx.Rows, targets []any) error { return r.Scan(targets...) })
			have, err := read(list, mode, scanRow)
			if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
				t.Errorf("%s, %v: error %v, pgx says %v", list, mode, err, wantErr)
			} else if err == nil && !reflect.DeepEqual(have, want) {
				for i := range have {
					h, w := reflect.ValueOf(have[i]).Elem(), reflect.ValueOf(want[i]).Elem()
					if !reflect.DeepEqual(have[i], want[i]) {
						t.Errorf("%s, %v: %T is %v, pgx says %v", values[i], mode, have[i], h, w)
					}
				}
			}
		}
	}
	const idText = "'d673abe5-64a7-4b5b-9344-6d91bb04ef60'::uuid"
	f("'2026-11-21 16:18:39.527070+00'::timestamptz", idText, "'häst'::text", "'x'::varchar",
		`'{"a": [1, null]}'::jsonb`,
		`'\x00ff'::bytea`, "true", "9000000000::bigint", "2::smallint", "true", "1.5::float8")
	f("'1969-12-31 23:59:59.999999+00'::timestamptz", idText, "''::text", "''::text", "'{}'::json", "''::bytea",
		"false", "-1::bigint", "-1::smallint", "null::bool", "0::float8")
	f("null::timestamptz", "null::uuid", "null::text", "'x'::name", "null::jsonb", "null::bytea", "true",
		"null::bigint", "null::smallint", "false", "0::float8")
	f("'0001-01-01 00:00:00+00'::timestamptz", idText, "'x'::char(3)", "'x'::text", "'null'::jsonb", "null::bytea",
		"true", "7::integer", "7::integer", "false", "0::float8")
	f("'infinity'::timestamptz", idText, "null::varchar", "'x'::text", "'1'::jsonb", "'a'::bytea", "true", "7::numeric",
		"7::bigint", "false", "0::float8")
	f("'-infinity'::timestamptz", idText, "'x'", "'x'", "'1'::jsonb", "'a'::bytea", "true", "7", "7", "false",
		"0::float8")
	// refused
	f("now()::timestamptz(0)", idText, "'x'", "null::text", "'1'::jsonb", "'a'::bytea", "true", "7", "7", "false",
		"0::float8")
	f("'x'::text", idText, "'x'", "'x'", "'1'::jsonb", "'a'::bytea", "true", "7", "7", "false", "0::float8")
	f("null::timestamptz", "'x'::text", "'x'", "'x'", "'1'::jsonb", "'a'::bytea", "true", "7", "7", "false",
		"0::float8")
	f("null::timestamptz", idText, "'x'", "'x'", "'1'::jsonb", "'a'::bytea", "null::bool", "7", "7", "false",
		"0::float8")
	f("null::timestamptz", idText)
}

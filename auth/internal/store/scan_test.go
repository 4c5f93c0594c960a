package store

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"gatehouse/shared/testdb"
)

// What scanRow reads is what pgx reads, in every form that PostgreSQL may send it, and so are its refusals; null is zero.
func TestScanRow(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, testdb.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	read := func(values string, mode pgx.QueryExecMode, scan func(pgx.Rows) error) error {
		rows, err := conn.Query(ctx, "select "+values, mode)
		if err != nil {
			return err
		}
		return eachRow(rows, scan)
	}
	f := func(values ...string) {
		t.Helper()
		list := strings.Join(values, ", ")
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe,
			pgx.QueryExecModeSimpleProtocol} {
			have := []any{new(time.Time), new(uuid.UUID), new(string), new(string), new(json.RawMessage), new([]byte),
				new(bool), new(uint64), new(int), new(bool), new(float64)}
			var at pgtype.Timestamptz
			want := []any{&at}
			for _, target := range have[1:] { // pgx reads null into a pointer alone
				want = append(want, reflect.New(reflect.TypeOf(target)).Interface())
			}
			wantErr := read(list, mode, func(r pgx.Rows) error { return r.Scan(want...) })
			err := read(list, mode, func(r pgx.Rows) error {
				for range 2 { // what stands in a target is replaced
					if err := scanRow(r, have); err != nil {
						return err
					}
				}
				return nil
			})
			if (err == nil) != (wantErr == nil) {
				t.Errorf("%s, %v: error %v, pgx says %v", list, mode, err, wantErr)
			}
			for i := 0; err == nil && i < len(have); i++ {
				h, w := reflect.ValueOf(have[i]).Elem().Interface(), any(at.Time.UTC()) // the zero time for infinity
				if i > 0 {
					w = reflect.Zero(reflect.TypeOf(h)).Interface()
					if p := reflect.ValueOf(want[i]).Elem(); !p.IsNil() {
						w = p.Elem().Interface()
					}
				}
				if !reflect.DeepEqual(h, w) && !(reflect.ValueOf(h).Kind() == reflect.Slice && fmt.Sprint(h) == fmt.Sprint(w)) {
					t.Errorf("%s, %v: %T is %v, pgx says %v", values[i], mode, h, h, w)
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
	f("'0001-01-01 00:00:00+00'::timestamptz", idText, "'x'::char(3)", "'x'::text", "'[null]'::jsonb", "null::bytea",
		"true", "7::integer", "7::integer", "false", "0::float8")
	f("'infinity'::timestamptz", idText, "null::varchar", "'x'::text", "'1'::jsonb", "'a'::bytea", "true", "7::numeric",
		"7::bigint", "false", "0::float8")
	f("'-infinity'::timestamptz", idText, "'x'", "'x'", "'1'::jsonb", "'a'::bytea", "true", "7", "7", "false",
		"0::float8")
	f("null::timestamptz", idText, "'x'", "null::text", "'1'::jsonb", "'a'::bytea", "null::bool", "null", "7", "false",
		"null::float8")
	// refused
	f("'x'::text", idText, "'x'", "'x'", "'1'::jsonb", "'a'::bytea", "true", "7", "7", "false", "0::float8")
	f("null::timestamptz", "'x'::text", "'x'", "'x'", "'1'::jsonb", "'a'::bytea", "true", "7", "7", "false",
		"0::float8")
	f("null::timestamptz", idText)
}

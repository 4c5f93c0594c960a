package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrFunctionTime: a function of the operator took longer than it may.
var ErrFunctionTime = errors.New("the function took too long")

// CallFunction calls a function of the operator with one JSON parameter, in a transaction of its own with
// a time limit for its statement. It returns the result as text: nil for null and void.
func (db *DB) CallFunction(ctx context.Context, schema, function string, input []byte, limit time.Duration) (out []byte, err error) {
	call := fmt.Sprintf("select (%s($1))::text", pgx.Identifier{schema, function}.Sanitize())
	err = db.on(ctx, "function", func(c *pgx.Conn) error {
		return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, fmt.Sprintf("set local statement_timeout = %d", limit.Milliseconds())); err != nil {
				return err
			}
			// Described anew each time: the operator may replace the function while we run.
			return tx.QueryRow(ctx, call, pgx.QueryExecModeDescribeExec, string(input)).Scan(&out)
		})
	})
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "57014" { // query_canceled
		return nil, fmt.Errorf("%w: %w", ErrFunctionTime, err)
	}
	return out, err
}

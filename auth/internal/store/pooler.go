package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPooler: a pooler between this program and PostgreSQL sends each transaction to another server connection, so that
// prepared statements get lost.
var ErrPooler = errors.New("prepared statements get lost between this program and PostgreSQL; " +
	"behind PgBouncer in transaction mode add the parameter default_query_exec_mode=cache_describe")

// poolerConns is how many connections are tried at once: a pooler with only one free server connection fails on the
// second.
const poolerConns = 3

// CheckPooler tests whether prepared statements survive: over several connections at once, each prepares two statements
// under the same names and runs them. It returns ErrPooler when one is lost or exists already, and nil otherwise, also
// if the connections cannot be opened: other checks report that. It does nothing when DATABASE_URL selects a mode
// without named statements.
func (db *DB) CheckPooler(ctx context.Context) error {
	config := db.pool.Config().ConnConfig
	if config.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		return nil
	}
	conns := make([]*pgconn.PgConn, poolerConns)
	var lost atomic.Bool
	each := func(f func(i int) error) {
		var wg sync.WaitGroup
		for i := range conns {
			wg.Go(func() {
				if isLostStatement(f(i)) {
					lost.Store(true)
				}
			})
		}
		wg.Wait()
	}
	each(func(i int) (err error) {
		conns[i], err = pgconn.ConnectConfig(ctx, &config.Config)
		return err
	})
	conns = slices.DeleteFunc(conns, func(c *pgconn.PgConn) bool { return c == nil })
	// The names are equal on all connections, as pgx names a statement by its text, and new in each probe, so that
	// statements left behind by an interrupted probe do not matter.
	first, second := "probe_"+uuid.NewString(), "probe_"+uuid.NewString()
	prepare := func(i int, name string) error {
		_, err := conns[i].Prepare(ctx, name, "select 1", nil)
		return err
	}
	run := func(i int, name string) error { return conns[i].ExecPrepared(ctx, name, nil, nil, nil).Read().Err }
	for _, step := range []func(i int) error{
		func(i int) error { return prepare(i, first) },
		func(i int) error { return prepare(i, second) },
		func(i int) error { return run(i, first) },
		func(i int) error { return run(i, second) },
		func(i int) error { return conns[i].Deallocate(ctx, first) }, // a pooler may keep the connection
		func(i int) error { return conns[i].Deallocate(ctx, second) },
	} {
		each(step)
	}
	each(func(i int) error { return conns[i].Close(ctx) })
	if lost.Load() {
		return ErrPooler
	}
	return nil
}

// isLostStatement: duplicate_prepared_statement or invalid_sql_statement_name.
func isLostStatement(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "42P05" || pg.Code == "26000")
}

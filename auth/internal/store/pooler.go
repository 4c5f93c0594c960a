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

// ErrPooler means that a connection pooler between this program and PostgreSQL sends each transaction to another server
// connection, so that prepared statements get lost.
var ErrPooler = errors.New("prepared statements get lost between this program and PostgreSQL; " +
	"behind PgBouncer in transaction mode add the parameter default_query_exec_mode=cache_describe")

// poolerConns is how many connections CheckPooler opens at once. It must be more than one for a pooler that has a
// single free connection to the server: such a pooler executes all statements on this connection, and fails when the
// second client connection prepares a statement under the same name.
const poolerConns = 3

// CheckPooler tests whether prepared statements are kept. Over several connections at the same time it prepares two
// statements under the same names, and executes them. It returns ErrPooler if a statement is lost or exists already. It
// returns nil otherwise, even if the connections cannot be opened, which other checks report. It does nothing if
// DATABASE_URL selects a mode without named statements.
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
	// The names are the same on all connections, since pgx derives a statement's name from its text. They are new in
	// each test, so that statements that an interrupted test has left do not matter.
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
		func(i int) error { return conns[i].Deallocate(ctx, first) }, // a pooler may keep the server's connection
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

// isLostStatement reports whether an error is duplicate_prepared_statement or invalid_sql_statement_name.
func isLostStatement(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "42P05" || pg.Code == "26000")
}

package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// noGrowth is how long the pool opens no further connection after the server has reported that it has none left.
const noGrowth = 30 * time.Second

var (
	// errServerFull is what beforeConnect returns during the time noGrowth after the server has reported that it has no
	// connection left.
	errServerFull = errors.New("the server has no connection left")
	// errNoCaller is what beforeConnect returns if no caller waits for the connection.
	errNoCaller = errors.New("no caller waits for this connection")
)

// callerKey is the key of a context value that marks a caller that waits for a connection.
type callerKey struct{}

// look opens a connection, finds out which schema contains our tables, and returns how many connections the pool may
// open. This is the parameter wanted if it is greater than 0. Otherwise it depends on how many connections the server
// has left.
func (db *DB) look(ctx context.Context, config *pgx.ConnConfig, wanted int) (most int, err error) {
	conn, err := pgconn.ConnectConfig(ctx, &config.Config) // one statement needs none of pgx's caches and types
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	// The connection that executes this query is counted among the connections in use, hence + 1. Before the first
	// migration our tables do not exist; they will be created in the first schema of the search path.
	const facts = `
select current_setting('max_connections')::int
     - current_setting('superuser_reserved_connections')::int
     - (select coalesce(sum(numbackends), 0) from pg_stat_database)::int + 1,
    coalesce((select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where c.oid = to_regclass('{users}')), current_schema())`
	answer, cancel := context.WithTimeout(ctx, config.ConnectTimeout) // a pooler may accept for a server that hangs
	defer cancel()
	result := conn.ExecParams(answer, db.fill(facts), nil, nil, nil, nil).Read()
	if result.Err != nil {
		return 0, result.Err
	}
	row := result.Rows[0]
	db.schema = string(row[1])
	if wanted > 0 {
		return wanted, nil
	}
	free, err := strconv.Atoi(string(row[0]))
	if err != nil {
		return 0, err
	}
	return max(free-5, 4), nil
}

// beforeConnect is called before each new connection. By itself the pool would open MinConns connections when it
// starts, which is 4 for each core in each replica. beforeConnect refuses these, since MinConns is set only as the
// number of idle connections that are kept.
func (db *DB) beforeConnect(ctx context.Context, _ *pgx.ConnConfig) error {
	if ctx.Value(callerKey{}) == nil {
		return errNoCaller
	}
	if db.fullUntil.Load() != nil && time.Now().Before(*db.fullUntil.Load()) &&
		db.pool.Stat().TotalConns() > db.pool.Stat().ConstructingConns() {
		return errServerFull
	}
	return nil
}

// acquire returns a connection of the pool. If the server has no connection left, the caller waits until another caller
// returns one, or until ctx ends.
func (db *DB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	waiting := context.WithValue(ctx, callerKey{}, true)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		c, err := db.pool.Acquire(waiting)
		if err == nil {
			return c, nil
		}
		// 53300 is too_many_connections. EAGAIN means that the server's queue of new connections on a Unix socket is
		// full.
		pg, refused := errors.AsType[*pgconn.PgError](err)
		if refused && pg.Code == "53300" || errors.Is(err, syscall.EAGAIN) {
			db.fullUntil.Store(new(time.Now().Add(noGrowth)))
			db.log.Warn("the database has no connection left; the pool stays as it is for a while",
				"connections", db.pool.Stat().TotalConns(), "for", noGrowth, "error", err)
		} else if refused {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		} else if !errors.Is(err, errServerFull) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, errServerFull)
		case <-time.After(pause):
		}
	}
}

// PoolStats has the number of connections in use, idle, and allowed.
type PoolStats struct {
	Used, Idle, Most int
	// Waits is how often since the start a caller has found no free connection.
	Waits int64
}

// PoolStats returns the present state of the pool.
func (db *DB) PoolStats() PoolStats {
	s := db.pool.Stat()
	return PoolStats{
		Used: int(s.AcquiredConns()), Idle: int(s.IdleConns()), Most: int(s.MaxConns()),
		Waits: s.EmptyAcquireCount(),
	}
}

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

// noGrowth is how long the pool adds no connection after the server has reported that none is left.
const noGrowth = 30 * time.Second

var (
	// errServerFull ends an attempt to connect within noGrowth.
	errServerFull = errors.New("the server has no connection left")
	// errNoCaller ends the pool's attempts to connect without a caller.
	errNoCaller = errors.New("no caller waits for this connection")
)

// callerKey marks the context of a caller that waits for a connection.
type callerKey struct{}

// look connects once, reads which schema has our tables, and returns how large the pool may grow.
func (db *DB) look(ctx context.Context, config *pgx.ConnConfig, wanted int) (most int, err error) {
	conn, err := pgconn.ConnectConfig(ctx, &config.Config) // without pgx's caches and types, for one statement
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	// The connection of this query is among the connections in use. Before the first migration there are no tables yet:
	// they will be in the first schema of the path.
	const facts = `
select current_setting('max_connections')::int
     - current_setting('superuser_reserved_connections')::int
     - (select coalesce(sum(numbackends), 0) from pg_stat_database)::int + 1,
    coalesce((select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
              where c.oid = to_regclass('{users}')), current_schema())`
	answer, cancel := context.WithTimeout(ctx, config.ConnectTimeout) // a pooler accepts for a server that hangs
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

// beforeConnect runs before each new connection. The pool would open MinConns connections by itself, which is 4 for
// each core in each replica from the start. beforeConnect refuses these connections: MinConns is only set as the number
// of idle connections that the pool keeps.
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

// acquire takes a connection. If the server has no connection left for the pool to add, the caller waits for a
// connection in use, until its context ends. A server that refuses connections, by whatever code, counts as unavailable;
// only Open takes such a refusal for an error of the settings.
func (db *DB) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	waiting := context.WithValue(ctx, callerKey{}, true)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		c, err := db.pool.Acquire(waiting)
		if err == nil {
			return c, nil
		}
		// EAGAIN: the queue of a unix socket is full.
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

// PoolStats is the present use of connections, and how often callers have waited for one since the start.
type PoolStats struct {
	Used, Idle, Most int
	// Waits is how often a caller found no free connection.
	Waits int64
}

// PoolStats returns the pool's metrics.
func (db *DB) PoolStats() PoolStats {
	s := db.pool.Stat()
	return PoolStats{
		Used: int(s.AcquiredConns()), Idle: int(s.IdleConns()), Most: int(s.MaxConns()),
		Waits: s.EmptyAcquireCount(),
	}
}

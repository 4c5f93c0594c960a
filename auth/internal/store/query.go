package store

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// query runs a statement and reads its rows with the function query. If the statement writes, call query inside again,
// and clear the destination at the beginning of each attempt.
func (db *DB) query(ctx context.Context, doing string, query func(pgx.Rows) error, s statement, args ...any) error {
	return db.withConn(ctx, doing, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, db.sql[s], encodeUUIDs(args)...)
		if err != nil {
			return err
		}
		return eachRow(rows, query)
	})
}

// queryRow runs a statement of one row and reads the row into targets. It repeats after a deadlock.
func (db *DB) queryRow(ctx context.Context, doing string, targets []any, s statement, args ...any) error {
	return again(ctx, func() error {
		return db.withConn(ctx, doing, func(c *pgx.Conn) error {
			rows, err := c.Query(ctx, db.sql[s], encodeUUIDs(args)...)
			return oneRow(rows, err, targets)
		})
	})
}

// oneRow reads the first row of a query into targets and closes the query. pgx.ErrNoRows: there is no row.
func oneRow(rows pgx.Rows, err error, targets []any) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	if rows.Next() {
		if err := scanRow(rows, targets); err != nil {
			return err
		}
		rows.Close()
		return rows.Err()
	}
	return cmp.Or(rows.Err(), pgx.ErrNoRows)
}

// exec runs a statement and returns how many rows it changed. It repeats after a deadlock.
func (db *DB) exec(ctx context.Context, doing string, s statement, args ...any) (n int64, err error) {
	err = again(ctx, func() error {
		return db.withConn(ctx, doing, func(c *pgx.Conn) error {
			tag, err := c.Exec(ctx, db.sql[s], encodeUUIDs(args)...)
			n = tag.RowsAffected()
			return err
		})
	})
	return n, err
}

// run is exec without the number of rows.
func (db *DB) run(ctx context.Context, doing string, s statement, args ...any) error {
	_, err := db.exec(ctx, doing, s, args...)
	return err
}

// deadlockTries is how often a transaction that ends in a deadlock is tried.
const deadlockTries = 3

// again runs a transaction, and repeats it after a deadlock, which undid it.
func again(ctx context.Context, transaction func() error) error {
	for try := 1; ; try++ {
		err := transaction()
		if try == deadlockTries || !IsContention(err) {
			return err
		}
		// Wait before the retry, so that the other transaction, which has to be woken first, gets the lock.
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(try) * (10*time.Millisecond + rand.N(20*time.Millisecond))):
		}
	}
}

// withConn runs f with a connection of its own and translates its error.
func (db *DB) withConn(ctx context.Context, doing string, f func(*pgx.Conn) error) error {
	c, err := db.acquire(ctx)
	if err == nil {
		err = f(c.Conn())
		c.Release()
	}
	return db.wrapError(doing, err)
}

// wrapError is names.wrapError, and logs once that a pooler loses prepared statements.
func (db *DB) wrapError(doing string, err error) error {
	if isLostStatement(err) {
		db.poolerLogged.Do(func() { db.log.Error("DATABASE_URL: "+ErrPooler.Error(), "error", err) })
	}
	return db.names.wrapError(doing, err)
}

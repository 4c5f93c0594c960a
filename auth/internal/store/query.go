package store

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
)

// query executes a statement and calls the function in the parameter query for each row. It does not repeat the
// statement after a deadlock. If the statement writes, the caller should call this method within a function that it
// passes to again, the function below that repeats a transaction. At the start of each attempt that function must clear
// the results of earlier attempts.
func (db *DB) query(ctx context.Context, doing string, query func(pgx.Rows) error, s statement, args ...any) error {
	return db.withConn(ctx, doing, func(c *pgx.Conn) error {
		rows, err := c.Query(ctx, db.sql[s], encodeUUIDs(args)...)
		if err != nil {
			return err
		}
		return eachRow(rows, query)
	})
}

// queryRow executes a statement that returns one row, and reads the row into targets. It repeats the statement after a
// deadlock. The error is ErrNotFound if there is no row.
func (db *DB) queryRow(ctx context.Context, doing string, targets []any, s statement, args ...any) error {
	return again(ctx, func() error {
		return db.withConn(ctx, doing, func(c *pgx.Conn) error {
			rows, err := c.Query(ctx, db.sql[s], encodeUUIDs(args)...)
			return oneRow(rows, err, targets)
		})
	})
}

// oneRow reads the first row into targets and closes the rows. The error is pgx.ErrNoRows if there is no row.
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

// exec executes a statement and returns how many rows it has changed. It repeats the statement after a deadlock.
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

// run executes a statement whose number of changed rows does not matter. It repeats the statement after a deadlock.
func (db *DB) run(ctx context.Context, doing string, s statement, args ...any) error {
	_, err := db.exec(ctx, doing, s, args...)
	return err
}

// query does the same as DB.query, within the transaction.
func (t *Tx) query(ctx context.Context, each func(pgx.Rows) error, s statement, args ...any) error {
	rows, err := t.tx.Query(ctx, t.db.sql[s], encodeUUIDs(args)...)
	if err != nil {
		return err
	}
	return eachRow(rows, each)
}

// queryRow does the same as DB.queryRow, within the transaction and without repeating it.
func (t *Tx) queryRow(ctx context.Context, targets []any, s statement, args ...any) error {
	rows, err := t.tx.Query(ctx, t.db.sql[s], encodeUUIDs(args)...)
	return oneRow(rows, err, targets)
}

// exec does the same as DB.exec, within the transaction and without repeating it.
func (t *Tx) exec(ctx context.Context, s statement, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, t.db.sql[s], encodeUUIDs(args)...)
	return tag.RowsAffected(), err
}

// run does the same as DB.run, within the transaction and without repeating it.
func (t *Tx) run(ctx context.Context, s statement, args ...any) error {
	_, err := t.exec(ctx, s, args...)
	return err
}

// deadlockTries is how often a transaction is tried that fails because of a deadlock.
const deadlockTries = 3

// again calls the function transaction, and calls it again after a deadlock, which has undone the transaction.
func again(ctx context.Context, transaction func() error) error {
	for try := 1; ; try++ {
		err := transaction()
		if try == deadlockTries || !IsContention(err) {
			return err
		}
		// Wait before the next try. The other transaction of the deadlock must wake up first, and should get the lock.
		select {
		case <-ctx.Done():
			return err
		case <-time.After(time.Duration(try) * (10*time.Millisecond + rand.N(20*time.Millisecond))):
		}
	}
}

// withConn calls f with a connection of its own from the pool, and translates f's error to an error of this package.
func (db *DB) withConn(ctx context.Context, doing string, f func(*pgx.Conn) error) error {
	c, err := db.acquire(ctx)
	if err == nil {
		err = f(c.Conn())
		c.Release()
	}
	return db.wrapError(doing, err)
}

// wrapError does the same as names.wrapError. It also logs, once, that a pooler loses prepared statements.
func (db *DB) wrapError(doing string, err error) error {
	if isLostStatement(err) {
		db.poolerLogged.Do(func() { db.log.Error("DATABASE_URL: "+ErrPooler.Error(), "error", err) })
	}
	return db.names.wrapError(doing, err)
}

package store

import (
	"context"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
)

// Batch collects statements that are sent to the server together, in one round trip. A Batch that does not belong to a
// Tx is a transaction by itself: the first statement that fails undoes all of them, and if Send succeeds, the
// transaction is committed.
//
// Methods that read have a destination, which Send fills. If a read finds nothing, its destination is zero, and that is
// not an error. To avoid deadlocks between transactions, statements that change rows must be added in this order:
// limits, users, identities, sessions, tokens, flows, factors, challenges, outbox, audit.
type Batch struct {
	db      *DB
	tx      pgx.Tx // nil: the batch is a transaction by itself
	queue   pgx.Batch
	readers []resultReader
}

// resultReader reads the result of one statement.
type resultReader struct {
	doing string
	read  func(pgx.BatchResults) error
	// into points to the destination that read fills; nil if there is none.
	into any
}

// Batch returns an empty Batch that is a transaction by itself.
func (db *DB) Batch() *Batch { return &Batch{db: db} }

func (b *Batch) add(doing string, take func(pgx.BatchResults) error, s statement, args ...any) {
	b.queue.Queue(b.db.sql[s], encodeUUIDs(args)...)
	b.readers = append(b.readers, resultReader{doing: doing, read: take})
}

// exec adds a statement whose result is ignored.
func (b *Batch) exec(doing string, s statement, args ...any) { b.add(doing, discardResult, s, args...) }

func discardResult(r pgx.BatchResults) error {
	_, err := r.Exec()
	return err
}

// rows adds a statement, and calls the function each for every row of the statement's result. The function stores what
// it reads in the variable to which into points. This variable is set to its zero value before.
func (b *Batch) rows(doing string, into any, each func(pgx.Rows) error, s statement, args ...any) {
	b.add(doing, func(r pgx.BatchResults) error {
		rows, err := r.Query()
		if err != nil {
			return err
		}
		return eachRow(rows, each)
	}, s, args...)
	b.readers[len(b.readers)-1].into = into
	reset(into)
}

// row adds a statement that returns at most one row, and reads the row's columns into targets. The targets are pointers
// to fields of the variable to which into points.
func (b *Batch) row(doing string, into any, targets []any, s statement, args ...any) {
	b.rows(doing, into, rowInto(targets...), s, args...)
}

// eachRow calls the function each for every row, and closes rows.
func eachRow(rows pgx.Rows, each func(pgx.Rows) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// appendTo returns a function that reads a row into a new element of a list.
func appendTo[T any](list *[]T, targets func(*T) []any) func(pgx.Rows) error {
	return func(r pgx.Rows) error {
		var v T
		err := scanRow(r, targets(&v))
		*list = append(*list, v)
		return err
	}
}

// Send sends the statements and reads their results. An empty Batch sends nothing. A Batch that is a transaction by
// itself is repeated after a deadlock.
func (b *Batch) Send(ctx context.Context) error {
	if len(b.readers) == 0 {
		return nil
	}
	if b.tx != nil {
		return b.db.wrapError("batch", b.readResults(b.tx.SendBatch(ctx, &b.queue)))
	}
	first := true
	return again(ctx, func() error {
		if !first {
			b.restart()
		}
		first = false
		return b.db.withConn(ctx, "batch", func(c *pgx.Conn) error {
			return b.readResults(c.SendBatch(ctx, &b.queue))
		})
	})
}

// restart prepares a Batch to be sent again after its transaction was undone. It makes a new queue of the statements,
// because pgx has stored in the old queue the names of prepared statements, which only one connection knows.
func (b *Batch) restart() {
	var queue pgx.Batch
	for _, q := range b.queue.QueuedQueries {
		queue.Queue(q.SQL, q.Arguments...)
	}
	b.queue = queue
	for _, r := range b.readers {
		reset(r.into)
	}
}

// reset sets the destination of a read, to which into points, to its zero value.
func reset(into any) {
	switch into := into.(type) {
	case nil:
	case *[]Level: // keep its length, which is the number of limits
		clear(*into)
	case *Pending:
		*into = Pending{Place: into.Place}
	default:
		reflect.ValueOf(into).Elem().SetZero()
	}
}

func (b *Batch) readResults(r pgx.BatchResults) error {
	for _, s := range b.readers {
		if err := s.read(r); err != nil {
			r.Close() // Close returns the same error
			return fmt.Errorf("%s: %w", s.doing, err)
		}
	}
	return r.Close()
}

// Tx is a transaction in which later statements depend on the results of earlier ones.
type Tx struct {
	db *DB
	tx pgx.Tx
}

// Batch returns an empty Batch whose statements run in the transaction.
func (t *Tx) Batch() *Batch { return &Batch{db: t.db, tx: t.tx} }

// InTx calls f in a transaction (READ COMMITTED), and commits it if f returns nil. After a deadlock it calls f again,
// so f must have no effects outside of the database, except on variables that it sets in every call. f must not hash
// passwords or call other services, since it holds a connection.
func (db *DB) InTx(ctx context.Context, f func(*Tx) error) error {
	return again(ctx, func() error {
		return db.withConn(ctx, "transaction", func(c *pgx.Conn) error { return db.inTx(ctx, c, f) })
	})
}

func (db *DB) inTx(ctx context.Context, c *pgx.Conn, f func(*Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err // pgx would close the connection if it could not send BEGIN or COMMIT
	}
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // even if ctx has ended, so that the next caller can use the connection
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
			defer cancel()
			tx.Rollback(undo) // if this fails, the connection is closed, which ends the transaction
		}
	}()
	if err := f(&Tx{db: db, tx: tx}); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	done = true
	return tx.Commit(ctx)
}

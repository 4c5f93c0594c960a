package store

import (
	"context"
	"fmt"
	"reflect"

	"github.com/jackc/pgx/v5"
)

// Batch gathers statements that go to the server together and cost one round trip. Outside of a Tx they are one
// transaction: the first statement that fails undoes all of them, and Send's success is the commit.
//
// A read fills its destination in Send; a read that finds nothing leaves the destination zero and is not an error. To
// keep transactions from waiting for each other crosswise, statements that change rows come in the order limits, users,
// identities, sessions, tokens, flows, factors, challenges, outbox, audit.
type Batch struct {
	db      *DB
	tx      pgx.Tx // nil: the batch is a transaction by itself
	queue   pgx.Batch
	readers []resultReader
}

// resultReader takes one statement's answer.
type resultReader struct {
	doing string
	read  func(pgx.BatchResults) error
	// into is a pointer to what read fills; nil: nothing.
	into any
}

// Batch starts an empty batch.
func (db *DB) Batch() *Batch { return &Batch{db: db} }

func (b *Batch) add(doing string, take func(pgx.BatchResults) error, s statement, args ...any) {
	b.queue.Queue(b.db.sql[s], encodeUUIDs(args)...)
	b.readers = append(b.readers, resultReader{doing: doing, read: take})
}

// exec adds a statement whose result is not read.
func (b *Batch) exec(doing string, s statement, args ...any) { b.add(doing, discardResult, s, args...) }

func discardResult(r pgx.BatchResults) error {
	_, err := r.Exec()
	return err
}

// rows adds a statement whose rows each reads into the destination into, which becomes zero.
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

// row adds a statement of at most one row, which is read into targets, the parts of the destination into.
func (b *Batch) row(doing string, into any, targets []any, s statement, args ...any) {
	b.rows(doing, into, rowInto(targets...), s, args...)
}

// eachRow reads all rows and closes them.
func eachRow(rows pgx.Rows, each func(pgx.Rows) error) error {
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// appendTo returns a function that appends each row to a list.
func appendTo[T any](list *[]T, targets func(*T) []any) func(pgx.Rows) error {
	return func(r pgx.Rows) error {
		var v T
		err := scanRow(r, targets(&v))
		*list = append(*list, v)
		return err
	}
}

// Send sends the statements and takes their answers. An empty batch costs nothing.
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

// restart puts a batch whose transaction was undone into its state before Send. The queue is built again because pgx
// stores in it the names that the statements have on one connection.
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

// reset makes the destination of a read zero.
func reset(into any) {
	switch into := into.(type) {
	case nil:
	case *[]Level: // has an element for each limit, found or not
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
			r.Close() // returns the same error again
			return fmt.Errorf("%s: %w", s.doing, err)
		}
	}
	return r.Close()
}

// Tx is a transaction whose later statements depend on the results of earlier ones.
type Tx struct {
	db *DB
	tx pgx.Tx
}

// Batch starts an empty batch within the transaction.
func (t *Tx) Batch() *Batch { return &Batch{db: t.db, tx: t.tx} }

// InTx runs f in a transaction (READ COMMITTED), which commits when f returns nil. After a deadlock f runs again, so
// it must change nothing but the database and variables that it sets each time. It must not hash or call other
// services: it holds a connection.
func (db *DB) InTx(ctx context.Context, f func(*Tx) error) error {
	return again(ctx, func() error {
		return db.withConn(ctx, "transaction", func(c *pgx.Conn) error { return db.inTx(ctx, c, f) })
	})
}

func (db *DB) inTx(ctx context.Context, c *pgx.Conn, f func(*Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err // pgx closes the connection when a begin or commit cannot be sent
	}
	tx, err := c.Begin(ctx)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		if !done { // also after ctx has ended, so that the next caller can use the connection
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
			defer cancel()
			tx.Rollback(undo) // a failure closes the connection, which ends the transaction
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

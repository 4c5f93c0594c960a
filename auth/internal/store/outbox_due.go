package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

var oldestDueOn = define(`
select min(due_at) from {outbox} where state = 'pending' and due_at <= $1 and expires_at > $1 and channel = any($2)`)

var outboxWaiting = define(`
select channel, count(*), min(due_at) filter (where due_at <= $1) from {outbox} where state = 'pending' and expires_at > $1 group by channel`)

// Waiting is what a channel's messages wait for: Pending are not sent yet, OldestDue is how long the
// oldest of those that are due has been so, 0 when none is.
type Waiting struct {
	Pending   int
	OldestDue time.Duration
}

// OutboxWaiting counts by channel. It reads what is pending and nothing else.
func (db *DB) OutboxWaiting(ctx context.Context, now time.Time) (by map[string]Waiting, err error) {
	by = map[string]Waiting{}
	err = db.query(ctx, "outbox waiting", func(r pgx.Rows) error {
		var channel string
		var w Waiting
		var since time.Time
		if err := r.Scan(&channel, &w.Pending, (*nullTime)(&since)); err != nil {
			return err
		}
		if !since.IsZero() {
			w.OldestDue = now.Sub(since)
		}
		by[channel] = w
		return nil
	}, outboxWaiting, now)
	return by, err
}

// OldestDueOn is OldestDue for some channels: those that a process sends.
func (db *DB) OldestDueOn(ctx context.Context, channels []string, now time.Time) (time.Duration, error) {
	var since time.Time
	err := db.queryRow(ctx, "oldest due", func(r pgx.Row) error { return r.Scan((*nullTime)(&since)) }, oldestDueOn, now, channels)
	if err != nil || since.IsZero() {
		return 0, err
	}
	return now.Sub(since), nil
}

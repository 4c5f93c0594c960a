package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

var oldestDueOn = define(`
select min(due_at) from {outbox} where state = 'pending' and due_at <= $1 and expires_at > $1 and channel = any($2)`)

// OldestDueOn is OldestDue for some channels: those that a process sends.
func (db *DB) OldestDueOn(ctx context.Context, channels []string, now time.Time) (time.Duration, error) {
	var since time.Time
	err := db.one(ctx, "oldest due", func(r pgx.Row) error { return r.Scan((*at)(&since)) }, oldestDueOn, now, channels)
	if err != nil || since.IsZero() {
		return 0, err
	}
	return now.Sub(since), nil
}

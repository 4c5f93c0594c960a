package store

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

var claimMessagesOf = define(`
update {outbox} o set due_at = $2, attempts = attempts + 1
where o.id in (
    select id from {outbox}
    where state = 'pending' and due_at <= $1 and expires_at > $1 and channel = $4
    order by due_at limit $3
    for update skip locked)
returning ` + messageColumns)

// ClaimMessagesOf is ClaimMessages for one channel. What no sender of this process can send waits for
// one that can, without its attempts being counted.
func (db *DB) ClaimMessagesOf(ctx context.Context, channel string, now time.Time, lease time.Duration, most int) ([]Message, error) {
	var claimed []Message
	err := db.query(ctx, "claim messages", messagesInto(&claimed), claimMessagesOf, now, now.Add(lease), most, channel)
	return claimed, err
}

var claimMessage = define(`
update {outbox} o set due_at = $2, attempts = attempts + 1
where o.id = $1 and o.state = 'pending'
returning ` + messageColumns)

// ClaimMessage takes one message, due or not. ErrNotFound: there is none that waits.
func (db *DB) ClaimMessage(ctx context.Context, message uuid.UUID, until time.Time) (m Message, err error) {
	err = db.queryRow(ctx, "claim message", func(r pgx.Row) error { return r.Scan(messageTargets(&m)...) }, claimMessage, message, until)
	return m, err
}

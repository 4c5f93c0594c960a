package store

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Message is a message in the outbox: a mail, an SMS, or the call of a hook.
type Message struct {
	ID uuid.UUID
	// Channel is "email", "sms" or "hook". Kind is the kind of the mail or SMS.
	Channel, Kind string
	User          uuid.UUID
	// Payload is the message's data, sealed under the root key. It is nil when the message was sent or has expired.
	Payload []byte
	// State is one of MessageStates.
	State string
	// Attempts is how often the message was claimed for sending, including the present claim.
	Attempts                            int
	CreatedAt, DueAt, ExpiresAt, DoneAt time.Time
	Error                               string
	// CanResend is true if ResendMessage would accept the message. Only the method Messages sets it.
	CanResend bool
}

// MessageStates are the possible states of a message.
var MessageStates = []string{"pending", "sent", "failed", "expired"}

const messageColumns = `o.id, o.channel, o.kind, o.user_id, o.payload, o.state, o.attempts, o.created_at, o.due_at, o.expires_at, o.done_at, o.error`

func messageTargets(m *Message) []any {
	return []any{&m.ID, &m.Channel, &m.Kind, &m.User, &m.Payload, &m.State, &m.Attempts, &m.CreatedAt, &m.DueAt,
		&m.ExpiresAt, &m.DoneAt, &m.Error}
}

// NewMessage is a message to be added to the outbox.
type NewMessage struct {
	ID, User      uuid.UUID
	Channel, Kind string
	Payload       []byte
	At, ExpiresAt time.Time
	// DueAt is the time from which on the message may be sent; zero: At.
	DueAt time.Time
}

var insertMessage = define(`
insert into {outbox} (id, channel, kind, user_id, payload, due_at, expires_at, created_at)
select $1, $2, $3, $4, $5, coalesce($8::timestamptz, $6), $7, $6
where $4::uuid is null or exists (select from {users} where id = $4 and deleted_at is null)`)

// InsertMessage adds a message to the outbox. It has no effect if the message's user does not exist or was deleted.
func (b *Batch) InsertMessage(m NewMessage) {
	b.exec("insert message", insertMessage, m.ID, m.Channel, m.Kind, uuidOrNull(m.User), m.Payload, m.At, m.ExpiresAt,
		timeOrNull(m.DueAt))
}

var cancelMessages = define(`
update {outbox} set payload = null,
    state = case state when 'pending' then 'expired' else state end,
    done_at = case state when 'pending' then $2 else done_at end,
    error = case state when 'pending' then 'no longer wanted' else error end
where user_id = $1 and (state = 'pending' or state = 'failed' and payload is not null)`)

// CancelMessages expires a user's pending messages. It is called when the user is deleted or the tokens in the messages
// become invalid. Afterwards failed messages cannot be sent again either.
func (b *Batch) CancelMessages(user uuid.UUID, now time.Time) {
	b.exec("cancel messages", cancelMessages, user, now)
}

var finishMessage = define(`
update {outbox} set state = $2, payload = case when $2 = 'failed' then payload end, done_at = $3, error = $4
where id = $1 and state = 'pending'`)

// FinishMessage records that a message was sent.
func (db *DB) FinishMessage(ctx context.Context, id uuid.UUID, now time.Time) error {
	return db.run(ctx, "finish message", finishMessage, id, "sent", now, "")
}

// FailMessage records that a message has failed and will not be tried again. why is for the operator, who can call
// ResendMessage until the message expires. After that Sweep deletes the payload.
func (db *DB) FailMessage(ctx context.Context, id uuid.UUID, now time.Time, why string) error {
	return db.run(ctx, "fail message", finishMessage, id, "failed", now, why)
}

var retryMessage = define(`
update {outbox} set due_at = $2, error = $3
where id = $1 and state = 'pending'`)

// RetryMessage records that an attempt to send a message has failed, and that it is to be tried again at due.
func (db *DB) RetryMessage(ctx context.Context, id uuid.UUID, due time.Time, why string) error {
	return db.run(ctx, "retry message", retryMessage, id, due, why)
}

var releaseMessages = define(`
update {outbox} set due_at = $2, attempts = attempts - 1
where id = any($1) and state = 'pending'`)

// ReleaseMessages undoes the claims of messages that this process has claimed and not finished sending, so that another
// process can claim them.
func (db *DB) ReleaseMessages(ctx context.Context, ids []uuid.UUID, now time.Time) error {
	return db.run(ctx, "release messages", releaseMessages, ids, now)
}

var expireMessages = define(`
update {outbox} set state = 'expired', payload = null, done_at = $1
where state = 'pending' and expires_at <= $1`)

// ExpireMessages expires the pending messages that are past their expiry, and returns how many.
func (db *DB) ExpireMessages(ctx context.Context, now time.Time) (int64, error) {
	return db.exec(ctx, "expire messages", expireMessages, now)
}

// MessageFilter selects a page of the list of messages.
type MessageFilter struct {
	// State is one of MessageStates; "" for any. User is the message's user; Nil for all users.
	State string
	User  uuid.UUID
	// After is the position of the last message of the previous page; zero for the first page.
	After Cursor
	Limit int
}

// selectMessages has two statements for each state: one lists the messages of all users, the other those of one user.
// The state is a constant in the SQL, since a prepared statement cannot use a partial index if the state is a
// parameter.
var selectMessages = func() map[string][2]statement {
	lists := map[string][2]statement{}
	for _, state := range append([]string{""}, MessageStates...) {
		where := `
where ($3::timestamptz is null or (o.created_at, o.id) < ($3, $4::uuid))`
		if state != "" {
			where += " and o.state = '" + state + "'"
		}
		of := func(user string) statement {
			return define(`
select ` + strings.Replace(messageColumns, "o.payload", "null::bytea", 1) + `,
    ` + canResend + `
from {outbox} o` + where + user + `
order by o.created_at desc, o.id desc
limit $1`)
		}
		lists[state] = [2]statement{of(""), of(" and o.user_id = $5")}
	}
	return lists
}()

// Messages returns a page of messages, the newest first, without payloads and with CanResend.
func (db *DB) Messages(ctx context.Context, f MessageFilter, now time.Time) (list []Message, err error) {
	args := []any{f.Limit, now, timeOrNull(f.After.CreatedAt), uuidOrNull(f.After.ID)}
	sql := selectMessages[f.State][0]
	if f.User != uuid.Nil {
		sql, args = selectMessages[f.State][1], append(args, f.User)
	}
	err = db.query(ctx, "messages", appendTo(&list, func(m *Message) []any {
		return append(messageTargets(m), &m.CanResend)
	}), sql, args...)
	return list, err
}

// stillWanted is the SQL condition that the token in a message o is still valid. The token is found by the user and the
// creation time, which a message and its token have in common. Notifications, codes of second factors and calls of
// hooks have no token; for them the condition is true.
const stillWanted = `(o.user_id is null or o.channel = 'hook' or o.kind = 'mfa' or o.kind like '%\_notification'
    or exists (select from {one_time_tokens} t where t.user_id = o.user_id and t.created_at = o.created_at and t.expires_at > $2))`

var dropUnwanted = define(`
update {outbox} o set state = 'expired', payload = null, done_at = $2, error = 'no longer wanted'
where id = $1 and state = 'pending' and not ` + stillWanted)

// DropUnwanted expires a message whose token was used or is no longer valid, and reports whether it did so.
func (db *DB) DropUnwanted(ctx context.Context, id uuid.UUID, now time.Time) (bool, error) {
	n, err := db.exec(ctx, "drop message", dropUnwanted, id, now)
	return n > 0, err
}

// canResend is the SQL condition that a message o may be sent again at the time $2: it is pending, or it has failed and
// its token is still valid.
const canResend = `o.expires_at > $2 and o.payload is not null and (
    o.state = 'pending' or o.state = 'failed' and ` + stillWanted + `)`

var resendMessage = define(`
update {outbox} o set due_at = $2, error = '', state = 'pending', done_at = null,
    attempts = case state when 'failed' then 0 else attempts end
where id = $1 and ` + canResend + `
returning ` + messageColumns)

// ResendMessage makes a message due now. The message must be pending, or have failed while its token is still valid.
// The error is ErrNotFound if there is no such message or it can no longer be sent.
func (db *DB) ResendMessage(ctx context.Context, id uuid.UUID, now time.Time) (m Message, err error) {
	err = db.queryRow(ctx, "resend message", messageTargets(&m), resendMessage, id, now)
	m.Payload, m.CanResend = nil, true
	return m, err
}

var claimMessagesOf = define(`
update {outbox} o set due_at = $2, attempts = attempts + 1
where o.id in (
    select id from {outbox}
    where state = 'pending' and due_at <= $1 and expires_at > $1 and channel = $4
    order by due_at limit $3
    for update skip locked)
returning ` + messageColumns)

// ClaimMessagesOf claims messages of a channel that are due, at most the number most. No other process can claim them
// before the lease ends. After that they are due again, unless FinishMessage, RetryMessage or FailMessage was called. A
// process claims only messages of channels that it can send, so that messages of other channels lose no attempts.
func (db *DB) ClaimMessagesOf(ctx context.Context, channel string, now time.Time, lease time.Duration,
	most int) ([]Message, error) {
	var claimed []Message
	err := db.query(ctx, "claim messages", appendTo(&claimed, messageTargets), claimMessagesOf, now, now.Add(lease), most,
		channel)
	return claimed, err
}

var claimMessage = define(`
update {outbox} o set due_at = $2, attempts = attempts + 1
where o.id = $1 and o.state = 'pending'
returning ` + messageColumns)

// ClaimMessage claims one pending message, even if it is not due. The error is ErrNotFound if there is no such pending
// message.
func (db *DB) ClaimMessage(ctx context.Context, message uuid.UUID, until time.Time) (m Message, err error) {
	err = db.queryRow(ctx, "claim message", messageTargets(&m), claimMessage, message, until)
	return m, err
}

var oldestDueOn = define(`
select min(due_at) from {outbox} where state = 'pending' and due_at <= $1 and expires_at > $1 and channel = any($2)`)

var outboxWaiting = define(`
select channel, count(*), min(due_at) filter (where due_at <= $1) from {outbox} where state = 'pending' and expires_at > $1 group by channel`)

// Waiting describes the messages of a channel that were not sent yet. Pending is their number. OldestDue is how long
// ago the oldest message that is due became due; 0 if none is due.
type Waiting struct {
	Pending   int
	OldestDue time.Duration
}

// OutboxWaiting returns a Waiting for each channel that has pending messages. It reads only pending messages.
func (db *DB) OutboxWaiting(ctx context.Context, now time.Time) (by map[string]Waiting, err error) {
	by = map[string]Waiting{}
	err = db.query(ctx, "outbox waiting", func(r pgx.Rows) error {
		var channel string
		var w Waiting
		var since time.Time
		if err := scanRow(r, []any{&channel, &w.Pending, &since}); err != nil {
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

// OldestDueOn returns how long ago the oldest due message of the given channels became due; 0 if none is due.
func (db *DB) OldestDueOn(ctx context.Context, channels []string, now time.Time) (time.Duration, error) {
	var since time.Time
	err := db.queryRow(ctx, "oldest due", []any{&since}, oldestDueOn, now, channels)
	if err != nil || since.IsZero() {
		return 0, err
	}
	return now.Sub(since), nil
}

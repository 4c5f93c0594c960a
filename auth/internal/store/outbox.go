package store

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Message is a mail or an SMS on its way.
type Message struct {
	ID uuid.UUID
	// Channel is "email", "sms" or "hook"; Kind is the kind of the mail or SMS.
	Channel, Kind string
	User          uuid.UUID
	// Payload is sealed; nil once the message was sent or has expired.
	Payload []byte
	// State is one of MessageStates.
	State string
	// Attempts counts the claims, including the present one.
	Attempts                            int
	CreatedAt, DueAt, ExpiresAt, DoneAt time.Time
	Error                               string
	// CanResend: ResendMessage would accept the message. Only Messages sets it.
	CanResend bool
}

// MessageStates are the states of a message.
var MessageStates = []string{"pending", "sent", "failed", "expired"}

const messageColumns = `o.id, o.channel, o.kind, o.user_id, o.payload, o.state, o.attempts, o.created_at, o.due_at, o.expires_at, o.done_at, o.error`

func messageTargets(m *Message) []any {
	return []any{&m.ID, &m.Channel, &m.Kind, &m.User, &m.Payload, &m.State, &m.Attempts, &m.CreatedAt, &m.DueAt,
		&m.ExpiresAt, &m.DoneAt, &m.Error}
}

// NewMessage is a message to be sent.
type NewMessage struct {
	ID, User      uuid.UUID
	Channel, Kind string
	Payload       []byte
	At, ExpiresAt time.Time
	// DueAt is when the message may be sent; zero: At.
	DueAt time.Time
}

var insertMessage = define(`
insert into {outbox} (id, channel, kind, user_id, payload, due_at, expires_at, created_at)
select $1, $2, $3, $4, $5, coalesce($8::timestamptz, $6), $7, $6
where $4::uuid is null or exists (select from {users} where id = $4 and deleted_at is null)`)

// InsertMessage puts a message into the outbox; without effect when its user doesn't exist, or was deleted.
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

// CancelMessages expires a user's pending messages, when the user is deleted or the tokens become void. Failed messages
// cannot be sent again after that.
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

// FailMessage ends the attempts for a message; why is for the operator, who may call ResendMessage until the message
// expires. Then Sweep wipes the payload.
func (db *DB) FailMessage(ctx context.Context, id uuid.UUID, now time.Time, why string) error {
	return db.run(ctx, "fail message", finishMessage, id, "failed", now, why)
}

var retryMessage = define(`
update {outbox} set due_at = $2, error = $3
where id = $1 and state = 'pending'`)

// RetryMessage records that a message could not be sent; it is due again at due.
func (db *DB) RetryMessage(ctx context.Context, id uuid.UUID, due time.Time, why string) error {
	return db.run(ctx, "retry message", retryMessage, id, due, why)
}

var releaseMessages = define(`
update {outbox} set due_at = $2, attempts = attempts - 1
where id = any($1) and state = 'pending'`)

// ReleaseMessages returns claimed messages untried, so that another process can claim them when this one ends.
func (db *DB) ReleaseMessages(ctx context.Context, ids []uuid.UUID, now time.Time) error {
	return db.run(ctx, "release messages", releaseMessages, ids, now)
}

var expireMessages = define(`
update {outbox} set state = 'expired', payload = null, done_at = $1
where state = 'pending' and expires_at <= $1`)

// ExpireMessages expires the messages that are too old to be sent, and returns their number.
func (db *DB) ExpireMessages(ctx context.Context, now time.Time) (int64, error) {
	return db.exec(ctx, "expire messages", expireMessages, now)
}

// MessageFilter chooses a page of the outbox.
type MessageFilter struct {
	// State is one of MessageStates, "" for any; User is the recipient, Nil for all.
	State string
	User  uuid.UUID
	// After is the place of the last message of the previous page; zero: the beginning.
	After Cursor
	Limit int
}

// selectMessages has two statements for each state: the list of all users, then the list of one user. The state is a
// constant in the text, since a prepared statement cannot use a partial index on a parameter.
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

// Messages lists the outbox, newest first, without payloads and with CanResend.
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

// stillWanted is the SQL for whether the token of a message o is still valid. Message and token are written with the
// same time. Notifications, codes of factors and hooks have no token.
const stillWanted = `(o.user_id is null or o.channel = 'hook' or o.kind = 'mfa' or o.kind like '%\_notification'
    or exists (select from {one_time_tokens} t where t.user_id = o.user_id and t.created_at = o.created_at and t.expires_at > $2))`

var dropUnwanted = define(`
update {outbox} o set state = 'expired', payload = null, done_at = $2, error = 'no longer wanted'
where id = $1 and state = 'pending' and not ` + stillWanted)

// DropUnwanted expires a message whose token was redeemed or is void, and reports whether it did so.
func (db *DB) DropUnwanted(ctx context.Context, id uuid.UUID, now time.Time) (bool, error) {
	n, err := db.exec(ctx, "drop message", dropUnwanted, id, now)
	return n > 0, err
}

// canResend is the SQL for whether a message o may be sent again at the time $2: the message is pending, or it has
// failed and its token is still valid.
const canResend = `o.expires_at > $2 and o.payload is not null and (
    o.state = 'pending' or o.state = 'failed' and ` + stillWanted + `)`

var resendMessage = define(`
update {outbox} o set due_at = $2, error = '', state = 'pending', done_at = null,
    attempts = case state when 'failed' then 0 else attempts end
where id = $1 and ` + canResend + `
returning ` + messageColumns)

// ResendMessage makes a message due now if it is pending, or if it has failed and its token is still valid.
// ErrNotFound: there is no such message, or it can no longer be sent.
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

// ClaimMessagesOf claims up to most due messages of a channel. No other process gets them before the lease ends; then
// they are due again, unless FinishMessage, RetryMessage or FailMessage was called. Messages of channels that this
// process cannot send wait for another process, and their attempts are not counted.
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

// ClaimMessage claims one message, due or not. ErrNotFound: no such message is pending.
func (db *DB) ClaimMessage(ctx context.Context, message uuid.UUID, until time.Time) (m Message, err error) {
	err = db.queryRow(ctx, "claim message", messageTargets(&m), claimMessage, message, until)
	return m, err
}

var oldestDueOn = define(`
select min(due_at) from {outbox} where state = 'pending' and due_at <= $1 and expires_at > $1 and channel = any($2)`)

var outboxWaiting = define(`
select channel, count(*), min(due_at) filter (where due_at <= $1) from {outbox} where state = 'pending' and expires_at > $1 group by channel`)

// Waiting describes the unsent messages of a channel: Pending is their number, OldestDue is how long the oldest due
// message has been due; 0 if none is due.
type Waiting struct {
	Pending   int
	OldestDue time.Duration
}

// OutboxWaiting returns Waiting for each channel. It reads pending messages only.
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

// OldestDueOn is OldestDue for the given channels.
func (db *DB) OldestDueOn(ctx context.Context, channels []string, now time.Time) (time.Duration, error) {
	var since time.Time
	err := db.queryRow(ctx, "oldest due", []any{&since}, oldestDueOn, now, channels)
	if err != nil || since.IsZero() {
		return 0, err
	}
	return now.Sub(since), nil
}

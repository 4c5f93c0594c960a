package account

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
)

// followUp is what one attempt of a transaction, or a batch, leaves to be done after its commit. It only remembers:
// the rows are written where they are added, in the lock order.
type followUp struct {
	notified int
	tasks    []func(context.Context)
	messages []store.NewMessage
	refusal  error
}

// then has a task run after the commit. Nothing may depend on its success.
func (a *followUp) then(task func(context.Context)) { a.tasks = append(a.tasks, task) }

// refuse commits what was written, and has the flow answer with err.
func (a *followUp) refuse(err error) { a.refusal = err }

// tx is one attempt of a transaction.
type tx struct {
	*store.Tx
	*followUp
}

// Batch starts an empty batch within the transaction.
func (t *tx) Batch() *batch { return &batch{t.Tx.Batch(), t.followUp} }

// batch is a batch of statements, in a transaction or as one by itself.
type batch struct {
	*store.Batch
	*followUp
}

// batch starts an empty batch outside of a transaction.
func (f *flow) batch() *batch { return &batch{f.core.db.Batch(), new(followUp)} }

// message adds a message to the user, unless it is empty.
func (b *batch) message(user uuid.UUID, m store.NewMessage) {
	if m.Payload != nil {
		m.User = user
		b.InsertMessage(m)
		b.messages = append(b.messages, m)
	}
}

// notify adds notifications to the user. They are counted against the budget for mails.
func (b *batch) notify(user uuid.UUID, list ...store.NewMessage) {
	b.notified += len(list)
	for _, m := range list {
		b.message(user, m)
	}
}

// commit runs do in a transaction, several times if a retry may succeed: do must begin afresh each time. Then it does
// what the last attempt has left.
func (f *flow) commit(ctx context.Context, do func(*tx) error) error {
	var after *followUp
	err := f.core.db.InTx(ctx, func(t *store.Tx) error {
		after = new(followUp)
		return do(&tx{t, after})
	})
	if err != nil {
		return err
	}
	return f.follow(ctx, after)
}

// send sends a batch that is a transaction by itself, and does what it has left.
func (f *flow) send(ctx context.Context, b *batch) error {
	if err := b.Send(ctx); err != nil {
		return err
	}
	return f.follow(ctx, b.followUp)
}

// follow does what a commit has left. A message that a hook delivers at once is not tried twice: if that fails, what
// was committed stays.
func (f *flow) follow(ctx context.Context, a *followUp) error {
	f.countNotifications(ctx, a.notified)
	for _, task := range a.tasks {
		task(ctx)
	}
	if len(a.messages) > 0 {
		f.core.wake()
	}
	for _, m := range a.messages {
		if now := f.settings.Hooks.SendNow[m.Channel]; now != nil && !m.DueAt.IsZero() {
			if err := now(ctx, m.ID); err != nil {
				return &Committed{failure("send", err)}
			}
		}
	}
	if a.refusal != nil {
		return &Committed{a.refusal}
	}
	return nil
}

// countNotifications takes n committed notifications from the budget for mails.
func (f *flow) countNotifications(ctx context.Context, n int) {
	if n == 0 {
		return
	}
	b := f.batch()
	b.Take(f.settings.Email.Sent.limit(f.limitKey("mail")), float64(n), f.core.now())
	err := b.Send(ctx)
	if _, over := errors.AsType[*store.LimitError](err); err != nil && !over {
		f.core.log.Warn("notifications were not counted", "count", n, "error", err)
	}
}

package flow

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// followUp is what one attempt of a transaction, or a batch, leaves to be done after its commit. It only remembers:
// the rows are written where they are added, in the lock order.
type followUp struct {
	notified int
	tasks    []func(context.Context)
	messages []store.NewMessage
	Refusal  error
}

// Then has a task run after the commit. Nothing may depend on its success.
func (a *followUp) Then(task func(context.Context)) { a.tasks = append(a.tasks, task) }

// Refuse commits what was written, and has the flow answer with err.
func (a *followUp) Refuse(err error) { a.Refusal = err }

// Tx is one attempt of a transaction.
type Tx struct {
	*store.Tx
	*followUp
}

// Batch starts an empty batch within the transaction.
func (t *Tx) Batch() *Batch { return &Batch{t.Tx.Batch(), t.followUp} }

// Batch is a batch of statements, in a transaction or as one by itself.
type Batch struct {
	*store.Batch
	*followUp
}

// Batch starts an empty batch outside of a transaction.
func (f *Flow) Batch() *Batch { return &Batch{f.Core.DB.Batch(), new(followUp)} }

// Message adds a message to the user, unless it is empty.
func (b *Batch) Message(user uuid.UUID, m store.NewMessage) {
	if m.Payload != nil {
		m.User = user
		b.InsertMessage(m)
		b.messages = append(b.messages, m)
	}
}

// Notify adds notifications to the user. They are counted against the budget for mails.
func (b *Batch) Notify(user uuid.UUID, list ...store.NewMessage) {
	b.notified += len(list)
	for _, m := range list {
		b.Message(user, m)
	}
}

// Commit runs do in a transaction, several times if a retry may succeed: do must begin afresh each time. Then it does
// what the last attempt has left.
func (f *Flow) Commit(ctx context.Context, do func(*Tx) error) error {
	var after *followUp
	err := f.Core.DB.InTx(ctx, func(t *store.Tx) error {
		after = new(followUp)
		return do(&Tx{t, after})
	})
	if err != nil {
		return err
	}
	return f.follow(ctx, after)
}

// Send sends a batch that is a transaction by itself, and does what it has left.
func (f *Flow) Send(ctx context.Context, b *Batch) error {
	if err := b.Send(ctx); err != nil {
		return err
	}
	return f.follow(ctx, b.followUp)
}

// follow does what a commit has left. A message that a hook delivers at once is not tried twice: if that fails, what
// was committed stays.
func (f *Flow) follow(ctx context.Context, a *followUp) error {
	f.countNotifications(ctx, a.notified)
	for _, task := range a.tasks {
		task(ctx)
	}
	if len(a.messages) > 0 {
		f.Core.wake()
	}
	for _, m := range a.messages {
		if now := f.Settings.Hooks.SendNow[m.Channel]; now != nil && !m.DueAt.IsZero() {
			if err := now(ctx, m.ID); err != nil {
				return &refusal.Committed{Cause: refusal.Failure("send", err)}
			}
		}
	}
	if a.Refusal != nil {
		return &refusal.Committed{Cause: a.Refusal}
	}
	return nil
}

// Wake has the outbox look at once for messages that are due.
func (k *Core) Wake() { k.wake() }

// countNotifications takes n committed notifications from the budget for mails.
func (f *Flow) countNotifications(ctx context.Context, n int) {
	if n == 0 {
		return
	}
	b := f.Batch()
	b.Take(f.Settings.Email.Sent.limit(f.LimitKey("mail")), float64(n), f.Core.now())
	err := b.Send(ctx)
	if _, over := errors.AsType[*store.LimitError](err); err != nil && !over {
		f.Core.Log.Warn("notifications were not counted", "count", n, "error", err)
	}
}

package flow

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// followUp collects what has to be done after the commit of one attempt of a transaction, or of a batch. The rows
// themselves are written in the transaction, in the lock order.
type followUp struct {
	notified int
	tasks    []func(context.Context)
	messages []store.NewMessage
	Refusal  error
}

// Then adds a task that runs after the commit. Nothing may depend on the task's success.
func (a *followUp) Then(task func(context.Context)) { a.tasks = append(a.tasks, task) }

// Refuse makes the flow answer with err after it has committed.
func (a *followUp) Refuse(err error) { a.Refusal = err }

// Tx is one attempt of a transaction.
type Tx struct {
	*store.Tx
	*followUp
}

// Batch starts an empty batch within the transaction.
func (t *Tx) Batch() *Batch { return &Batch{t.Tx.Batch(), t.followUp} }

// Batch is a batch of statements, either part of a transaction or a transaction by itself.
type Batch struct {
	*store.Batch
	*followUp
}

// Batch starts an empty batch outside of a transaction.
func (f *Flow) Batch() *Batch { return &Batch{f.Core.DB.Batch(), new(followUp)} }

// Run sends the statements that fill adds, within the transaction.
func (t *Tx) Run(ctx context.Context, fill func(*Batch)) error {
	b := t.Batch()
	fill(b)
	return b.Send(ctx)
}

// Run sends the statements that fill adds, as a transaction by itself that has no follow-up.
func (f *Flow) Run(ctx context.Context, fill func(*Batch)) error {
	b := f.Batch()
	fill(b)
	return b.Send(ctx)
}

// Message adds a message to the user, unless the message is empty.
func (b *Batch) Message(user uuid.UUID, m store.NewMessage) {
	if m.Payload != nil {
		m.User = user
		b.InsertMessage(m)
		b.messages = append(b.messages, m)
	}
}

// Notify adds notifications to the user, which count against the budget for mails.
func (b *Batch) Notify(user uuid.UUID, list ...store.NewMessage) {
	b.notified += len(list)
	for _, m := range list {
		b.Message(user, m)
	}
}

// Commit runs do in a transaction, and repeats it if a retry may succeed: do must start from the beginning each time.
// Then it carries out the follow-up of the last attempt.
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

// Send sends a batch that is a transaction by itself, and carries out its follow-up.
func (f *Flow) Send(ctx context.Context, b *Batch) error {
	if err := b.Send(ctx); err != nil {
		return err
	}
	return f.follow(ctx, b.followUp)
}

// follow carries out a follow-up. A message that a hook delivers at once is tried once: if the hook fails, the commit
// stays.
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

// Wake makes the outbox look for due messages at once.
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

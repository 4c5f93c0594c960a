package flow

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"gatehouse/auth/internal/account/refusal"
	"gatehouse/auth/internal/store"
)

// followUp collects what has to be done once a transaction or a batch has committed. Each attempt of a transaction has
// a followUp of its own. The messages and notifications are written as rows within the transaction; the followUp only
// delivers or counts them.
type followUp struct {
	notified int
	tasks    []func(context.Context)
	messages []store.NewMessage
	Refusal  error
}

// Then adds a task that runs after the commit. The request succeeds whether or not the task does.
func (a *followUp) Then(task func(context.Context)) { a.tasks = append(a.tasks, task) }

// Refuse makes the request end with err although its transaction commits.
func (a *followUp) Refuse(err error) { a.Refusal = err }

// Tx is one attempt of a transaction, with the follow-up that is carried out if this attempt commits.
type Tx struct {
	*store.Tx
	*followUp
}

// Batch starts an empty batch within the transaction.
func (t *Tx) Batch() *Batch { return &Batch{t.Tx.Batch(), t.followUp} }

// Batch is a batch of statements with its follow-up. The statements are sent in one round trip, either as part of a
// transaction or as a transaction by themselves.
type Batch struct {
	*store.Batch
	*followUp
}

// Batch starts an empty batch outside of a transaction.
func (f *Flow) Batch() *Batch { return &Batch{f.Core.DB.Batch(), new(followUp)} }

// Run calls fill and sends the statements that fill has added, in one round trip within the transaction.
func (t *Tx) Run(ctx context.Context, fill func(*Batch)) error {
	b := t.Batch()
	fill(b)
	return b.Send(ctx)
}

// Run calls fill and sends the statements that fill has added, as a transaction by itself. It carries out no follow-up.
func (f *Flow) Run(ctx context.Context, fill func(*Batch)) error {
	b := f.Batch()
	fill(b)
	return b.Send(ctx)
}

// Message adds the statement that puts m, a message to the user, into the outbox. It does nothing if m has no payload.
func (b *Batch) Message(user uuid.UUID, m store.NewMessage) {
	if m.Payload != nil {
		m.User = user
		b.InsertMessage(m)
		b.messages = append(b.messages, m)
	}
}

// Notify adds notifications to the user: mails that only inform. They count against the hourly budget for mails.
func (b *Batch) Notify(user uuid.UUID, list ...store.NewMessage) {
	b.notified += len(list)
	for _, m := range list {
		b.Message(user, m)
	}
}

// Commit runs do in a transaction. It runs do again if the transaction failed in a way that a retry may mend, so do
// must start from the beginning each time. After the commit it carries out the follow-up of the last attempt.
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

// Send sends a batch that is a transaction by itself, and then carries out its follow-up.
func (f *Flow) Send(ctx context.Context, b *Batch) error {
	if err := b.Send(ctx); err != nil {
		return err
	}
	return f.follow(ctx, b.followUp)
}

// follow carries out a follow-up after the commit. It tries once to deliver each message for which a hook is called
// before the answer (SendNow). If the hook fails, the request fails, but the transaction stays committed.
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

// countNotifications subtracts n from the hourly budget for mails, after n notifications were committed.
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

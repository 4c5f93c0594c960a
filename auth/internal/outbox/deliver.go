package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/locale"
	"gatehouse/auth/internal/mail"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// deliver makes one attempt and records its outcome. The log gets the message's id and kind, never the recipient or the
// contents.
func (c *channel) deliver(sending context.Context, m store.Message) {
	if m.Attempts > 1 && c.drop(sending, m) {
		c.letGo(m.ID)
		return
	}
	err := c.attempt(sending, m)
	if err == nil {
		c.sent.Add(1)
		c.finish(sending, m)
		c.letGo(m.ID)
		return
	}
	c.letGo(m.ID)
	now := c.o.now()
	_, refused := errors.AsType[*mail.Refused](err)
	switch {
	case sending.Err() != nil && !refused:
		// The stop of the daemon aborted the attempt, so it does not count.
		c.note(sending, m, func(ctx context.Context) error {
			return c.o.DB.ReleaseMessages(ctx, []uuid.UUID{m.ID}, now)
		})
	case refused || m.Attempts >= mostTries:
		c.fail(sending, m, now, err)
	default:
		c.tried.Add(1)
		due := now.Add(pause(m.Attempts))
		c.o.Log.Warn("outbox: a message could not be sent", "message", m.ID, "channel", c.name, "kind", m.Kind,
			"attempts", m.Attempts, "next", due, "expires", m.ExpiresAt, "error", err)
		c.note(sending, m, func(ctx context.Context) error { return c.o.DB.RetryMessage(ctx, m.ID, due, words(err)) })
	}
}

// fail ends the attempts for a message.
func (c *channel) fail(sending context.Context, m store.Message, now time.Time, why error) {
	c.failed.Add(1)
	c.o.Log.Error("outbox: a message failed and is not retried", "message", m.ID, "channel", c.name, "kind", m.Kind,
		"attempts", m.Attempts, "error", why)
	c.note(sending, m, func(ctx context.Context) error { return c.o.DB.FailMessage(ctx, m.ID, now, words(why)) })
}

// drop expires a message whose token is no longer valid, for example because the receiver got the message before a
// process died, and the link was used. If the database does not answer, the message is sent.
func (c *channel) drop(sending context.Context, m store.Message) (dropped bool) {
	c.note(sending, m, func(ctx context.Context) (err error) {
		dropped, err = c.o.DB.DropUnwanted(ctx, m.ID, c.o.now())
		return err
	})
	return dropped
}

// attempt opens the payload and passes it to the sender.
func (c *channel) attempt(ctx context.Context, m store.Message) (err error) {
	defer func() {
		// A message with which a sender panics must not end the daemon at each attempt.
		if p := recover(); p != nil {
			c.o.Log.Error("outbox: a sender panicked", "message", m.ID, "kind", m.Kind, "stack", string(debug.Stack()))
			err = errors.New("a fault in the service; see its log")
		}
	}()
	plain, _, err := c.o.Root.Open(secret.Outbox, m.Payload, m.ID[:])
	if errors.Is(err, secret.ErrOtherRoot) {
		return fmt.Errorf("%w (AUTH_SECRET_KEYS_PREVIOUS)", err) // can be repaired while the message waits
	}
	if err != nil {
		return &mail.Refused{Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return c.sender.Send(ctx, Item{ID: m.ID, User: m.User, CreatedAt: m.CreatedAt, ExpiresAt: m.ExpiresAt,
		Payload: plain})
}

// finish records that the receiver has the message, and retries until the database answers: otherwise the message would
// be sent again after the lease. If the process has to end before, the message is sent again.
func (c *channel) finish(sending context.Context, m store.Message) {
	for {
		err := c.note(sending, m, func(ctx context.Context) error { return c.o.DB.FinishMessage(ctx, m.ID, c.o.now()) })
		if err == nil {
			return
		}
		select {
		case <-sending.Done():
			c.o.Log.Error("outbox: a message was sent but this can't be noted; it will be sent again", "message", m.ID,
				"kind", m.Kind)
			return
		case <-time.After(pollEvery):
		}
	}
}

// pause grows from 5 s to 10 min, with a small random part, so that messages that failed together are not all tried
// again together.
func pause(attempts int) time.Duration {
	d := longPause
	if attempts < 8 {
		d = min(firstPause<<max(attempts-1, 0), longPause)
	}
	return d + rand.N(d/10)
}

// words returns an error's text for the operator: one line of limited length.
func words(err error) string {
	return locale.Short(locale.OneLine(strings.ToValidUTF8(err.Error(), "?")), 300)
}

// SendNow makes the only attempt at a message, while the caller waits for the outcome. A failure is final. A message
// that does not exist, or was already sent, is not an error.
func (o *Outbox) SendNow(ctx context.Context, message uuid.UUID) error {
	m, err := o.o.DB.ClaimMessage(ctx, message, o.o.now().Add(lease))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, c := range o.channels {
		if c.name != m.Channel {
			continue
		}
		if err = c.attempt(ctx, m); err != nil {
			c.fail(ctx, m, o.o.now(), err)
			return err
		}
		c.sent.Add(1)
		c.note(ctx, m, func(ctx context.Context) error { return o.o.DB.FinishMessage(ctx, m.ID, o.o.now()) })
	}
	return nil
}

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

// deliver makes one attempt to send a message, and records its outcome. The log gets the message's id and kind, never
// the recipient or the contents.
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
		// The daemon's shutdown aborted the attempt, so the attempt does not count.
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

// fail records that a message has failed for good.
func (c *channel) fail(sending context.Context, m store.Message, now time.Time, why error) {
	c.failed.Add(1)
	c.o.Log.Error("outbox: a message failed and is not retried", "message", m.ID, "channel", c.name, "kind", m.Kind,
		"attempts", m.Attempts, "error", why)
	c.note(sending, m, func(ctx context.Context) error { return c.o.DB.FailMessage(ctx, m.ID, now, words(why)) })
}

// drop expires a message whose token is no longer valid. For example, the receiver got the message before a process
// died, and has used the link since. If the database does not answer, drop returns false, and the message is sent.
func (c *channel) drop(sending context.Context, m store.Message) (dropped bool) {
	c.note(sending, m, func(ctx context.Context) (err error) {
		dropped, err = c.o.DB.DropUnwanted(ctx, m.ID, c.o.now())
		return err
	})
	return dropped
}

// attempt decrypts the message's payload and passes it to the sender.
func (c *channel) attempt(ctx context.Context, m store.Message) (err error) {
	defer func() {
		// If a message made the sender panic and the panic was not recovered, each attempt would end the daemon.
		if p := recover(); p != nil {
			c.o.Log.Error("outbox: a sender panicked", "message", m.ID, "kind", m.Kind, "stack", string(debug.Stack()))
			err = errors.New("a fault in the service; see its log")
		}
	}()
	plain, _, err := c.o.Root.Open(secret.Outbox, m.Payload, m.ID[:])
	if errors.Is(err, secret.ErrOtherRoot) {
		return fmt.Errorf("%w (AUTH_SECRET_KEYS_PREVIOUS)", err) // not final: the operator can add the root key
	}
	if err != nil {
		return &mail.Refused{Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return c.sender.Send(ctx, Item{ID: m.ID, User: m.User, CreatedAt: m.CreatedAt, ExpiresAt: m.ExpiresAt,
		Payload: plain})
}

// finish records that the message was delivered. It tries until the database answers, since otherwise the message would
// be sent again when its lease ends. If the process has to exit before, the message is sent again.
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

// pause returns the time until the next attempt. It doubles from 5 s to 10 min with the attempts. A random part of up
// to a tenth is added, so that messages that failed together are not all tried again together.
func pause(attempts int) time.Duration {
	d := longPause
	if attempts < 8 {
		d = min(firstPause<<max(attempts-1, 0), longPause)
	}
	return d + rand.N(d/10)
}

// words returns an error's text in the form that is stored for the operator: one line of at most 300 characters.
func words(err error) string {
	return locale.Short(locale.OneLine(strings.ToValidUTF8(err.Error(), "?")), 300)
}

// SendNow makes a single attempt to send a message, while the caller waits for the outcome. A failure is final. It is
// not an error if the message does not exist or was already sent.
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

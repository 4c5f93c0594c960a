package outbox

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
)

// channel sends the messages of one channel, for example email. At most Options.Parallel messages are being sent at a
// time; each takes up one place.
type channel struct {
	o      *Options
	name   string
	sender Sender
	wake   chan struct{}
	// freed has a value after a message has given up its place.
	freed chan struct{}

	sent, tried, failed atomic.Uint64 // the counts that Outbox.Stats returns

	mu      sync.Mutex
	running int // places that are taken
	// held has the ids of messages that are being sent, or were sent without the database recording it. If the database
	// was unreachable for longer than a lease, this process may claim such a message again, and must not send it twice.
	// A message whose failure is being recorded is not in held, since any process may claim it from then on.
	held map[uuid.UUID]bool
	away bool // the last attempt to claim messages failed
	wg   sync.WaitGroup
}

func (c *channel) run(ctx context.Context) {
	sending, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		var freed chan struct{}
		if c.claim(ctx, sending) {
			freed = c.freed // claim may have left messages because there were not enough places
		}
		select {
		case <-ctx.Done():
		case <-c.wake:
		case <-tick.C:
		case <-freed:
		}
	}
	defer time.AfterFunc(c.o.Grace, cut).Stop()
	c.wg.Wait()
}

// claim claims as many messages as there are free places, and begins to send them at once, since the lease of a message
// begins with the claim. more is true if there may be more messages.
func (c *channel) claim(ctx, sending context.Context) (more bool) {
	c.mu.Lock()
	free := c.o.Parallel - c.running
	c.mu.Unlock()
	if free <= 0 {
		return true
	}
	if !ready(c.sender) {
		return false
	}
	within, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	list, err := c.o.DB.ClaimMessagesOf(within, c.name, c.o.now(), lease, free)
	if err != nil {
		if ctx.Err() == nil && !c.away {
			c.o.Log.Warn("outbox: can't look for messages; trying on", "channel", c.name, "error", err)
		}
		c.away = true
		return false
	}
	c.away = false
	for _, m := range list {
		if !c.hold(m.ID) {
			continue
		}
		c.wg.Go(func() {
			c.deliver(sending, m)
			c.mu.Lock()
			c.running--
			c.mu.Unlock()
			signal(c.freed)
		})
	}
	return len(list) == free
}

// hold takes a place for a message. It returns false, and takes none, if the message is already held.
func (c *channel) hold(id uuid.UUID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[id] {
		return false
	}
	c.held[id] = true
	c.running++
	return true
}

func (c *channel) letGo(id uuid.UUID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, id)
}

// note writes the outcome of a message to the database by calling the function write. The context of write has a
// timeout of its own and outlives ctx, so that the outcome is written even if sending was aborted.
func (c *channel) note(ctx context.Context, m store.Message, write func(context.Context) error) error {
	within, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	err := write(within)
	if err != nil {
		c.o.Log.Warn("outbox: can't note what became of a message", "message", m.ID, "kind", m.Kind, "error", err)
	}
	return err
}

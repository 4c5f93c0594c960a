// Package outbox delivers the mails and SMS that wait in the database: it claims them with leases, sends them
// concurrently, retries with growing pauses, and records messages that have failed for good.
//
// It does not know what a message means or why it is sent. Delivery is at least once. A message is sent twice only if,
// between its acceptance by the receiver and the record of that, the process or the database dies, or if the clocks of
// replicas differ by more than 15 s. Both times it has the same id, and therefore the same Message-ID.
package outbox

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// Times in the life of a message.
const (
	lease       = time.Minute
	sendTimeout = 45 * time.Second // of one attempt; much shorter than the lease
	pollEvery   = time.Second
	expireEvery = 15 * time.Second
	firstPause  = 5 * time.Second
	longPause   = 10 * time.Minute
	mostTries   = 10
	noteTimeout = 5 * time.Second // of one attempt to write the outcome of a message
)

// Item is one message to be sent.
type Item struct {
	// ID is the same at every attempt.
	ID uuid.UUID
	// User is the user to whom the message belongs.
	User uuid.UUID
	// CreatedAt is when the message was created, ExpiresAt when its link or code expires.
	CreatedAt, ExpiresAt time.Time
	// Payload is decrypted.
	Payload []byte
}

// Sender delivers the messages of one channel, many at once. A nil error means that the receiver has the message, a
// *mail.Refused that the receiver will never take it. After any other error the message is tried again.
type Sender interface {
	Send(ctx context.Context, m Item) error
}

// Resting is a Sender, or a Texter, that may be unable to send for a while. As long as Ready returns false, its
// messages are left to other processes, or until they expire.
type Resting interface{ Ready() bool }

func ready(s any) bool {
	r, ok := s.(Resting)
	return !ok || r.Ready()
}

// Options are the dependencies of an Outbox.
type Options struct {
	DB   *store.DB
	Root *secret.Root
	// Senders by channel. Messages of other channels wait for a process with a sender, or until they expire.
	Senders map[string]Sender
	Now     func() time.Time
	Log     *slog.Logger
	// Parallel is how many messages of a channel are sent at once (0: 8).
	Parallel int
	// Grace is how long Run waits at its end for the messages that are being sent (0: 5 s).
	Grace time.Duration
}

// Outbox sends the messages that package store adds.
type Outbox struct {
	o        Options
	channels []*channel
	expired  atomic.Uint64
}

// New returns an Outbox, which Run starts.
func New(o Options) *Outbox {
	if o.Parallel <= 0 {
		o.Parallel = 8
	}
	if o.Grace <= 0 {
		o.Grace = 5 * time.Second
	}
	out := &Outbox{o: o}
	for name, sender := range o.Senders {
		out.channels = append(out.channels, &channel{
			o: &out.o, name: name, sender: sender, wake: make(chan struct{}, 1), freed: make(chan struct{}, 1),
			held: map[uuid.UUID]bool{},
		})
	}
	return out
}

// Wake makes the outbox look for a newly committed message. It never blocks, and may be called before, during and after
// Run.
func (o *Outbox) Wake() {
	for _, c := range o.channels {
		signal(c.wake)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// Run delivers until ctx ends. Then it claims no more messages, lets those being sent finish within the grace period,
// releases the others and returns. Each channel has a loop and places of its own, so that an unreachable SMTP server
// does not delay SMS.
func (o *Outbox) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, c := range o.channels {
		wg.Go(func() { c.run(ctx) })
	}
	wg.Go(func() { o.expire(ctx) })
	wg.Wait()
}

// expire expires the messages of all channels that are too old to be sent.
func (o *Outbox) expire(ctx context.Context) {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, noteTimeout)
		n, err := o.o.DB.ExpireMessages(within, o.o.now())
		cancel()
		switch {
		case err != nil && ctx.Err() == nil:
			o.o.Log.Warn("outbox: expired messages can't be ended", "error", err)
		case n > 0:
			o.expired.Add(uint64(n))
			o.o.Log.Error("outbox: messages expired before they could be sent", "messages", n)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// now returns the time in UTC and whole microseconds, the precision of the database.
func (o *Options) now() time.Time { return o.Now().UTC().Truncate(time.Microsecond) }

// ChannelStats counts what this process has done on one channel since it started.
type ChannelStats struct {
	Channel string
	// Sent counts delivered messages, Retried failed attempts that will be repeated, Failed messages that were given
	// up.
	Sent, Retried, Failed uint64
}

// Stats returns this process's metrics by channel. expired counts messages that were too old to be sent.
func (o *Outbox) Stats() (by []ChannelStats, expired uint64) {
	for _, c := range o.channels {
		by = append(by, ChannelStats{Channel: c.name, Sent: c.sent.Load(), Retried: c.tried.Load(),
			Failed: c.failed.Load()})
	}
	return by, o.expired.Load()
}

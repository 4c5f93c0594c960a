// Package outbox delivers the mails and SMS that wait in the database: it claims them under leases, sends them
// concurrently, tries again with growing pauses, and fails them in the open.
//
// It doesn't know what a message means or why it is sent. Delivery is at least once: a message is sent twice only if
// the process or the database dies, or clocks of replicas differ by more than 15 s, after the receiver took it and
// before this was noted; its id, and so its Message-ID, is the same then.
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

// The times of a message's life.
const (
	lease       = time.Minute
	sendTimeout = 45 * time.Second // of one attempt; well within the lease, so that no other process begins meanwhile
	pollEvery   = time.Second
	expireEvery = 15 * time.Second
	firstPause  = 5 * time.Second
	longPause   = 10 * time.Minute
	mostTries   = 10
	noteTimeout = 5 * time.Second // of one try to write down what became of a message
)

// Item is one message to be sent.
type Item struct {
	// ID is the same at every attempt.
	ID uuid.UUID
	// User is whose it is.
	User uuid.UUID
	// CreatedAt is when it was ordered, ExpiresAt when its link or code ends.
	CreatedAt, ExpiresAt time.Time
	// Payload is opened.
	Payload []byte
}

// Sender delivers one channel's messages; many at once. A nil error means that the receiver has the
// message, a *mail.Refused that it never will; any other is tried again.
type Sender interface {
	Send(ctx context.Context, m Item) error
}

// Resting is a Sender, or a Texter, that may have nothing to send with for a while. As long as Ready is
// false its messages are left to other processes, or until they expire.
type Resting interface{ Ready() bool }

func ready(s any) bool {
	r, ok := s.(Resting)
	return !ok || r.Ready()
}

// Options are what an Outbox works with.
type Options struct {
	DB   *store.DB
	Root *secret.Root
	// Senders by channel. Messages of other channels wait for a process that has one, or until they expire.
	Senders map[string]Sender
	Now     func() time.Time
	Log     *slog.Logger
	// Parallel is how many messages of a channel are sent at once (0: 8).
	Parallel int
	// Grace is how long Run waits for the messages that are being sent when it has to end (0: 5 s).
	Grace time.Duration
}

// Outbox is the sending side. Messages are put in by the store.
type Outbox struct {
	o        Options
	channels []*channel
	expired  atomic.Uint64
}

// New starts nothing; see Run.
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

// Wake has the outbox read now: a message was committed. It never blocks, and may be called before, during and after
// Run.
func (o *Outbox) Wake() {
	for _, c := range o.channels {
		signal(c.wake)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is signalled already
	}
}

// Run delivers until ctx ends. Then it claims no more, lets those that are being sent come to an end for
// the grace period, gives the others back and returns. Each channel has a loop and places of its own, so
// that a dead SMTP server holds up no SMS.
func (o *Outbox) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, c := range o.channels {
		wg.Go(func() { c.run(ctx) })
	}
	wg.Go(func() { o.expire(ctx) })
	wg.Wait()
}

// expire ends what may no longer be sent, of all channels.
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

// now is the time as the database keeps it.
func (o *Options) now() time.Time { return o.Now().UTC().Truncate(time.Microsecond) }

// ChannelStats is what this process has done on one channel since it began.
type ChannelStats struct {
	Channel string
	// Sent went out; Retried failed for now, and will be tried again; Failed were given up.
	Sent, Retried, Failed uint64
}

// Stats are this process's metrics, by channel. Expired are messages that it found too old to be sent.
func (o *Outbox) Stats() (by []ChannelStats, expired uint64) {
	for _, c := range o.channels {
		by = append(by, ChannelStats{Channel: c.name, Sent: c.sent.Load(), Retried: c.tried.Load(),
			Failed: c.failed.Load()})
	}
	return by, o.expired.Load()
}

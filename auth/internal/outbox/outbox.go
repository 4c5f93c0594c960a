// Package outbox delivers the mails and SMS that wait in the database: it claims them with leases, sends them
// concurrently, retries with growing pauses, and records messages that have failed for good.
//
// It does not know what a message means or why it is sent. A message is delivered at least once. It is sent twice only
// if the process or the database dies after the receiver has accepted the message and before that is recorded, or if
// the clocks of replicas differ by more than 15 s. Both copies have the same id, and therefore the same Message-ID.
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

// Times and limits in the delivery of a message.
const (
	lease       = time.Minute
	sendTimeout = 45 * time.Second // of one attempt to send; much shorter than the lease
	pollEvery   = time.Second
	expireEvery = 15 * time.Second
	firstPause  = 5 * time.Second
	longPause   = 10 * time.Minute
	mostTries   = 10
	noteTimeout = 5 * time.Second // of one attempt to record the outcome of a message
)

// Item is a message that a Sender is to send.
type Item struct {
	// ID is the id of the message; it is the same at every attempt.
	ID uuid.UUID
	// User is the user to whom the message belongs.
	User uuid.UUID
	// CreatedAt is when the message was created, ExpiresAt when its link or code expires.
	CreatedAt, ExpiresAt time.Time
	// Payload is the decrypted contents: for a mail JSON of a mail.Payload, for an SMS JSON of a mail.SMS.
	Payload []byte
}

// Sender delivers the messages of one channel. Send is called concurrently. If the error is nil, the receiver has
// accepted the message. If it is a *mail.Refused, the receiver will never accept the message. After any other error the
// message is tried again.
type Sender interface {
	Send(ctx context.Context, m Item) error
}

// Resting is implemented by a Sender or a Texter that may be unable to send for a while. As long as Ready returns
// false, this process claims no messages of its channel. Other processes may send them, or they expire.
type Resting interface{ Ready() bool }

func ready(s any) bool {
	r, ok := s.(Resting)
	return !ok || r.Ready()
}

// Options are the dependencies of an Outbox.
type Options struct {
	DB   *store.DB
	Root *secret.Root
	// Senders maps the name of a channel to its sender. Messages of other channels wait for a process that has a sender
	// for them, or until they expire.
	Senders map[string]Sender
	Now     func() time.Time
	Log     *slog.Logger
	// Parallel is how many messages of one channel are sent at once (0: 8).
	Parallel int
	// Grace is how long Run waits for the messages that are being sent after its context has ended (0: 5 s).
	Grace time.Duration
}

// Outbox sends the messages that package store writes to the table outbox.
type Outbox struct {
	o        Options
	channels []*channel
	expired  atomic.Uint64
}

// New returns an Outbox. It does nothing until Run is called.
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

// Wake makes the outbox look for a message that was just committed. It never blocks, and may be called before, during
// and after Run.
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

// Run delivers messages until ctx ends. Then it claims no more messages, waits for the messages that are being sent,
// but not longer than Options.Grace, releases the rest and returns. Each channel has its own loop and its own places,
// so that an unreachable SMTP server does not delay SMS.
func (o *Outbox) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, c := range o.channels {
		wg.Go(func() { c.run(ctx) })
	}
	wg.Go(func() { o.expire(ctx) })
	wg.Wait()
}

// expire marks messages of all channels as expired when it is too late to send them.
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

// ChannelStats counts what this process has done with the messages of one channel since it started.
type ChannelStats struct {
	Channel string
	// Sent counts delivered messages, Retried failed attempts after which another one follows, and Failed messages that
	// were given up.
	Sent, Retried, Failed uint64
}

// Stats returns this process's counts by channel. expired is how many messages expired before they were sent.
func (o *Outbox) Stats() (by []ChannelStats, expired uint64) {
	for _, c := range o.channels {
		by = append(by, ChannelStats{Channel: c.name, Sent: c.sent.Load(), Retried: c.tried.Load(),
			Failed: c.failed.Load()})
	}
	return by, o.expired.Load()
}

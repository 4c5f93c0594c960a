package flow

import (
	"cmp"
	"log/slog"
	"sync/atomic"
	"time"

	"gatehouse/auth/internal/clock"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// Options are the dependencies of the flows.
type Options struct {
	DB        *store.DB
	Keys      *token.Live
	Refresh   *token.RefreshCodec
	Root      *secret.Root
	Passwords *password.Workers
	// Wake is called after a message was committed to the outbox; nil: not at all.
	Wake func()
	// SignedIn is called with the amr method of each session that was opened; nil: not at all.
	SignedIn func(method string)
	// Unsent is called, with channel and reason, for each message that no configured sender can send; nil: no call.
	Unsent func(channel, reason string)
	// Clock is PostgreSQL's time; nil: the machine's clock.
	Clock *clock.Clock
	// Now replaces Clock in tests, and PostgreSQL's clock in statements that use it; nil: nothing is replaced.
	Now func() time.Time
	// Log gets errors that no answer reports; nil: discarded.
	Log *slog.Logger
}

// New returns what all flows share over the given database, keys and workers.
func New(o Options, s Settings) *Core {
	k := &Core{
		DB: o.DB, Keys: o.Keys, Codec: o.Refresh, Root: o.Root, Passwords: o.Passwords,
		wake: o.Wake, signedIn: o.SignedIn, Unsent: o.Unsent,
		clock: o.Now, fakeClock: o.Now != nil, Log: cmp.Or(o.Log, slog.New(slog.DiscardHandler)),
	}
	if k.wake == nil {
		k.wake = func() {}
	}
	if k.Unsent == nil {
		k.Unsent = func(string, string) {}
	}
	if k.clock == nil {
		k.clock = o.Clock.Now
	}
	k.Apply(s)
	return k
}

// Apply puts new settings in force. A call under way keeps the settings that it began with.
func (k *Core) Apply(s Settings) { k.live.Store(&s) }

// Live returns the settings in force.
func (k *Core) Live() *Settings { return k.live.Load() }

// Core holds what all flows share. After New only the settings, the rotations and the takeover change.
type Core struct {
	DB        *store.DB
	Keys      *token.Live
	Codec     *token.RefreshCodec
	Root      *secret.Root
	Passwords *password.Workers
	wake      func()
	signedIn  func(method string)
	Unsent    func(channel, reason string)
	clock     func() time.Time
	fakeClock bool
	Log       *slog.Logger
	Rotations rotationLimiter
	// linksUntil is when the last link that was carried over from another service expires; nil: no takeover of users was
	// closed in this database.
	linksUntil atomic.Pointer[time.Time]
	live       atomic.Pointer[Settings] // replaced as a whole, never changed
}

// now returns the time by PostgreSQL's clock, in UTC and whole microseconds.
func (k *Core) now() time.Time { return k.clock().UTC().Truncate(time.Microsecond) }

// ServerNow returns the time of Options.Now, for statements that otherwise use PostgreSQL's clock; zero if it is nil.
func (k *Core) ServerNow() time.Time {
	if k.fakeClock {
		return k.now()
	}
	return time.Time{}
}

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

// Options are what New needs: the connections, keys, workers and callbacks that all flows use.
type Options struct {
	DB        *store.DB
	Keys      *token.Live
	Refresh   *token.RefreshCodec
	Root      *secret.Root
	Passwords *password.Workers
	// Wake is called after a message was committed to the outbox; nil: no call.
	Wake func()
	// SignedIn is called for each session that was opened, with the authentication method (amr) that opened it; nil: no
	// call.
	SignedIn func(method string)
	// Unsent is called, with channel and reason, for each message that no configured sender can send; nil: no call.
	Unsent func(channel, reason string)
	// Clock is PostgreSQL's time; nil: the machine's clock.
	Clock *clock.Clock
	// Now replaces Clock in tests, and PostgreSQL's clock in the statements that read it; nil: nothing is replaced.
	Now func() time.Time
	// Log gets errors that no answer reports; nil: they are discarded.
	Log *slog.Logger
}

// New returns the Core of all flows, with the given dependencies and settings.
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

// Apply replaces the settings. A request that is being handled keeps the settings that it began with.
func (k *Core) Apply(s Settings) { k.live.Store(&s) }

// Live returns the current settings.
func (k *Core) Live() *Settings { return k.live.Load() }

// Core holds what all flows share: the dependencies and the current settings. After New only the settings, the rotation
// limits and the state of the takeover (linksUntil) change.
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
	// linksUntil is when the last link expires that was carried over from the former service (supabase/auth); nil: no
	// takeover of its users has been completed in this database.
	linksUntil atomic.Pointer[time.Time]
	live       atomic.Pointer[Settings] // settings in force; replaced as a whole, never changed
}

// now returns PostgreSQL's time, in UTC, truncated to microseconds as PostgreSQL stores it.
func (k *Core) now() time.Time { return k.clock().UTC().Truncate(time.Microsecond) }

// ServerNow returns the time of Options.Now, as a parameter for statements that otherwise read PostgreSQL's clock. It
// is zero if Options.Now is nil.
func (k *Core) ServerNow() time.Time {
	if k.fakeClock {
		return k.now()
	}
	return time.Time{}
}

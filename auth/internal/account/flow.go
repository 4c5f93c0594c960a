package account

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

// Core is what all flows share. After New only the settings, the rotations and the takeover change.
type Core struct {
	db        *store.DB
	keys      *token.Live
	codec     *token.RefreshCodec
	root      *secret.Root
	passwords hashing
	wake      func()
	signedIn  func(method string)
	unsent    func(channel, reason string)
	clock     func() time.Time
	fakeClock bool
	log       *slog.Logger
	rotations rotationLimiter
	takeover  atomic.Pointer[takeover] // nil: none was closed in this database
	live      atomic.Pointer[Settings] // replaced as a whole, never changed
}

// now returns the time as PostgreSQL keeps it.
func (k *Core) now() time.Time { return k.clock().UTC().Truncate(time.Microsecond) }

// serverNow returns the time of a clock set by Options, to be used in place of PostgreSQL's own; zero without one.
func (k *Core) serverNow() time.Time {
	if k.fakeClock {
		return k.now()
	}
	return time.Time{}
}

// flow is one call of an entry point: the settings and the time that it began with, and the request. It reaches the
// database, fills in audit rows and does what follows a commit. It holds no rule: what is allowed is decided by the
// operations that have a flow, and by the functions that take one.
type flow struct {
	core     *Core
	settings *Settings
	req      RequestInfo
	now      time.Time
}

// Begin returns the flow of a call. It loads the settings once, so that the whole call sees one version of them.
func (k *Core) Begin(req RequestInfo) *flow {
	return &flow{core: k, settings: k.live.Load(), req: req, now: k.now()}
}

// tick moves the flow's time to the present, after a wait for the database or a hash.
func (f *flow) tick() { f.now = f.core.now() }

// aud returns the audience that the request works in.
func (f *flow) aud() string { return cmp.Or(f.req.Aud, f.settings.Audience) }

// limitKey returns the key of a bucket. An address among the parts cannot be read back from it.
func (f *flow) limitKey(parts ...string) []byte { return f.core.root.MAC(secret.Limits, parts...)[:16] }

// audit returns the row about what the request did. pairs are its traits, name and value in turns.
func (f *flow) audit(action store.Action, actor, session uuid.UUID, pairs ...string) store.Audit {
	return store.Audit{At: f.now, Action: action, Actor: actor, Session: session, IP: f.req.IP,
		Traits: traits(pairs...)}
}

// auditSeldom adds a row, at most one a minute of a name and subject, so that guesses cannot fill the log.
func (f *flow) auditSeldom(b *batch, name, subject string, row store.Audit) {
	b.AuditSeldom(store.NewInterval(f.limitKey(name, subject), time.Minute), row)
}

// seal returns a message for the outbox with its payload sealed.
func (f *flow) seal(channel, kind string, payload any, expires time.Time) store.NewMessage {
	m := store.NewMessage{ID: uuid.New(), Channel: channel, Kind: kind, At: f.now, ExpiresAt: expires}
	m.Payload = f.core.root.Seal(secret.Outbox, mustJSON(payload), m.ID[:])
	return m
}

// hashing is the workers as flows see them: a request whose deadline passes before a worker was done is answered like
// one that found the queue full. The wait for a worker is what takes so long, not the request itself.
type hashing struct{ workers *password.Workers }

func (h hashing) Hash(ctx context.Context, text string) (string, error) {
	hash, err := h.workers.Hash(ctx, text)
	return hash, busy(err)
}

func (h hashing) Check(ctx context.Context, hash, text string) (ok, rehash bool, err error) {
	ok, rehash, err = h.workers.Check(ctx, hash, text)
	return ok, rehash, busy(err)
}

func busy(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &password.Busy{RetryAfter: 2 * time.Second}
	}
	return err
}

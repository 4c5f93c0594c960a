// Package keys keeps the set of signing keys in force. The keys are read from the store and opened with the root key,
// or given by the operator. It makes the first key if there is none, and rotates and revokes keys by command, on every
// replica within seconds and without a restart.
//
// It decides nothing about tokens. A replica that cannot reach the store continues with the keys that it has read last,
// and sees a revocation when the store is back.
package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"gatehouse/auth/internal/clock"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
)

const (
	// pollEvery is how often the store is read. A revocation reaches a replica after this time and one query;
	// docs/tokens.md#rotation promises 10 s.
	pollEvery = 5 * time.Second
	// pollTimeout bounds one query.
	pollTimeout = 3 * time.Second
	// margin is how much longer than the life of an access token its key verifies.
	margin = 10 * time.Minute
)

// Options are the dependencies of a Keeper.
type Options struct {
	DB   *store.DB
	Root *secret.Root
	// Clock gets PostgreSQL's time with each poll; nil: no clock.
	Clock *clock.Clock
	// Now replaces Clock's time in tests; nil: Clock's time counts.
	Now func() time.Time
	// Log gets changes and failures; nil: none.
	Log *slog.Logger
}

// Settings are the settings that an operator may change while the daemon runs. Fields without a tag are computed from
// other settings.
type Settings struct {
	// Given are the keys of AUTH_JWT_KEYS. If there are any, the store's keys are not read.
	Given []token.Entry
	// Algorithm is AUTH_JWT_ALGORITHM: the kind of keys that are made; with HS256, Secret signs.
	Algorithm token.Algorithm
	// Secret is JWT_SECRET as a key, with JWT_KEY_ID if set.
	Secret *token.Key
	// Tokens signed with JWT_SECRET are accepted.
	AcceptSecret bool `env:"AUTH_JWT_ACCEPT_HS256" envDefault:"true" table:"JWT"`
	// Issuer is JWT_ISSUER.
	Issuer string
	// AccessLife is JWT_EXP: the life of what a key has signed.
	AccessLife time.Duration
}

// Keeper holds the set in force. Its methods may be called from any goroutine.
type Keeper struct {
	Options
	live token.Live

	mu       sync.Mutex // guards the fields below; never held during a query
	settings Settings
	rows     []store.SigningKey    // as last read
	opened   map[string]*token.Key // by kid
	troubled map[string]bool       // kids whose failure was logged
	inForce  string                // content of the live set
	failing  bool                  // the last poll failed
}

// New returns a Keeper without keys.
func New(o Options, s Settings) *Keeper {
	if o.Now == nil {
		o.Now = o.Clock.Now
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Keeper{Options: o, settings: s, opened: map[string]*token.Key{}, troubled: map[string]bool{}}
}

// Live returns the set in force, for signers and verifiers.
func (k *Keeper) Live() *token.Live { return &k.live }

// Start reads the keys, makes the first key if there is none and one is needed, and puts the set in force. A stored key
// that cannot be opened is an error, which names the settings that may be wrong: no new key ever replaces it.
func (k *Keeper) Start(ctx context.Context) error {
	s, _ := k.snapshot()
	rows, err := k.obtain(ctx, s)
	if err != nil {
		return err
	}
	k.replaceRows(rows)
	if err := k.rebuild(true); err != nil {
		return err
	}
	if signer := k.live.Load().Signer(); len(s.Given) == 0 && signer.Algorithm() != s.Algorithm {
		k.Log.Warn("the current signing key is of another kind than AUTH_JWT_ALGORITHM; auth keys rotate makes one "+
			"of that kind",
			"kid", signer.ID(), "current", signer.Algorithm().String(), "setting", s.Algorithm.String())
	}
	return k.reseal(ctx)
}

// obtain reads the keys that the settings need, and makes the first key if there is none and one is needed.
func (k *Keeper) obtain(ctx context.Context, s Settings) ([]store.SigningKey, error) {
	if len(s.Given) > 0 {
		return nil, nil
	}
	rows, err := k.fetch(ctx)
	if err != nil {
		return nil, err
	}
	if len(rows) > 0 || s.Algorithm == token.HS256 {
		return rows, nil
	}
	row, err := k.generate(s.Algorithm, k.at())
	if err != nil {
		return nil, err
	}
	rows, err = k.DB.FirstSigningKey(ctx, row)
	if err != nil {
		return nil, fmt.Errorf("keys: first key: %w", err)
	}
	if rows[0].KID == row.KID {
		k.Log.Info("made the first signing key", "kid", row.KID, "algorithm", row.Algorithm)
	}
	return rows, nil
}

// Check is Start for auth check: it makes, writes and logs nothing. A database without keys is not an error.
func (k *Keeper) Check(ctx context.Context) error {
	if err := k.read(ctx); err != nil {
		return err
	}
	if s, rows := k.snapshot(); len(rows) == 0 && len(s.Given) == 0 && s.Algorithm != token.HS256 {
		return nil
	}
	return k.rebuild(true)
}

// Run reads the keys again every five seconds until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.Poll(ctx)
		}
	}
}

// Poll reads the keys once and puts a changed set in force. It logs failures; then the keys that were read last stay,
// and still change their states when their time comes.
func (k *Keeper) Poll(ctx context.Context) {
	query, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	err := k.read(query)
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	changed := k.failing != (err != nil)
	k.failing = err != nil
	k.mu.Unlock()
	if changed && err != nil {
		k.Log.Error("cannot read the signing keys and the time; going on with those read last", "error", err)
	} else if changed {
		k.Log.Info("can read the signing keys and the time again")
	}
	if err := k.rebuild(false); err != nil {
		k.Log.Error("keeping the signing keys already in force", "error", err)
	}
	if err == nil {
		if err := k.reseal(query); err != nil {
			k.Log.Warn("cannot seal a signing key again", "error", err)
		}
	}
}

// Failing reports whether the last poll failed.
func (k *Keeper) Failing() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failing
}

// Prepared is a set of keys made from other settings, ready to be put in force.
type Prepared struct {
	keeper   *Keeper
	settings Settings
	rows     []store.SigningKey
	set      *token.Set
	content  string
}

// Prepare makes the set for other settings, without putting it in force. It queries the store only if the settings need
// the store's keys and the settings in force do not.
func (k *Keeper) Prepare(ctx context.Context, s Settings) (*Prepared, error) {
	old, rows := k.snapshot()
	if len(s.Given) == 0 && (len(old.Given) > 0 || len(rows) == 0 && s.Algorithm != token.HS256) {
		query, cancel := context.WithTimeout(ctx, pollTimeout)
		defer cancel()
		var err error
		if rows, err = k.obtain(query, s); err != nil {
			return nil, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	entries, err := k.entries(s, rows, true)
	if err != nil {
		return nil, err
	}
	set, err := newSet(s, entries)
	if err != nil {
		return nil, err
	}
	return &Prepared{k, s, rows, set, contentOf(entries)}, nil
}

// Apply puts the prepared set in force. It cannot fail.
func (p *Prepared) Apply() {
	k := p.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	k.settings, k.rows = p.settings, p.rows
	k.use(p.set, p.content)
}

func (k *Keeper) snapshot() (Settings, []store.SigningKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.settings, k.rows
}

// read reads the rows and the time; only the time if the operator gives the keys.
func (k *Keeper) read(ctx context.Context) error {
	if s, _ := k.snapshot(); len(s.Given) > 0 {
		return k.readTime(ctx)
	}
	rows, err := k.fetch(ctx)
	if err != nil {
		return err
	}
	k.replaceRows(rows)
	return nil
}

func (k *Keeper) fetch(ctx context.Context) ([]store.SigningKey, error) {
	rows, at, err := k.DB.SigningKeys(ctx)
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	if k.Clock != nil {
		k.Clock.Take(at)
	}
	return rows, nil
}

func (k *Keeper) readTime(ctx context.Context) error {
	if k.Clock == nil {
		return nil
	}
	at, err := k.DB.Time(ctx)
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	k.Clock.Take(at)
	return nil
}

func (k *Keeper) replaceRows(rows []store.SigningKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rows = rows
}

// at returns the time by PostgreSQL's clock, in UTC and whole microseconds.
func (k *Keeper) at() time.Time { return k.Now().UTC().Truncate(time.Microsecond) }

// rebuild makes the set from the known rows and settings, and puts it in force if it has changed. If strict, a key that
// cannot be opened is an error; otherwise it is logged once and left out.
func (k *Keeper) rebuild(strict bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	entries, err := k.entries(k.settings, k.rows, strict)
	if err != nil {
		return err
	}
	content := contentOf(entries)
	if k.live.Load() != nil && k.inForce == content {
		return nil
	}
	set, err := newSet(k.settings, entries)
	if err != nil {
		return err
	}
	k.use(set, content)
	return nil
}

// entries returns the keys of settings and rows with their states. k.mu is held.
func (k *Keeper) entries(s Settings, rows []store.SigningKey, strict bool) ([]token.Entry, error) {
	if len(s.Given) > 0 {
		return s.Given, nil
	}
	stored, err := k.open(rows, strict)
	if err != nil {
		return nil, err
	}
	entries, err := token.StatesAt(stored, k.at(), s.AccessLife+margin)
	if err != nil && s.Algorithm != token.HS256 {
		return nil, fmt.Errorf("keys: %w; auth keys rotate makes a new one", err)
	}
	if s.Algorithm == token.HS256 {
		for i := range entries { // they verify what they signed before the switch
			if entries[i].State != token.Revoked {
				entries[i].State = token.Previous
			}
		}
	}
	return entries, nil
}

// contentOf returns a text of the keys and states, by which an unchanged set is recognized.
func contentOf(entries []token.Entry) string {
	content := "keys:" // never empty
	for _, e := range entries {
		content += e.Key.ID() + "\x00" + e.State.String() + "\x00"
	}
	return content
}

func newSet(s Settings, entries []token.Entry) (*token.Set, error) {
	set, err := token.NewSet(token.SetConfig{
		Keys: entries, Secret: s.Secret, AcceptSecret: s.AcceptSecret, SignWithSecret: s.Algorithm == token.HS256,
		Issuer: s.Issuer,
	})
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	return set, nil
}

// use puts a set in force. k.mu is held.
func (k *Keeper) use(set *token.Set, content string) {
	if old := k.live.Load(); old != nil && old.Signer().ID() != set.Signer().ID() {
		k.Log.Info("another key signs", "kid", set.Signer().ID(), "algorithm", set.Signer().Algorithm().String())
	}
	k.inForce = content
	k.live.Store(set)
}

// open opens the rows, each only once. It does not open revoked keys, whose ids are enough.
func (k *Keeper) open(rows []store.SigningKey, strict bool) ([]token.Stored, error) {
	var stored []token.Stored
	var problems []error
	for _, row := range rows {
		key := k.opened[row.KID]
		switch {
		case !row.RevokedAt.IsZero():
			key = token.RevokedKey(row.KID)
		case key == nil:
			var err error
			if key, err = openRow(k.Root, row); err != nil {
				problems = append(problems, err)
				if !strict && !k.troubled[row.KID] {
					k.troubled[row.KID] = true
					k.Log.Error("a signing key cannot be used here", "error", err)
				}
				continue
			}
			k.opened[row.KID] = key
		}
		stored = append(stored, token.Stored{Key: key, SignsAt: row.SignsAt, RevokedAt: row.RevokedAt})
	}
	if strict {
		return stored, errors.Join(problems...)
	}
	return stored, nil
}

// Age returns how long the current key has been signing, by the last read of the database. It returns false if the
// operator gives the key, whose age is unknown.
func (k *Keeper) Age() (time.Duration, bool) {
	s, rows := k.snapshot()
	set := k.live.Load()
	if set == nil || len(s.Given) > 0 || s.Algorithm == token.HS256 {
		return 0, false
	}
	for _, row := range rows {
		if row.KID == set.Signer().ID() {
			return k.Now().Sub(row.SignsAt), true
		}
	}
	return 0, false
}

// Package keys maintains the set of keys that sign and verify tokens. The keys are read from the database and decrypted
// with the root key, or the operator sets them in AUTH_JWT_KEYS. The package makes the first key if there is none. Its
// commands rotate and revoke keys; each replica notices the change within seconds and without a restart.
//
// The package decides nothing about tokens. A replica that cannot reach the database continues with the keys that it
// has read last, and sees a revocation when the database is reachable again.
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
	// pollEvery is how often the keys are read from the database. A revocation takes effect on a replica after at most
	// this time and the time of one query; docs/tokens.md#rotation promises 10 s.
	pollEvery = 5 * time.Second
	// pollTimeout limits the time of one query.
	pollTimeout = 3 * time.Second
	// margin is how long a key still verifies tokens after the last token that it signed has expired.
	margin = 10 * time.Minute
)

// Options are the dependencies of a Keeper.
type Options struct {
	DB   *store.DB
	Root *secret.Root
	// Clock is set to PostgreSQL's time with each poll; nil: no clock.
	Clock *clock.Clock
	// Now replaces Clock.Now in tests; nil: Clock.Now is used.
	Now func() time.Time
	// Log receives changes of the keys, and failures; nil: nothing is logged.
	Log *slog.Logger
}

// Settings are the settings that an operator may change while the daemon runs. Fields without a tag are computed from
// other settings.
type Settings struct {
	// Given are the keys of AUTH_JWT_KEYS. If there are any, the keys in the database are not used.
	Given []token.Entry
	// Algorithm is AUTH_JWT_ALGORITHM, the algorithm of new keys. HS256 means that no key but Secret signs.
	Algorithm token.Algorithm
	// Secret is JWT_SECRET as a key, whose id is JWT_KEY_ID if that is set.
	Secret *token.Key
	// Tokens signed with JWT_SECRET are accepted.
	AcceptSecret bool `env:"AUTH_JWT_ACCEPT_HS256" envDefault:"true" table:"JWT"`
	// Issuer is JWT_ISSUER.
	Issuer string
	// AccessLife is JWT_EXP: how long an access token is valid.
	AccessLife time.Duration
}

// Keeper holds the set of keys in use. Its methods may be called from any goroutine.
type Keeper struct {
	Options
	live token.Live

	mu       sync.Mutex // guards the fields below; never held during a query
	settings Settings
	rows     []store.SigningKey    // the keys as last read from the database
	opened   map[string]*token.Key // the decrypted keys by kid
	troubled map[string]bool       // the kids of keys whose failure was logged
	inForce  string                // contentOf the keys in live
	failing  bool                  // the last poll failed
}

// New returns a Keeper that has no keys until Start.
func New(o Options, s Settings) *Keeper {
	if o.Now == nil {
		o.Now = o.Clock.Now
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Keeper{Options: o, settings: s, opened: map[string]*token.Key{}, troubled: map[string]bool{}}
}

// Live returns the set of keys in use, for code that signs or verifies tokens. The set changes when keys change.
func (k *Keeper) Live() *token.Live { return &k.live }

// Start reads the keys, makes the first key if one is needed and there is none, and puts the set in use. If a stored
// key cannot be decrypted, Start returns an error that names the settings that may be wrong. It never replaces such a
// key by a new one.
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

// obtain reads the keys that the settings require from the database. It makes the first key if one is required and
// there is none.
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

// Check makes the same checks as Start, for the command "auth check", but creates, writes and logs nothing. A database
// without keys is not an error.
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

// Poll reads the keys once, and if they have changed, puts the new set in use. A failure is logged, and the keys that
// were read last stay in use; they still change their states as time passes.
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

// Prepared is a set of keys made from changed settings. Apply puts it in use.
type Prepared struct {
	keeper   *Keeper
	settings Settings
	rows     []store.SigningKey
	set      *token.Set
	content  string
}

// Prepare makes the set of keys for changed settings, without putting it in use. It queries the database only if the
// new settings need the keys stored in the database and the present settings do not.
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

// Apply puts the prepared set in use. It cannot fail.
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

// read reads the keys and the time from the database, or only the time if AUTH_JWT_KEYS has the keys.
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

// at returns Now in UTC and whole microseconds, the precision of PostgreSQL's timestamps.
func (k *Keeper) at() time.Time { return k.Now().UTC().Truncate(time.Microsecond) }

// rebuild makes the set from the keys read last and the settings, and puts it in use if it differs from the present
// set. If strict is true, a key that cannot be decrypted is an error; otherwise such a key is logged once and left out.
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

// entries returns the keys of AUTH_JWT_KEYS if there are any, or else those of rows, with their states. The caller
// holds k.mu.
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
		for i := range entries { // these keys verify the tokens that they signed before the operator switched to HS256
			if entries[i].State != token.Revoked {
				entries[i].State = token.Previous
			}
		}
	}
	return entries, nil
}

// contentOf returns a text made of the keys' ids and states. Two sets with the same text are the same.
func contentOf(entries []token.Entry) string {
	content := "keys:" // so that the text is not empty, even without keys
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

// use puts a set in use and logs a change of the signing key. The caller holds k.mu.
func (k *Keeper) use(set *token.Set, content string) {
	if old := k.live.Load(); old != nil && old.Signer().ID() != set.Signer().ID() {
		k.Log.Info("another key signs", "kid", set.Signer().ID(), "algorithm", set.Signer().Algorithm().String())
	}
	k.inForce = content
	k.live.Store(set)
}

// open decrypts the keys of rows that were not decrypted before. It does not decrypt revoked keys, since only their ids
// are needed.
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

// Age returns how long the current key has been signing, as of the last read of the database. The result is false if
// the age is not known, because the key is set in AUTH_JWT_KEYS or JWT_SECRET.
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

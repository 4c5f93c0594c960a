package keys

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/must"
)

// world is one database and a clock, with any number of replicas on them.
type world struct {
	t   *testing.T
	db  *store.DB
	now time.Time
}

func newWorld(t *testing.T) *world {
	return &world{t: t, db: storetest.Open(t), now: time.Unix(1930464000, 0).UTC()}
}

func (w *world) settings() Settings {
	key, err := token.NewSecret("", []byte("a shared secret of more than 32 bytes"))
	must.Succeed(w.t, err)
	return Settings{Algorithm: token.ES256, Secret: key, AcceptSecret: true, Issuer: "https://auth.example.org",
		AccessLife: time.Hour}
}

func (w *world) replica(root *secret.Root, change func(*Settings)) *Keeper {
	s := w.settings()
	if change != nil {
		change(&s)
	}
	return New(Options{DB: w.db, Root: root, Now: func() time.Time { return w.now }}, s)
}

func (w *world) started(root *secret.Root, change func(*Settings)) *Keeper {
	w.t.Helper()
	k := w.replica(root, change)
	must.Succeed(w.t, k.Start(w.t.Context()))
	return k
}

func (w *world) sign(k *Keeper) string {
	w.t.Helper()
	text, err := k.Live().Load().Sign(nil, &token.Claims{Subject: "u", ExpiresAt: w.now.Add(time.Hour).Unix()})
	must.Succeed(w.t, err)
	return string(text)
}

func (w *world) verify(k *Keeper, text string, want error) {
	w.t.Helper()
	var c token.Claims
	if _, err := k.Live().Load().Verify(&c, text, w.now); !errors.Is(err, want) {
		w.t.Errorf("verify: %v, want %v", err, want)
	}
}

// states are the keys as List shows them, oldest first, without their ids.
func (w *world) states(k *Keeper, want ...string) {
	w.t.Helper()
	list, err := k.List(w.t.Context())
	var have []string
	for _, l := range list {
		have = append([]string{l.Algorithm + " " + l.State}, have...)
	}
	if err != nil || strings.Join(have, ", ") != strings.Join(want, ", ") {
		w.t.Errorf("keys are %q (%v), want %q", have, err, want)
	}
}

var root = secret.NewRoot("the root key")

func TestReplicasShareTheFirstKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	replicas := make([]*Keeper, 5)
	var wg sync.WaitGroup
	for i := range replicas {
		replicas[i] = w.replica(root, nil)
		wg.Go(func() {
			if err := replicas[i].Start(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	w.states(replicas[0], "ES256 current")
	text := w.sign(replicas[0])
	for _, k := range replicas {
		w.verify(k, text, nil)
		if !bytes.Equal(k.Live().Load().JWKS(), replicas[0].Live().Load().JWKS()) {
			t.Error("replicas publish different sets")
		}
	}
}

func TestDefaultIsRS256(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.started(root, func(s *Settings) { s.Algorithm = token.RS256 })
	w.states(k, "RS256 current")
	w.verify(k, w.sign(k), nil)
}

func TestRotate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	a, b := w.started(root, nil), w.started(root, nil)
	command := w.replica(root, func(s *Settings) { s.Algorithm = token.EdDSA })
	old := w.sign(a)

	w.now = w.now.Add(50 * time.Minute)
	fresh, err := command.Rotate(ctx)
	if err != nil || fresh.State != "next" || !fresh.SignsAt.Equal(w.now.Add(token.PublishAhead)) {
		t.Fatalf("%+v, %v", fresh, err)
	}
	if _, err := command.Rotate(ctx); err == nil || !strings.Contains(err.Error(), "published already") {
		t.Errorf("rotating twice: %v", err)
	}
	w.states(command, "ES256 current", "EdDSA next")
	a.Poll(ctx)
	b.Poll(ctx)
	if a.Live().Load().Signer().Algorithm() != token.ES256 ||
		!strings.Contains(string(a.Live().Load().JWKS()), fresh.KID) {
		t.Error("the next key signs already, or is not published")
	}

	// The hour comes; nothing is written, and a replica that lags still accepts the new key.
	w.now = w.now.Add(token.PublishAhead)
	a.Poll(ctx)
	text := w.sign(a)
	w.verify(a, text, nil)
	w.verify(b, text, nil)
	w.verify(a, w.sign(b), nil)
	w.states(command, "ES256 previous", "EdDSA current")
	if a.Live().Load().Signer().ID() != fresh.KID {
		t.Error("the next key does not sign")
	}
	w.verify(a, old, token.ErrExpired)

	w.now = w.now.Add(time.Hour + margin + time.Second)
	a.Poll(ctx)
	w.states(command, "ES256 expired", "EdDSA current")
	if n := strings.Count(string(a.Live().Load().JWKS()), `"kid"`); n != 1 {
		t.Errorf("%d keys are published", n)
	}
	must.Succeed(t, must.ErrOf(command.Rotate(ctx)))
	w.states(command, "EdDSA current", "EdDSA next")
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	a, b := w.started(root, nil), w.started(root, nil)
	stolen := w.sign(a)
	w.now = w.now.Add(time.Minute)
	fresh, err := a.Revoke(ctx, a.Live().Load().Signer().ID())
	if err != nil || fresh == nil {
		t.Fatal(fresh, err)
	}
	for _, k := range []*Keeper{a, b} {
		k.Poll(ctx)
		w.verify(k, stolen, token.ErrRevokedKey)
		if k.Live().Load().Signer().ID() != fresh.KID {
			t.Error("the fresh key does not sign")
		}
	}
	w.states(a, "ES256 revoked", "ES256 current")
	w.now = w.now.Add(time.Minute)
	next, err := a.Rotate(ctx)
	must.Succeed(t, err)
	if fresh, err := a.Revoke(ctx, next.KID); err != nil || fresh != nil {
		t.Errorf("revoking a next key: %v, %v", fresh, err)
	}
	w.states(a, "ES256 revoked", "ES256 current", "ES256 revoked")
	log, _, err := w.db.AuditLog(ctx, store.AuditFilter{Limit: 10})
	if err != nil || len(log) != 3 || log[0].Action != store.ActionKeyRevoked ||
		log[1].Action != store.ActionKeyRotated || !strings.Contains(string(log[0].Traits), next.KID) {
		t.Errorf("audit log: %v %+v", err, log)
	}
	for _, kid := range []string{next.KID, "unknown", ""} {
		if _, err := a.Revoke(ctx, kid); !errors.Is(err, ErrNoKey) {
			t.Errorf("revoking %q: %v", kid, err)
		}
	}
}

func TestAnotherRootKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	text := w.sign(w.started(root, nil))
	stranger := secret.NewRoot("another root key")
	for _, start := range []func(*Keeper) error{func(k *Keeper) error { return k.Start(ctx) },
		func(k *Keeper) error { return k.Check(ctx) }} {
		err := start(w.replica(stranger, nil))
		if err == nil || !strings.Contains(err.Error(), "AUTH_SECRET_KEY ") ||
			!strings.Contains(err.Error(), "AUTH_SECRET_KEYS_PREVIOUS") {
			t.Errorf("with another root key: %v", err)
		}
	}
	w.states(w.replica(stranger, nil), "ES256 current") // and no other key was made

	newer := secret.NewRoot("another root key", "the root key")
	w.verify(w.started(newer, nil), text, nil)
	w.verify(w.started(stranger, nil), text, nil) // it has been sealed again
	if err := w.replica(root, nil).Check(ctx); err == nil {
		t.Error("the old root key still opens the key")
	}
	w.verify(w.started(newer, nil), text, nil)
}

func TestSharedSecretSigns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	symmetric := func(s *Settings) { s.Algorithm = token.HS256 }
	k := w.started(root, symmetric)
	w.states(k)
	w.verify(k, w.sign(k), nil)
	if string(k.Live().Load().JWKS()) != `{"keys":[]}` {
		t.Errorf("published: %s", k.Live().Load().JWKS())
	}
	if _, err := k.Rotate(t.Context()); !errors.Is(err, ErrSecret) {
		t.Errorf("rotate: %v", err)
	}
	// There and back: what the key signed stays good, then it signs again.
	asymmetric := w.started(root, nil)
	text := w.sign(asymmetric)
	k = w.started(root, symmetric)
	w.verify(k, text, nil)
	w.states(k, "ES256 previous")
	set := k.Live().Load()
	k.Poll(t.Context())
	if k.Live().Load() != set {
		t.Error("a poll that changes nothing makes another set")
	}
	back, err := k.Prepare(t.Context(), w.settings())
	must.Succeed(t, err)
	if k.Poll(t.Context()); k.Live().Load() != set {
		t.Error("what is only prepared is in force")
	}
	if back.Apply(); k.Live().Load().Signer().Algorithm() != token.ES256 {
		t.Error("ES256 does not sign again")
	}
}

func TestGivenKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key, err := token.Generate(token.EdDSA)
	must.Succeed(t, err)
	given := func(s *Settings) { s.Given = []token.Entry{{Key: key, State: token.Current}} }
	k := w.started(root, given)
	w.verify(k, w.sign(k), nil)
	w.states(k, "EdDSA current")
	if _, err := k.Rotate(t.Context()); err != ErrGiven {
		t.Errorf("rotate: %v", err)
	}
	if _, err := k.Revoke(t.Context(), key.ID()); err != ErrGiven {
		t.Errorf("revoke: %v", err)
	}
	bad := w.settings()
	given(&bad)
	bad.Algorithm = token.HS256
	if _, err := k.Prepare(t.Context(), bad); err == nil {
		t.Error("a current key and the shared secret both sign")
	}
	w.verify(k, w.sign(k), nil)
	w.states(w.replica(root, nil)) // nothing was stored
	if err := w.replica(root, nil).Check(t.Context()); err != nil {
		t.Errorf("no key yet is no fault: %v", err)
	}
}

// While the store is unreachable a replica goes on, and keys still change their states in time.
func TestStoreUnavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	var log bytes.Buffer
	k := New(Options{DB: w.db, Root: root, Now: func() time.Time { return w.now },
		Log: slog.New(slog.NewTextHandler(&log, nil))}, w.settings())
	must.Succeed(t, k.Start(ctx))
	w.now = w.now.Add(time.Hour)
	next, err := k.Rotate(ctx)
	must.Succeed(t, err)
	k.Poll(ctx)
	w.db.Close()
	k.Poll(ctx)
	k.Poll(ctx)
	w.now = w.now.Add(token.PublishAhead)
	k.Poll(ctx)
	if k.Live().Load().Signer().ID() != next.KID {
		t.Error("the next key does not sign")
	}
	if n := strings.Count(log.String(), "cannot read the signing keys"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, &log)
	}
}

func TestRunEndsWithContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	k := w.started(root, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { k.Run(ctx) })
	cancel()
	wg.Wait()
}

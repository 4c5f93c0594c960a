package store_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/store"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// Two connections to the server for many clients: every transaction may meet another one's
// statements. With the documented DATABASE_URL everything works; without it the log says what to do.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	bouncer := testdb.PgBouncer(t, server, "default_pool_size = 2")
	url := bouncer.PostgresURL("postgres")
	var log bytes.Buffer
	var mu sync.Mutex
	found := map[string]error{} // by trying
	// load is how many of 80 lives failed.
	load := func(url string) (failed int) {
		db, err := store.Open(t.Context(),
			store.Options{URL: url, Settings: store.Settings{MaxConns: 8},
				Log: slog.New(slog.NewTextHandler(&log, nil))})
		must.Succeed(t, err)
		defer db.Close()
		found[url] = db.CheckPooler(t.Context())
		must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
		await.Together(8, func(int) {
			for range 10 {
				if err := life(t, db); err != nil {
					mu.Lock()
					failed++
					mu.Unlock()
				}
			}
		})
		return failed
	}
	if n := load(url + "&default_query_exec_mode=cache_describe"); n > 0 {
		t.Errorf("%d of 80 lives failed", n)
	}
	survive := load(url) == 0
	if survive != (found[url] == nil) || found[url] != nil && found[url] != store.ErrPooler {
		t.Errorf("CheckPooler says %v; prepared statements survive: %t", found[url], survive)
	}
	if err := found[url+"&default_query_exec_mode=cache_describe"]; err != nil {
		t.Errorf("with a mode without named statements: %v", err)
	}
	if survive {
		t.Log("prepared statements survive this PgBouncer")
	} else if n := strings.Count(log.String(), "default_query_exec_mode=cache_describe"); n != 1 {
		t.Errorf("the log says %d times what to do: %s", n, log.String())
	}
}

// A direct connection, and a pooler that keeps a client on one connection of the server, lose no statement, and
// a probe leaves none behind.
func TestCheckPooler_sound(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	session := testdb.PgBouncer(t, server, "default_pool_size = 8", "pool_mode = session")
	for _, url := range []string{server.PostgresURL("postgres"), session.PostgresURL("postgres")} {
		db, err := store.Open(t.Context(), store.Options{URL: url, Settings: store.Settings{MaxConns: 2}})
		must.Succeed(t, err)
		for range 3 {
			if err := db.CheckPooler(t.Context()); err != nil {
				t.Errorf("%s: %v", url, err)
			}
		}
		db.Close()
	}
}

// Many callers whose time ends at once: each gets its error, and PgBouncer, which passes on the cancel requests,
// still runs afterwards. 1.18 ends itself when such a request is broken off. Open does not wait longer than a connection
// may take for a server that hangs behind a PgBouncer that accepts.
func TestPgBouncer_callerTimeout(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	bouncer := testdb.PgBouncer(t, server, "default_pool_size = 2")
	db, err := store.Open(t.Context(),
		store.Options{URL: bouncer.PostgresURL("postgres") + "&default_query_exec_mode=cache_describe",
			Settings: store.Settings{MaxConns: 8}})
	must.Succeed(t, err)
	defer db.Close()
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
	u := addUser(t, db, "mia@example.org")
	other := testdb.Connect(t, server.PostgresURL("postgres"))
	for range 5 {
		must.Succeed(t, must.ErrOf(other.Exec(t.Context(), "begin; lock table users in access exclusive mode")))
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if _, err := db.User(ctx, u.ID); !errors.Is(err, store.ErrUnavailable) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		must.Succeed(t, must.ErrOf(other.Exec(t.Context(), "rollback")))
		for range 16 {
			wg.Go(func() {
				if _, err := db.User(t.Context(), u.ID); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	must.Succeed(t, server.Stop())
	defer server.Cont()
	if _, err := store.Open(t.Context(), store.Options{URL: bouncer.PostgresURL("postgres") + "&connect_timeout=1"}); !errors.Is(err,
		store.ErrUnavailable) {
		t.Errorf("opening: %v", err)
	}
}

// life signs a user up, in, refreshes, redeems a token and signs out.
func life(t *testing.T, db *store.DB) error {
	ctx := t.Context()
	u := newUser(uuid.NewString() + "@example.org")
	n := newToken(u, store.KindRecovery, noon)
	b := db.Batch()
	b.Take(store.Limit{Key: []byte("mail"), Size: 1e6, Refill: time.Hour}, 1, noon)
	b.InsertUser(u)
	b.InsertIdentity(emailIdentity(u))
	b.InsertToken(n)
	b.Audit(store.Audit{At: noon, Action: store.ActionUserSignedUp, Actor: u.ID})
	if err := b.Send(ctx); err != nil {
		return err
	}
	s := newSession(u, noon)
	if _, err := db.OpenSession(ctx, store.OpenSession{Session: s, IfPassword: "hash",
		Audit: store.Audit{At: noon, Action: store.ActionLogin}}); err != nil {
		return err
	}
	if _, err := db.Refresh(ctx, store.Refresh{Session: s.ID, SecretHash: secretOf, Now: noon}); err != nil {
		return err
	}
	err := db.InTx(ctx, func(tx *store.Tx) error {
		if _, err := tx.RedeemLink(ctx, n.LinkHash, []store.Kind{n.Kind}, noon); err != nil {
			return err
		}
		b := tx.Batch()
		b.UpdateUser(store.UserPatch{ID: u.ID, Now: noon, ProvidersFromIdentities: true})
		b.DeleteTokens(u.ID)
		return b.Send(ctx)
	})
	if err != nil {
		return err
	}
	if _, _, err := db.Caller(ctx, u.ID, s.ID); err != nil {
		return err
	}
	_, err = db.SignOut(ctx, store.SignOut{User: u.ID, Session: s.ID, Scope: store.ScopeGlobal, Now: noon})
	return err
}

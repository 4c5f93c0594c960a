package store_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/store"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// The database is killed, frozen, unreachable and refuses connections: every call reports it in time, and works afterwards.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	db := open(t, server.PostgresURL("postgres"), "")
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
	u := addUser(t, db, "mia@example.org")
	s := addSession(t, db, u, noon)
	calls := map[string]func(context.Context) error{
		"caller": func(ctx context.Context) error { _, _, err := db.Caller(ctx, u.ID, s); return err },
		"refresh": func(ctx context.Context) error {
			_, err := db.Refresh(ctx, store.Refresh{Session: s, SecretHash: secretOf, Counter: 1 << 40, Now: noon})
			return err
		},
		"batch": func(ctx context.Context) error {
			b := db.Batch()
			b.Audit(store.Audit{At: noon, Action: store.ActionLogin})
			return b.Send(ctx)
		},
		"transaction": func(ctx context.Context) error {
			return db.InTx(ctx, func(tx *store.Tx) error { _, err := tx.LockUser(ctx, u.ID); return err })
		},
		"ping": db.Ping,
	}
	all := func(doing string, want error) {
		t.Helper()
		for name, call := range calls {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			began := time.Now()
			if err := call(ctx); !errors.Is(err, want) {
				t.Errorf("%s, %s: %v, want %v", doing, name, err, want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s, %s took %v", doing, name, took)
			}
			cancel()
		}
	}
	// works makes calls until one succeeds: connections that died with the server are found one by one.
	works := func() {
		t.Helper()
		for name, call := range calls {
			var err error
			for range 50 {
				if err = call(t.Context()); err == nil {
					break
				}
				if !errors.Is(err, store.ErrUnavailable) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if err != nil {
				t.Errorf("%s doesn't recover: %v", name, err)
			}
		}
	}
	all("running", nil)
	server.Kill()
	all("killed", store.ErrUnavailable)
	if _, err := store.Open(t.Context(), store.Options{URL: server.PostgresURL("postgres")}); !errors.Is(err,
		store.ErrUnavailable) {
		t.Errorf("opening: %v", err)
	}
	must.Succeed(t, server.Restart(t.Context()))
	works()
	must.Succeed(t, server.Stop())
	all("frozen", store.ErrUnavailable)
	must.Succeed(t, server.Cont())
	works()
	for refusal, restore := range map[string]string{
		"select 'no more than connections refused'": "select 'nothing'",
		"alter database postgres rename to another": "alter database another rename to postgres",
	} {
		other := server.PostgresURL("template1")
		testdb.Exec(t, other, "alter database postgres allow_connections false") // first: the pool dials by itself
		testdb.Exec(t, other, "select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = 'postgres'")
		testdb.Exec(t, other, refusal)
		all(refusal, store.ErrUnavailable)
		if _, err := store.Open(t.Context(), store.Options{URL: server.PostgresURL("postgres")}); err == nil ||
			errors.Is(err, store.ErrUnavailable) {
			t.Errorf("opening after %s: %v, want an error that ends a start", refusal, err)
		}
		testdb.Exec(t, other, restore)
		testdb.Exec(t, other, "alter database postgres allow_connections true")
		works()
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := calls["caller"](gone); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller who left: %v", err)
	}
}

// With the server's connections used up callers wait for the existing ones, and none fails.
func TestPool_full(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t,
		localserver.PostgresOptions{Config: []string{"max_connections=9", "superuser_reserved_connections=3"}})
	url := server.PostgresURL("postgres")
	setup, err := pgx.Connect(t.Context(), url)
	must.Succeed(t, err)
	// Reserved connections are for superusers: be none.
	must.Succeed(t, must.ErrOf(setup.Exec(t.Context(), "create role plain login; grant all on schema public to plain")))
	setup.Close(t.Context())
	plain := "user=plain dbname=postgres host=" + server.Dir()
	db, err := store.Open(t.Context(), store.Options{URL: plain, Settings: store.Settings{MaxConns: 50}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
	u := addUser(t, db, "mia@example.org")
	await.Together(40, func(int) {
		for range 5 {
			err := db.InTx(t.Context(), func(tx *store.Tx) error {
				_, err := tx.LockUser(t.Context(), u.ID)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
	if n := db.Pool().Stat().TotalConns(); n > 6 {
		t.Errorf("%d connections on a server that gives 6", n)
	}
	db.Close()
	// A pool without a size takes what is free, less 5.
	var small *store.DB
	await.True(t, "the server ends its sessions", func() bool {
		small, err = store.Open(t.Context(), store.Options{URL: plain})
		return err == nil
	})
	defer small.Close()
	if n := small.Pool().Config().MaxConns; n != 4 {
		t.Errorf("the pool may grow to %d", n)
	}
}

// Connections are made only for a waiting caller, and beyond 4 for each core they close when idle.
func TestPool_idle(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	db, err := store.Open(t.Context(),
		store.Options{URL: url, Settings: store.Settings{MaxConns: 100, MaxConnIdleTime: time.Millisecond,
			HealthCheckPeriod: time.Millisecond}})
	must.Succeed(t, err)
	defer db.Close()
	if n := db.Pool().Stat().TotalConns(); n != 0 {
		t.Errorf("%d connections that nobody asked for", n)
	}
	floor := db.Pool().Config().MinConns
	busy := floor + 10
	var wg, ready, counted sync.WaitGroup
	ready.Add(int(busy))
	counted.Add(1)
	for range busy {
		wg.Go(func() {
			if err := db.With(
				t.Context(), func(*pgx.Conn) error { ready.Done(); counted.Wait(); return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	ready.Wait()
	if n := db.Pool().Stat().TotalConns(); n < busy { // while all are held: some close as soon as they rest
		t.Errorf("%d connections, want %d", n, busy)
	}
	counted.Done()
	wg.Wait()
	await.True(t, fmt.Sprintf("%d connections", floor), func() bool { return db.Pool().Stat().TotalConns() == floor },
		func() string { return fmt.Sprint("there are ", db.Pool().Stat().TotalConns()) })
}

func TestOpen_refuses(t *testing.T) {
	t.Parallel()
	f := func(o store.Options) {
		t.Helper()
		if _, err := store.Open(t.Context(), o); err == nil || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	f(store.Options{URL: "postgres://%zz"})
	for _, ns := range []string{"Auth", "1a", "a-b", "ä", "a b", `a"`, "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"} {
		f(store.Options{URL: "host=/nowhere", Settings: store.Settings{Namespace: ns}})
	}
}

// Two transactions that wait for each other: one is run again, and both succeed.
func TestInTx_deadlock(t *testing.T) {
	t.Parallel()
	db := open(t, testdb.Postgres(t), "")
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
	users := []uuid.UUID{addUser(t, db, "a@example.org").ID, addUser(t, db, "b@example.org").ID}
	var wg, both sync.WaitGroup
	both.Add(2)
	for i := range 2 {
		wg.Go(func() {
			first := true
			err := db.InTx(t.Context(), func(tx *store.Tx) error {
				if _, err := tx.LockUser(t.Context(), users[i]); err != nil {
					return err
				}
				if first {
					first = false
					both.Done()
					both.Wait()
				}
				_, err := tx.LockUser(t.Context(), users[1-i])
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A caller whose time ends while a statement waits gets its error once the server has cancelled the statement:
// nothing of it happens later, and the connection is good for the next caller.
func TestCallerTimeout(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	db := open(t, url, "")
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
	u := addUser(t, db, "mia@example.org")
	connect := func() *pgx.Conn {
		t.Helper()
		c, err := pgx.Connect(t.Context(), url)
		must.Succeed(t, err)
		t.Cleanup(func() { c.Close(context.Background()) })
		return c
	}
	other, observer := connect(), connect() // a transaction sees pg_stat_activity as of its first read
	connections := func() []int {
		t.Helper()
		rows, _ := observer.Query(t.Context(),
			"select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend' "+
				"order by pid")
		pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
		must.Succeed(t, err)
		return pids
	}
	calls := map[string]func(context.Context) error{
		"batch": func(ctx context.Context) error {
			b := db.Batch()
			b.Audit(store.Audit{At: noon, Action: store.ActionLogin})
			b.DeleteUser(u.ID)
			return b.Send(ctx)
		},
		"transaction": func(ctx context.Context) error {
			return db.InTx(ctx, func(tx *store.Tx) error { _, err := tx.LockUser(ctx, u.ID); return err })
		},
	}
	for name, call := range calls {
		must.Succeed(t, must.ErrOf(other.Exec(t.Context(), "begin; lock table users in access exclusive mode")))
		before := connections()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if err := call(ctx); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		if now := connections(); !slices.Equal(now, before) {
			t.Errorf("%s: the connections are %v, they were %v", name, now, before)
		}
		var waiting int
		if err := observer.QueryRow(t.Context(),
			"select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'").
			Scan(&waiting); err != nil || waiting > 0 {
			t.Errorf("%s: %d statements of callers who were refused wait, %v", name, waiting, err)
		}
		must.Succeed(t, must.ErrOf(other.Exec(t.Context(), "rollback")))
	}
	var rows int
	if err := other.QueryRow(t.Context(),
		"select (select count(*) from audit where at = $1) - (select count(*) from users) + 1",
		noon).Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// A transaction whose caller's time ends before the commit is undone, and its connection stays.
func TestInTx_tooLate(t *testing.T) {
	t.Parallel()
	db, err := store.Open(t.Context(), store.Options{URL: testdb.Postgres(t), Settings: store.Settings{MaxConns: 1}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
	u := addUser(t, db, "mia@example.org")
	pid := func() (pid uint32) {
		t.Helper()
		must.Succeed(t, db.With(t.Context(), func(c *pgx.Conn) error { pid = c.PgConn().PID(); return nil }))
		return pid
	}
	before := pid()
	ctx, cancel := context.WithCancel(t.Context())
	err = db.InTx(ctx, func(tx *store.Tx) error {
		b := tx.Batch()
		b.DeleteUser(u.ID)
		defer cancel()
		return b.Send(ctx)
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := db.User(t.Context(), u.ID); err != nil {
		t.Error(err)
	}
	if now := pid(); now != before {
		t.Errorf("the connection is %d, it was %d", now, before)
	}
}

// A statement that ends well while its cancel request is still on its way leaves a connection that is not used again.
func TestCallerTimeout_lateCancelRequest(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	var hold atomic.Bool
	dialled, free := make(chan struct{}, 1), make(chan struct{})
	t.Cleanup(func() { close(free) })
	db, err := store.Open(t.Context(),
		store.Options{URL: url, Settings: store.Settings{MaxConns: 1},
			Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if hold.CompareAndSwap(true, false) {
					dialled <- struct{}{}
					select {
					case <-free:
					case <-ctx.Done():
					}
					return nil, errors.New("held")
				}
				return new(net.Dialer).DialContext(ctx, network, addr)
			}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	must.Succeed(t, must.ErrOf(db.Migrate(t.Context())))
	u := addUser(t, db, "mia@example.org")
	other := testdb.Connect(t, url)
	must.Succeed(t, must.ErrOf(other.Exec(t.Context(), "begin; lock table users in access exclusive mode")))
	hold.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := db.User(ctx, u.ID)
		done <- err
	}()
	await.True(t, "the statement waits for the lock", func() bool {
		waiting := 0
		must.Succeed(t, other.QueryRow(t.Context(),
			"select count(*) from pg_locks where not granted and relation = 'users'::regclass").
			Scan(&waiting))
		return waiting > 0
	})
	cancel()
	select {
	case <-dialled:
	case <-time.After(time.Minute):
		t.Fatal("nobody tells the server to cancel")
	}
	must.Succeed(t, must.ErrOf(other.Exec(t.Context(), "rollback")))
	<-done // well, but on a starved machine
	if _, err := db.User(t.Context(), u.ID); err != nil {
		t.Errorf("the next caller: %v", err)
	}
}

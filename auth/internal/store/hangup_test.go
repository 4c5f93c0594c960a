package store_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// dialling opens a fresh database over so many connections, and counts what is dialled: connections of the pool, and
// cancel requests.
func dialling(t *testing.T, conns int) (*store.DB, *atomic.Int64, string) {
	t.Helper()
	dials, url := new(atomic.Int64), storetest.URL(t)
	db, err := store.Open(t.Context(), store.Options{URL: url,
		Settings: store.Settings{MaxConns: conns, MaxConnIdleTime: time.Hour},
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	return db, dials, url
}

// lockedTable is a transaction of another program that holds a lock; free releases it.
func lockedTable(t *testing.T, url, table string) (waits func() bool, free func()) {
	t.Helper()
	c := testdb.Connect(t, url)
	must.Succeed(t, must.ErrOf(c.Exec(t.Context(), "begin; lock table "+table+" in access exclusive mode")))
	waits = func() bool {
		n := 0
		must.Succeed(t, c.QueryRow(t.Context(), "select count(*) from pg_locks where not granted and relation = $1::regclass",
			table).Scan(&n))
		return n > 0
	}
	return waits, func() { c.Exec(t.Context(), "rollback") }
}

// A statement whose caller hangs up runs out: its outcome stands, and the connection serves the next caller.
func TestHangUp_runsOut(t *testing.T) {
	t.Parallel()
	db, dials, url := dialling(t, 1)
	u := addUser(t, db, "mia@example.org")
	write := func(ctx context.Context) error {
		b := db.Batch()
		b.Audit(store.Audit{At: noon, Action: store.ActionLogin, Actor: u.ID})
		return b.Send(ctx)
	}
	if err := write(t.Context()); err != nil { // prepares
		t.Fatal(err)
	}
	for try := range 10 {
		written := len(trail(t, db))
		waits, free := lockedTable(t, url, "audit")
		before, done := dials.Load(), make(chan error, 1)
		ctx, hangUp := context.WithCancel(t.Context())
		go func() { done <- write(ctx) }()
		await.True(t, "the statement waits", waits)
		at := time.Now()
		hangUp()
		time.Sleep(20 * time.Millisecond)
		free()
		err := <-done
		if time.Since(at) > 200*time.Millisecond && try < 9 { // a starved machine
			continue
		}
		if err != nil || dials.Load() != before {
			t.Errorf("%v, and %d dials more", err, dials.Load()-before)
		}
		if n := len(trail(t, db)); n != written+1 {
			t.Errorf("%d rows, there were %d", n, written)
		}
		return
	}
}

// A statement that runs on is cancelled: a while after its caller hung up, or at the caller's deadline.
func TestHangUp_cancelled(t *testing.T) {
	t.Parallel()
	for name, deadline := range map[string]time.Duration{"later": time.Hour, "at the deadline": time.Second / 8} {
		db, dials, url := dialling(t, 1)
		u := addUser(t, db, "mia@example.org")
		waits, free := lockedTable(t, url, "users")
		before, done := dials.Load(), make(chan error, 1)
		timed, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		ctx, hangUp := context.WithCancel(timed)
		go func() {
			_, err := db.User(ctx, u.ID)
			done <- err
		}()
		await.True(t, "the statement waits", waits)
		began := time.Now()
		hangUp()
		if err := <-done; err == nil || dials.Load() != before+1 {
			t.Errorf("%s: %v, and %d dials more", name, err, dials.Load()-before)
		}
		t.Logf("%s: cancelled %v after the hang-up", name, time.Since(began))
		free()
		if _, err := db.User(t.Context(), u.ID); err != nil {
			t.Errorf("%s: the next caller: %v", name, err)
		}
	}
}

// A caller that has hung up waits for no connection, and nothing is sent for it.
func TestHangUp_waiting(t *testing.T) {
	t.Parallel()
	db, dials, _ := dialling(t, 1)
	u := addUser(t, db, "mia@example.org")
	held, free := make(chan bool), make(chan bool)
	go db.With(t.Context(), func(*pgx.Conn) error { held <- true; <-free; return nil })
	<-held
	ctx, hangUp := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- db.InTx(ctx, func(tx *store.Tx) error { _, err := tx.LockUser(ctx, u.ID); return err })
	}()
	time.Sleep(10 * time.Millisecond) // most times it waits by then; the outcome is the same
	hangUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(free)
	before := dials.Load()
	err := db.With(t.Context(), func(c *pgx.Conn) error { // of a caller that hangs up once it has the connection
		return store.TxOn(ctx, db, c, func(*store.Tx) error { t.Error("a transaction began"); return nil })
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := db.User(t.Context(), u.ID); err != nil || dials.Load() != before {
		t.Errorf("%v, and %d dials more", err, dials.Load()-before)
	}
}

// Hang-ups neither cancel nor close anything: the pool keeps its connections, and others are served. With
// AUTH_TEST_HANGUPS=1m they go on for that long.
func TestHangUp_flood(t *testing.T) {
	lasts := 2 * time.Second
	if d, err := time.ParseDuration(os.Getenv("AUTH_TEST_HANGUPS")); err == nil {
		lasts = d
	}
	const conns = 10
	db, dials, _ := dialling(t, conns)
	u, other := addUser(t, db, "mia@example.org"), addUser(t, db, "tom@example.org")
	s := addSession(t, db, other, noon)
	fill(db, conns)
	calm := serve(t, db, other, s, lasts)
	for try := range 5 {
		fill(db, conns)
		before := dials.Load()
		gone, busy := flood(t, db, u, func() []time.Duration { return serve(t, db, other, s, lasts) })
		t.Logf("%d hang-ups; p50 %v calm, %v beside them; p95 %v, %v", gone, calm[len(calm)/2], busy[len(busy)/2],
			calm[len(calm)*95/100], busy[len(busy)*95/100])
		n, left := dials.Load()-before, db.Pool().Stat().TotalConns()
		if n == 0 && left == conns && gone > 0 {
			return
		}
		// On a starved machine a statement outlives its caller for so long that it is cancelled.
		if try == 4 {
			t.Fatalf("%d hang-ups led to %d dials, and the pool has %d connections left", gone, n, left)
		}
	}
}

// fill has the pool open all its connections.
func fill(db *store.DB, conns int) {
	var all, ready sync.WaitGroup
	ready.Add(conns)
	for range conns {
		all.Go(func() {
			db.With(context.Background(), func(*pgx.Conn) error { ready.Done(); ready.Wait(); return nil })
		})
	}
	all.Wait()
}

// flood makes 400 calls a second that hang up while others are served, and returns how many did, and how long the
// others' calls took.
func flood(t *testing.T, db *store.DB, u store.User, serve func() []time.Duration) (int64, []time.Duration) {
	t.Helper()
	stop := make(chan struct{})
	var gone atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		tick := time.NewTicker(time.Second / 400)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-tick.C:
				all.Go(func() { hangUpOnce(db, u, i, &gone) })
			}
		}
	})
	busy := serve()
	close(stop)
	all.Wait()
	return gone.Load(), busy
}

// hangUpOnce is a caller that hangs up while its statement, or its transaction, is under way.
func hangUpOnce(db *store.DB, u store.User, i int, gone *atomic.Int64) {
	ctx, hangUp := context.WithCancel(context.Background())
	defer hangUp()
	defer time.AfterFunc(rand.N(2*time.Millisecond), hangUp).Stop()
	switch i % 4 {
	case 0:
		db.InTx(ctx, func(tx *store.Tx) error { _, err := tx.LockUser(ctx, u.ID); return err })
	case 1:
		db.User(ctx, u.ID)
	default: // longer than most statements, so that the hang-up comes while it runs
		db.With(ctx, func(c *pgx.Conn) error { _, err := c.Exec(ctx, "select pg_sleep(0.002)"); return err })
	}
	if ctx.Err() != nil {
		gone.Add(1)
	}
}

// serve makes calls of other clients for a while, and returns how long they took, in order.
func serve(t *testing.T, db *store.DB, u store.User, session uuid.UUID, lasts time.Duration) (took []time.Duration) {
	t.Helper()
	for end := time.Now().Add(lasts); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		began := time.Now()
		if _, _, err := db.Caller(t.Context(), u.ID, session); err != nil {
			t.Error(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	return took
}

// Package storetest gives a test its own migrated database and counts what goes over the wire.
//
// It is for tests only; databases live on the PostgreSQL that testdb starts once per test binary.
package storetest

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gatehouse/auth/internal/store"
	"gatehouse/shared/testdb"
)

var migrated = testdb.NewTemplate(func(url string) error {
	ctx := context.Background()
	db, err := store.Open(ctx, store.Options{URL: url, Settings: store.Settings{MaxConns: 1}})
	if err != nil {
		return err
	}
	defer db.Close()
	if _, err = db.Migrate(ctx); err != nil || !watched {
		return err
	}
	return watch(ctx, url)
})

// URL is the DATABASE_URL of a fresh database that has the whole schema.
func URL(t testing.TB) string {
	t.Helper()
	return migrated.New(t)
}

// Open opens a fresh database that has the whole schema; it is closed when t ends.
func Open(t testing.TB) *store.DB {
	t.Helper()
	return open(t, store.Options{URL: URL(t), Settings: store.Settings{MaxConns: 32}})
}

func open(t testing.TB, o store.Options) *store.DB {
	t.Helper()
	db, err := store.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	urls.Store(db, o.URL)
	t.Cleanup(func() {
		urls.Delete(db)
		db.Close()
	})
	return db
}

var urls sync.Map // of each open *store.DB

// Exec runs a statement of the test's own on a database that this package opened: to pretend that time has passed on
// PostgreSQL's clock, which no test sets.
func Exec(t testing.TB, db *store.DB, sql string, args ...any) {
	t.Helper()
	url, _ := urls.Load(db)
	testdb.Exec(t, url.(string), sql, args...)
}

// Text returns the text that a query of the test's own finds in a database that this package opened.
func Text(t testing.TB, db *store.DB, sql string, args ...any) string {
	t.Helper()
	url, _ := urls.Load(db)
	return testdb.One[string](t, url.(string), sql, args...)
}

// Claim claims the due messages of all channels, most of each.
func Claim(ctx context.Context, db *store.DB, now time.Time, lease time.Duration, most int) ([]store.Message, error) {
	var all []store.Message
	for _, channel := range []string{"email", "sms", "hook"} {
		list, err := db.ClaimMessagesOf(ctx, channel, now, lease, most)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// Trips counts round trips: the server's ReadyForQuery answers, but for those to an empty query, by which the pool
// checks that a connection idle for a second is still open.
type Trips struct{ n atomic.Int64 }

// During is how many round trips f makes. Run f once before, so that its statements are prepared.
func (c *Trips) During(f func()) int64 {
	before := c.n.Load()
	f()
	return c.n.Load() - before
}

// Dial is for store.Options.
func (c *Trips) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &counted{Conn: conn, trips: &c.n}, nil
}

// Counting opens a fresh database over one connection that is counted.
func Counting(t testing.TB) (*store.DB, *Trips) {
	t.Helper()
	c := new(Trips)
	return open(t, store.Options{URL: URL(t), Settings: store.Settings{MaxConns: 1}, Dial: c.Dial}), c
}

// counted follows the server's messages: a type byte, a length that counts itself, the rest.
type counted struct {
	net.Conn
	trips *atomic.Int64
	head  []byte // of the message that is being read
	skip  int    // bytes of its body still to come
	empty bool   // the message before was the answer to an empty query
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	for b := p[:n]; len(b) > 0; {
		if c.skip > 0 {
			k := min(c.skip, len(b))
			c.skip, b = c.skip-k, b[k:]
			continue
		}
		k := min(5-len(c.head), len(b))
		c.head, b = append(c.head, b[:k]...), b[k:]
		if len(c.head) < 5 {
			break
		}
		if c.head[0] == 'Z' && !c.empty {
			c.trips.Add(1)
		}
		c.empty = c.head[0] == 'I'
		c.skip = int(c.head[1])<<24 + int(c.head[2])<<16 + int(c.head[3])<<8 + int(c.head[4]) - 4
		c.head = c.head[:0]
	}
	return n, err
}

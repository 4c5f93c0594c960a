// Package storetest gives each test a database of its own with the whole schema, and counts round trips to the server.
//
// It is for tests only. The databases are on the PostgreSQL server that package testdb starts once for each test
// binary.
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

// URL returns the DATABASE_URL of a new database with the whole schema.
func URL(t testing.TB) string {
	t.Helper()
	return migrated.New(t)
}

// Open opens a new database with the whole schema. It is closed when t ends.
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

var urls sync.Map // the URL of each open *store.DB

// Exec executes a statement of the test in a database that this package has opened. For example, a test can change
// stored times, as if time had passed, since it cannot set PostgreSQL's clock.
func Exec(t testing.TB, db *store.DB, sql string, args ...any) {
	t.Helper()
	url, _ := urls.Load(db)
	testdb.Exec(t, url.(string), sql, args...)
}

// Text returns the text that a query of the test finds in a database that this package has opened.
func Text(t testing.TB, db *store.DB, sql string, args ...any) string {
	t.Helper()
	url, _ := urls.Load(db)
	return testdb.One[string](t, url.(string), sql, args...)
}

// Claim claims the due messages of all channels, and of each channel at most the number most.
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

// Trips counts round trips to the server, by the ReadyForQuery messages that the server sends. It does not count those
// after an empty query, with which the pool checks that a connection idle for a second is still open.
type Trips struct{ n atomic.Int64 }

// During returns how many round trips f makes. Call f once before, so that its statements are prepared.
func (c *Trips) During(f func()) int64 {
	before := c.n.Load()
	f()
	return c.n.Load() - before
}

// Dial opens a connection whose round trips are counted. It is a function for store.Options.
func (c *Trips) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &counted{Conn: conn, trips: &c.n}, nil
}

// Counting opens a new database with a single connection, whose round trips are counted.
func Counting(t testing.TB) (*store.DB, *Trips) {
	t.Helper()
	c := new(Trips)
	return open(t, store.Options{URL: URL(t), Settings: store.Settings{MaxConns: 1}, Dial: c.Dial}), c
}

// counted is a connection that reads the headers of the server's messages. A message is a type byte, four bytes of
// length, which count themselves, and the body.
type counted struct {
	net.Conn
	trips *atomic.Int64
	head  []byte // the part of the present message's header that was read
	skip  int    // how many bytes of its body are still to come
	empty bool   // the message before was EmptyQueryResponse
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

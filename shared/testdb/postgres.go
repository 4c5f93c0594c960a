package testdb

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
)

// sharedPostgres starts a PostgreSQL when the first test needs it. The server ends with the test binary.
var sharedPostgres = sync.OnceValues(func() (*localserver.Server, error) {
	s, err := localserver.Postgres(context.Background(), localserver.PostgresOptions{
		// Allow many connections, since each parallel test has a pool of its own. Turn off autovacuum, which would
		// start a process several times a second for the databases of all tests.
		Config:   []string{"max_connections=300", "autovacuum=off", "max_wal_size=96MB"},
		InMemory: true,
	})
	if err != nil {
		return nil, err
	}
	return s, s.Forget() // it ends with this process, since no caller closes it
})

var pgDatabases atomic.Int64

// Postgres creates an empty database for t and returns its DATABASE_URL. The database remains until the test binary
// ends.
func Postgres(t testing.TB) string {
	t.Helper()
	skipShort(t)
	s, err := sharedPostgres()
	Started(t, err)
	url, err := createFrom(s, "template0")
	Started(t, err)
	return url
}

// PrivatePostgres starts a PostgreSQL for t alone, which is closed when t ends. It is for tests that stop or kill the
// server, or read its statistics.
func PrivatePostgres(t testing.TB, o localserver.PostgresOptions) *localserver.Server {
	t.Helper()
	skipShort(t)
	o.InMemory = !o.Durable
	s, err := localserver.Postgres(context.Background(), o)
	Started(t, err)
	t.Cleanup(s.Close)
	return s
}

// Template is a database that is prepared once for each test binary and then copied for each test; a copy takes some 50
// ms.
type Template struct {
	prepare func(url string) error
	once    sync.Once
	name    string
	err     error
}

// NewTemplate returns a Template whose database is filled by prepare, which must leave no connection open.
func NewTemplate(prepare func(url string) error) *Template { return &Template{prepare: prepare} }

// New creates a copy of the template for t and returns its DATABASE_URL.
func (p *Template) New(t testing.TB) string {
	t.Helper()
	skipShort(t)
	s, err := sharedPostgres()
	Started(t, err)
	p.once.Do(func() {
		p.name = "template_" + strconv.FormatInt(pgDatabases.Add(1), 10)
		if p.err = create(s, p.name, "template0"); p.err == nil {
			p.err = p.prepare(s.PostgresURL(p.name))
		}
	})
	Started(t, p.err)
	url, err := createFrom(s, p.name)
	Started(t, err)
	return url
}

func createFrom(s *localserver.Server, template string) (url string, err error) {
	name := "test_" + strconv.FormatInt(pgDatabases.Add(1), 10)
	return s.PostgresURL(name), create(s, name, template)
}

// creating is held while a database is created: PostgreSQL refuses to copy one template twice at the same time.
var creating sync.Mutex

func create(s *localserver.Server, name, template string) error {
	creating.Lock()
	defer creating.Unlock()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.PostgresURL("postgres"))
	if err != nil {
		return fmt.Errorf("testdb: %w", err)
	}
	defer conn.Close(ctx)
	strategy := "" // copying files takes half the CPU of copying pages through the write-ahead log
	if major, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), "."); major >= "15" {
		strategy = " strategy file_copy"
	}
	if _, err := conn.Exec(ctx, "create database "+name+" template "+template+strategy); err != nil {
		return fmt.Errorf("testdb: %w", err)
	}
	return nil
}

// PgBouncer starts a PgBouncer in transaction mode in front of a PostgreSQL, for t alone. It is closed when t ends.
// lines are added to its configuration.
func PgBouncer(t testing.TB, postgres *localserver.Server, lines ...string) *localserver.Server {
	t.Helper()
	s, err := localserver.PgBouncer(context.Background(), postgres, lines...)
	Started(t, err)
	t.Cleanup(s.Close)
	return s
}

// Connect opens a connection, which is closed when t ends.
func Connect(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	must.Succeed(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// Exec opens a connection for one call, on which it runs one statement, or several if there are no arguments.
func Exec(t testing.TB, url, sql string, args ...any) {
	t.Helper()
	query(t, url, func(c *pgx.Conn) error { return must.ErrOf(c.Exec(context.Background(), sql, args...)) }, sql)
}

// One opens a connection for one query, and returns the only value that the query finds.
func One[T any](t testing.TB, url, sql string, args ...any) (v T) {
	t.Helper()
	query(t, url, func(c *pgx.Conn) error { return c.QueryRow(context.Background(), sql, args...).Scan(&v) }, sql)
	return v
}

func query(t testing.TB, url string, f func(*pgx.Conn) error, sql string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	must.Succeed(t, err)
	defer conn.Close(context.Background())
	if err := f(conn); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

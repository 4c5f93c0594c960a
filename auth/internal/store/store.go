// Package store has all SQL statements of the auth daemon, one file for each subject, and applies the migrations of the
// schema.
//
// It reads and writes rows and does not interpret them: business rules, refusals and HTTP are left to its callers. The
// callers pass every time that is stored; a zero time is stored as null. Types of pgx do not appear in its API. It
// takes no lock that is held longer than a transaction, sets no session variables and does not use LISTEN, so it works
// behind PgBouncer.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"gatehouse/shared/nonblock"
)

// Settings are the settings of the tables' names and of the pool of connections.
type Settings struct {
	// Prefix of every table's name, used as it is: `auth_` gives `auth_users`. With another prefix the daemon uses
	// another, at first empty, set of tables.
	Namespace string `env:"AUTH_DB_NAMESPACE" restart:"true"`
	// Maximum number of connections; 0: as many as the server has free when the daemon starts, less 5.
	MaxConns int `env:"AUTH_DB_MAX_POOL_SIZE" envDefault:"0" min:"0" restart:"true"`
	// Age at which a connection is closed; 0: never.
	MaxConnLifetime time.Duration `env:"AUTH_DB_CONN_MAX_LIFETIME" envDefault:"0s" min:"0s" restart:"true"`
	// Idle time after which a connection is closed; 4 connections for each core stay open. 0: 10s.
	MaxConnIdleTime time.Duration `env:"AUTH_DB_CONN_MAX_IDLE_TIME" envDefault:"0s" min:"0s" restart:"true"`
	// How often connections are checked for their age and their idle time; 0: 5s.
	HealthCheckPeriod time.Duration `env:"AUTH_DB_HEALTH_CHECK_PERIOD" envDefault:"0s" min:"0s" restart:"true"`
}

// Options say how to connect to the database.
type Options struct {
	// URL is DATABASE_URL: a URL or a list of key=value pairs.
	URL string
	Settings
	// Name is the application_name of the connections, which pg_stat_activity shows, unless URL sets one; "": auth.
	Name string
	// Dial replaces the function that opens connections. Tests use it to count round trips.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Tracer makes a span for each statement; nil: none.
	Tracer trace.Tracer
	// Log receives problems that no caller gets as an error; nil: they are not logged.
	Log *slog.Logger
}

// DB is an open database. It is safe for concurrent use.
type DB struct {
	pool *pgxpool.Pool
	sql  []string // the texts of statements, with the namespace
	fill func(string) string
	names
	log *slog.Logger
	// fullUntil is the time until which the pool opens no further connection, because the server had none left; nil:
	// that has never happened.
	fullUntil atomic.Pointer[time.Time]
	unnamed   auditGate
	// poolerLogged ensures that ErrPooler is logged only once.
	poolerLogged sync.Once
}

var validNamespace = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_]{0,29}$`) })

// CheckNamespace returns an error that says what is wrong with an AUTH_DB_NAMESPACE, or nil if it is valid or empty.
func CheckNamespace(ns string) error {
	if ns != "" && !validNamespace().MatchString(ns) {
		return errors.New("must be 1 to 30 of a-z, 0-9 and _, not beginning with a digit")
	}
	return nil
}

// Open opens the database. It connects once, to check that the database answers and how many connections it has left.
// The error is ErrUnavailable if the database is unreachable; then the caller may try again.
func Open(ctx context.Context, o Options) (*DB, error) {
	if err := CheckNamespace(o.Namespace); err != nil {
		return nil, fmt.Errorf("store: namespace %q: %w", o.Namespace, err)
	}
	config, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err) // the text of pgx's error hides the password
	}
	if o.Dial != nil {
		config.ConnConfig.DialFunc = o.Dial
	}
	dial := config.ConnConfig.DialFunc
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return nonblock.Wrap(c), nil
	}
	if o.Tracer != nil {
		config.ConnConfig.Tracer = tracer{o.Tracer}
	}
	config.ConnConfig.BuildContextWatcherHandler = newCancelHandler
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = cmp.Or(o.Name, "auth")
	}
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
		// pgx does not use its cache of descriptions in this mode, and the cache needs 27 KB for each connection.
		config.ConnConfig.DescriptionCacheCapacity = 0
	}
	db := &DB{names: names{ns: o.Namespace}, fill: filler(o.Namespace),
		log: cmp.Or(o.Log, slog.New(slog.DiscardHandler))}
	db.sql = make([]string, len(statements))
	for i, text := range statements {
		db.sql[i] = db.fill(text)
	}
	most, err := db.look(ctx, config.ConnConfig, o.MaxConns)
	if err != nil {
		return nil, wrapError("open", err)
	}
	config.MaxConns = int32(most)
	// beforeConnect keeps the pool from opening MinConns connections by itself, so this is only the number of
	// connections that stay open when idle. GOMAXPROCS may be lower than the number of cores, by a quota, or higher, by
	// the operator's choice.
	config.MinConns = int32(min(most, 4*min(runtime.NumCPU(), runtime.GOMAXPROCS(0))))
	config.MinIdleConns = 0
	config.MaxConnLifetime = cmp.Or(o.MaxConnLifetime, 100*365*24*time.Hour)
	config.MaxConnIdleTime = cmp.Or(o.MaxConnIdleTime, 10*time.Second)
	config.HealthCheckPeriod = cmp.Or(o.HealthCheckPeriod, 5*time.Second)
	config.BeforeConnect = db.beforeConnect
	db.pool, err = pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return db, nil
}

// Close waits until all connections were returned, and closes them.
func (db *DB) Close() { db.pool.Close() }

// Ping returns an error if the database does not answer.
func (db *DB) Ping(ctx context.Context) error {
	return db.withConn(ctx, "ping", func(c *pgx.Conn) error { return c.Ping(ctx) })
}

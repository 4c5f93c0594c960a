// Package store holds every SQL statement of the auth daemon, one file for each subject, and the
// schema's migrations.
//
// It knows rows and nothing of what they mean: no rule, no refusal, no HTTP. Every time comes from
// the caller; a zero time is null. pgx's types stay inside. It takes no lock that outlives a
// transaction, sets no session variable and listens to nothing, so that PgBouncer may stand between.
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

// Settings are the settings of the tables and of the pool of connections.
type Settings struct {
	// Put before every table's name, literally: `auth_` gives `auth_users`. Another value is
	// another, empty set of tables.
	Namespace string `env:"AUTH_DB_NAMESPACE" restart:"true"`
	// Most connections; 0: what the server has free at start, less 5.
	MaxConns int `env:"AUTH_DB_MAX_POOL_SIZE" envDefault:"0" min:"0" restart:"true"`
	// Age at which a connection is closed; 0: none.
	MaxConnLifetime time.Duration `env:"AUTH_DB_CONN_MAX_LIFETIME" envDefault:"0s" min:"0s" restart:"true"`
	// Rest after which a connection is closed; 0: 10s, beyond 4 for each core.
	MaxConnIdleTime time.Duration `env:"AUTH_DB_CONN_MAX_IDLE_TIME" envDefault:"0s" min:"0s" restart:"true"`
	// How often both are looked at; 0: 5s.
	HealthCheckPeriod time.Duration `env:"AUTH_DB_HEALTH_CHECK_PERIOD" envDefault:"0s" min:"0s" restart:"true"`
}

// Options say where the database is.
type Options struct {
	// URL is DATABASE_URL: a URL or a list of key=value.
	URL string
	Settings
	// Name is the connections' application_name in pg_stat_activity, unless URL has one; "": auth.
	Name string
	// Dial replaces the dialing of connections; tests use it to count what is sent.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Tracer makes spans of statements; nil: none.
	Tracer trace.Tracer
	// Log gets what is not reported to any caller; nil: discarded.
	Log *slog.Logger
}

// DB is an open database. Its methods may be called from any goroutine.
type DB struct {
	pool *pgxpool.Pool
	sql  []string // by statement, with the namespace
	fill func(string) string
	names
	log *slog.Logger
	// fullUntil is the time until which no connection is added, because the server had none left; nil: the server has
	// never run out.
	fullUntil atomic.Pointer[time.Time]
	unnamed   auditGate
	// poolerLogged guards the one line about PgBouncer.
	poolerLogged sync.Once
}

var validNamespace = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_]{0,29}$`) })

// CheckNamespace returns what is wrong with a DB_NAMESPACE; nil for a valid or an empty one.
func CheckNamespace(ns string) error {
	if ns != "" && !validNamespace().MatchString(ns) {
		return errors.New("must be 1 to 30 of a-z, 0-9 and _, not beginning with a digit")
	}
	return nil
}

// Open connects once, to check that the database answers and how many connections it has left. While the database is
// unreachable the error is ErrUnavailable, and the caller may retry.
func Open(ctx context.Context, o Options) (*DB, error) {
	if err := CheckNamespace(o.Namespace); err != nil {
		return nil, fmt.Errorf("store: namespace %q: %w", o.Namespace, err)
	}
	config, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err) // pgx hides the password
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
		// nothing reads this cache, and it takes 27 KB of each connection
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
	// beforeConnect keeps the pool from opening these connections by itself, so MinConns is only the number that stay
	// open when idle. GOMAXPROCS may be less than the cores, by a quota, or more, by the operator.
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

// Close waits until every connection was returned, and closes all of them.
func (db *DB) Close() { db.pool.Close() }

// Ping reports whether the database answers.
func (db *DB) Ping(ctx context.Context) error {
	return db.withConn(ctx, "ping", func(c *pgx.Conn) error { return c.Ping(ctx) })
}

package former

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ApplicationName is the application_name of a takeover's connections, which pg_stat_activity shows.
const ApplicationName = "auth takeover"

// Source reads the tables of the former service. It writes nothing and takes no locks: each read is a READ ONLY
// transaction. Its settings end with the transaction, so that a pooler in transaction mode can be used. Its methods may
// be called from any goroutine.
type Source struct {
	// Schema is the name of the former service's schema.
	Schema string

	pool *pgxpool.Pool
	fill *strings.Replacer // replaces the names in braces in queries
	// Catalog is what Inspect has read.
	Catalog Catalog
}

// sourceConns is the size of the pool of connections. One reads ids while another reads the rows that have changed.
const sourceConns = 3

// OpenSource connects to the database at url. schema is the name of the former service's schema.
func OpenSource(ctx context.Context, url, schema string) (*Source, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("former: %w", err) // the text of pgx's error hides the password
	}
	c := config.ConnConfig
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 5 * time.Second
	}
	c.RuntimeParams["application_name"] = ApplicationName
	// In this mode pgx makes no named prepared statements. They would stay on the server's connection, which a pooler
	// then gives to another client.
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	config.MaxConns, config.MinConns, config.MinIdleConns = sourceConns, 0, 0
	s := &Source{Schema: schema}
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("former: %w", err)
	}
	if err := s.pool.Ping(ctx); err != nil {
		s.pool.Close()
		return nil, err
	}
	return s, nil
}

// Close closes all connections.
func (s *Source) Close() { s.pool.Close() }

// Place returns HOST:PORT/DATABASE SCHEMA, without user and password.
func (s *Source) Place() string { return s.Host() + " " + s.Schema }

// Host returns HOST:PORT/DATABASE.
func (s *Source) Host() string {
	c := s.pool.Config().ConnConfig
	return fmt.Sprintf("%s:%d/%s", c.Host, c.Port, c.Database)
}

// beginRead begins a transaction and sets its settings, in one round trip. With this search path, texts from the
// catalogue name every object with its schema, even if the role's own search path contains the former service's schema.
// JIT is off, since compiling the long conditions of a query that reads each row once costs more than it saves. With
// this work_mem some hundred thousand ids can be sorted in memory.
const beginRead = `begin isolation level repeatable read read only;
set local row_security = off;
set local statement_timeout = 0;
set local idle_in_transaction_session_timeout = 0;
set local jit = off;
set local work_mem = '32MB';
set local search_path = pg_catalog;
set local time zone 'UTC'`

// read calls f in a transaction of its own.
func (s *Source) read(ctx context.Context, f func(*pgx.Conn) error) error {
	c, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	if _, err := c.Exec(ctx, beginRead, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	if err := f(c.Conn()); err != nil {
		// If the rollback fails, the connection is still in a transaction, so the pool closes it when it is released.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		c.Exec(undo, "rollback", pgx.QueryExecModeSimpleProtocol)
		return err
	}
	_, err = c.Exec(ctx, "commit", pgx.QueryExecModeSimpleProtocol)
	return err
}

// ErrEnough is returned by a function that reads rows to end the reading without an error.
var ErrEnough = errors.New("former: enough rows")

// rows executes a query and calls the function each for every row. It ends early if each returns ErrEnough, which is
// then not returned as an error.
func (s *Source) rows(ctx context.Context, sql string, each func(pgx.Rows) error, args ...any) error {
	return s.read(ctx, func(c *pgx.Conn) error { return s.query(ctx, c, sql, each, args...) })
}

// batchSettings make PostgreSQL find the rows that belong to a batch by an index. Otherwise, because of the statistics
// of a large table, or because there are none, it would read the whole related table for each batch.
const batchSettings = `set local enable_hashjoin = off; set local enable_mergejoin = off; set local max_parallel_workers_per_gather = 0`

func forBatch(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, batchSettings, pgx.QueryExecModeSimpleProtocol)
	return err
}

// batch does the same as rows, with batchSettings.
func (s *Source) batch(ctx context.Context, sql string, each func(pgx.Rows) error, args ...any) error {
	return s.read(ctx, func(c *pgx.Conn) error {
		if err := forBatch(ctx, c); err != nil {
			return err
		}
		return s.query(ctx, c, sql, each, args...)
	})
}

// query does the same as rows, within a transaction.
func (s *Source) query(ctx context.Context, c *pgx.Conn, sql string, each func(pgx.Rows) error, args ...any) error {
	rows, err := c.Query(ctx, s.fill.Replace(sql), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows); err == ErrEnough {
			break
		} else if err != nil {
			return err
		}
	}
	rows.Close() // Close reads and discards the remaining rows
	return rows.Err()
}

// into returns a function that reads a row into the targets of a new value, and calls the function each with this
// value.
func into[T any](each func(*T) error, targets func(*T) []any) func(pgx.Rows) error {
	return func(r pgx.Rows) error {
		v := new(T)
		if err := r.Scan(targets(v)...); err != nil {
			return err
		}
		return each(v)
	}
}

// readIDs executes a query whose only column is an id.
func (s *Source) readIDs(ctx context.Context, sql string, args ...any) (list []uuid.UUID, err error) {
	err = s.rows(ctx, sql, into(func(id *uuid.UUID) error {
		list = append(list, *id)
		return nil
	}, func(id *uuid.UUID) []any { return []any{uid(id)} }), args...)
	return list, err
}

// readCounts executes a query whose columns are a text and a number.
func (s *Source) readCounts(ctx context.Context, sql string, args ...any) (map[string]int64, error) {
	counts := map[string]int64{}
	err := s.rows(ctx, sql, func(r pgx.Rows) error {
		var text string
		var n int64
		err := r.Scan(&text, &n)
		counts[text] = n
		return err
	}, args...)
	return counts, err
}

// row executes a query that returns one row.
func (s *Source) row(ctx context.Context, sql string, into []any, args ...any) error {
	return s.read(ctx, func(c *pgx.Conn) error {
		return c.QueryRow(ctx, s.fill.Replace(sql), args...).Scan(into...)
	})
}

// prepareNames prepares the replacement of the names in braces in queries: the schema, the time when the catalogue was
// read, and null for columns that an older version of the schema lacks.
func (s *Source) prepareNames() {
	pairs := []string{"{S}", pgx.Identifier{s.Schema}.Sanitize(),
		"{now}", "'" + s.Catalog.Now.UTC().Format(clockFormat) + "'::timestamptz"}
	optional := func(table, alias, column, kind string) {
		value := alias + "." + column
		if !s.Catalog.Has(table, column) {
			value = "null::" + kind
		}
		pairs = append(pairs, "{"+alias+"."+column+"}", value)
	}
	optional("sessions", "s", "oauth_client_id", "uuid")
	optional("sessions", "s", "refresh_token_hmac_key", "text")
	optional("sessions", "s", "refresh_token_counter", "bigint")
	optional("mfa_factors", "f", "phone", "text")
	optional("mfa_factors", "f", "last_challenged_at", "timestamptz")
	optional("mfa_factors", "f", "web_authn_credential", "jsonb")
	passkeys := noPasskeys
	if s.Catalog.Has(Passkeys, "credential_id") {
		passkeys = s.Catalog.Table(Passkeys)
	}
	pairs = append(pairs, "{P}", passkeys)
	s.fill = strings.NewReplacer(pairs...)
}

// Floor is the id of a transaction of the source. Rows written by it or a later transaction count as changed.
type Floor int64

// Since says which rows a later pass reads: rows written by Floor or a later transaction, and rows with a time after
// Clock. Such a time was in the future when the row was copied, and was replaced by Clock. With a zero Clock there are
// no such rows.
type Since struct {
	Floor Floor
	Clock time.Time
}

// Snapshot returns the id of the oldest transaction of the source that may still be running, the id of the next
// transaction, and the source's clock. Later reads see a later clock.
func (s *Source) Snapshot(ctx context.Context) (oldest, next Floor, clock time.Time, err error) {
	err = s.row(ctx, `select txid_snapshot_xmin(t), txid_snapshot_xmax(t), now() from txid_current_snapshot() t`,
		[]any{&oldest, &next, at(&clock)})
	return oldest, next, clock, err
}

// scanTime scans a time of the source. null and minus infinity are scanned as the zero time. Infinity and every time
// after the year 9999 are scanned as the end of that year: as the zero time, infinity would end a ban that lasts for
// ever.
type scanTime time.Time

var endOfTime = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// ScanTimestamptz implements pgtype.TimestamptzScanner.
func (t *scanTime) ScanTimestamptz(v pgtype.Timestamptz) error {
	switch {
	case !v.Valid || v.InfinityModifier == pgtype.NegativeInfinity:
		*t = scanTime{}
	case v.InfinityModifier == pgtype.Infinity || v.Time.After(endOfTime):
		*t = scanTime(endOfTime)
	default:
		*t = scanTime(v.Time.UTC())
	}
	return nil
}

// text scans a text. The result for null is "".
type text string

// ScanText implements pgtype.TextScanner.
func (t *text) ScanText(v pgtype.Text) error {
	*t = text(v.String)
	return nil
}

// rawText scans a text into bytes. The result for null is empty.
type rawText []byte

// ScanText implements pgtype.TextScanner.
func (t *rawText) ScanText(v pgtype.Text) error {
	*t = rawText(v.String)
	return nil
}

// id scans a UUID. The result for null is uuid.Nil.
type id uuid.UUID

// ScanUUID implements pgtype.UUIDScanner.
func (i *id) ScanUUID(v pgtype.UUID) error {
	*i = id(v.Bytes)
	return nil
}

func at(t *time.Time) any  { return (*scanTime)(t) }
func str(t *string) any    { return (*text)(t) }
func raw(t *[]byte) any    { return (*rawText)(t) }
func uid(u *uuid.UUID) any { return (*id)(u) }

// ids returns a list of ids as an SQL argument of type uuid[].
func ids(list []uuid.UUID) []pgtype.UUID {
	out := make([]pgtype.UUID, len(list))
	for i, u := range list {
		out[i] = pgtype.UUID{Bytes: u, Valid: true}
	}
	return out
}

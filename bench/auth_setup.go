//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"gatehouse/shared/localserver"
	"gatehouse/shared/subprocess"
)

const (
	// authPool is the pool of the daemons and of the yardsticks, but for the daemon with default settings.
	authPool = 10
	// The secrets of every daemon: what one made, another on the same database accepts.
	benchSecret   = "bench: an HS256 secret of more than 32 bytes"
	benchPassword = "correct horse battery staple"
)

// database is the private PostgreSQL of the measurements, and a connection that observes it.
type database struct {
	server *localserver.Server
	conn   *pgx.Conn
}

// postgresSettings: it syncs and writes full pages, as an installation does; checkpoints come only when
// we ask for one.
var postgresSettings = localserver.PostgresOptions{
	Durable: true,
	Config:  []string{"checkpoint_timeout=1h", "max_wal_size=8GB", "max_connections=200"},
}

func startDatabase(ctx context.Context) (*database, error) {
	server, err := localserver.Postgres(ctx, postgresSettings)
	if err != nil {
		return nil, err
	}
	d := &database{server: server}
	if d.conn, err = pgx.Connect(ctx, server.PostgresURL("postgres")); err != nil {
		d.close()
		return nil, fmt.Errorf("bench: %w", err)
	}
	return d, nil
}

func (d *database) close() {
	if d.conn != nil {
		d.conn.Close(context.Background()) // the server ends next
	}
	d.server.Close()
}

// create makes an empty database and returns its URL.
func (d *database) create(ctx context.Context, name string) (string, error) {
	if _, err := d.conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	return d.server.PostgresURL(name), nil
}

// createYardstick makes the database of the yardsticks and fills its table.
func (d *database) createYardstick(ctx context.Context) (string, error) {
	url, err := d.create(ctx, "yardstick")
	if err != nil {
		return "", err
	}
	return url, execSQL(ctx, url, yardstickTable,
		fmt.Sprintf(
			`insert into yardstick select i, 0, now(), 'gatehouse-bench', '127.0.0.1' from generate_series(0, %d) i`,
			yardstickRows-1),
		"vacuum analyze")
}

// execSQL runs statements in a database, each in a transaction of its own.
func execSQL(ctx context.Context, url string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// checkpoint writes everything out, so that none falls into what is measured next.
func (d *database) checkpoint(ctx context.Context) error {
	_, err := d.conn.Exec(ctx, "checkpoint")
	return err
}

// meter is what PostgreSQL has used: CPU time of all its processes, bytes of WAL.
type meter struct {
	cpu time.Duration
	wal int64
}

func (d *database) meter(ctx context.Context) (m meter, err error) {
	if err := d.conn.QueryRow(
		ctx, "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").Scan(&m.wal); err != nil {
		return m, fmt.Errorf("WAL position: %w", err)
	}
	u, err := readFamily(d.server.PID())
	m.cpu = u.cpu
	return m, err
}

// httpYardstick starts one that does one thing for each request.
func (l *testbed) httpYardstick(kind, database string) (*target, error) {
	return l.startSelf(kind, "http-yardstick", "-kind", kind, "-database", database)
}

// auth starts the daemon on a database with further settings of its own. It returns at once.
func (l *testbed) auth(name, database string, settings ...string) (*target, error) {
	return l.authOf(l.authDaemon, name, database, settings...)
}

// authOf does the same with another program.
func (l *testbed) authOf(program, name, database string, settings ...string) (*target, error) {
	home := filepath.Join(l.dir, name) // also where it would look for a .env
	if err := os.MkdirAll(home, 0o755); err != nil {
		return nil, err
	}
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	t := &target{name: name, addr: "127.0.0.1:" + ports[0]}
	log, err := os.OpenFile(filepath.Join(home, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	program, err = filepath.Abs(program)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Dir, cmd.Stdout, cmd.Stderr = home, log, log
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"),
		"AUTH_API_HOST=127.0.0.1", "AUTH_API_PORT=" + ports[0],
		// The same for all: it is in the tokens.
		"AUTH_API_EXTERNAL_URL=http://auth.bench.example", "AUTH_SITE_URL=http://bench.example",
		"AUTH_DB_DRIVER=postgres", "DATABASE_URL=" + database,
		"AUTH_JWT_SECRET=" + benchSecret, "AUTH_MAILER_AUTOCONFIRM=true",
	}, settings...)
	cmd.Env = append(cmd.Env, l.authExtra...)
	if t.process, err = subprocess.Start(cmd); err != nil {
		return nil, err
	}
	l.started = append(l.started, t)
	return t, nil
}

// cheapHash returns the settings of the daemons that everything but hashing is measured with: the hash would be
// all that one sees.
func cheapHash(algorithm string) []string {
	return []string{
		"AUTH_JWT_ALGORITHM=" + algorithm, "AUTH_PASSWORD_HASH=bcrypt:4",
		"AUTH_DB_MAX_POOL_SIZE=" + strconv.Itoa(authPool),
	}
}

// awaitHTTP returns when a GET with that bearer token, or with none, is answered 200.
func (l *testbed) awaitHTTP(ctx context.Context, t *target, path, bearer string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return l.retry(ctx, t, 30*time.Second, func(ctx context.Context) error {
		return get(ctx, &client, "http://"+t.addr+path, bearer)
	})
}

func get(ctx context.Context, client *http.Client, url, bearer string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

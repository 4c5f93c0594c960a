//go:build linux

package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/crypto/bcrypt"

	"gatehouse/shared/localserver"
)

const (
	// authPool is the size of the connection pool of daemons and yardsticks; the daemon with default settings has the
	// default size.
	authPool = 10
	// These secrets are the same for all daemons, so that each accepts the tokens of the others on the same database.
	benchSecret   = "bench: an HS256 secret of more than 32 bytes"
	benchPassword = "correct horse battery staple"
)

// database is the PostgreSQL of the measurements, with a connection to read its statistics.
type database struct {
	server *localserver.Server
	conn   *pgx.Conn
}

// postgresSettings keep fsync and full page writes on, as in production. A checkpoint only happens when the measurement
// requests one.
var postgresSettings = localserver.PostgresOptions{
	Durable: true,
	Config:  []string{"checkpoint_timeout=1h", "max_wal_size=8GB", "max_connections=200"},
}

// startDatabase starts a PostgreSQL, which is closed after all targets have ended.
func startDatabase(ctx context.Context, l *testbed) (*database, error) {
	server, err := startServer(ctx, l, localserver.Postgres, postgresSettings)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, server.PostgresURL("postgres")) // closed when the server ends
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	return &database{server, conn}, nil
}

// create creates an empty database and returns its URL.
func (d *database) create(ctx context.Context, name string) (string, error) {
	if _, err := d.conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()); err != nil {
		return "", fmt.Errorf("create database %s: %w", name, err)
	}
	return d.server.PostgresURL(name), nil
}

// createYardstick creates the database of the yardsticks and fills its table.
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

// execSQL executes SQL statements in a database, each in a transaction of its own.
func execSQL(ctx context.Context, url string, statements ...string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%.200s: %w", sql, err)
		}
	}
	return nil
}

// fillIn replaces names in SQL statements by values, given as pairs, and {hash} by a hash of the users' password.
func fillIn(sql string, namesAndValues ...string) (string, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(benchPassword), bcrypt.MinCost)
	return strings.NewReplacer(append(namesAndValues, "{hash}", string(hash))...).Replace(sql), err
}

// read returns what PostgreSQL has used so far: the CPU time of all its processes, and bytes of WAL.
func (d *database) read(ctx context.Context) (m reading, err error) {
	if err := d.conn.QueryRow(
		ctx, "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").Scan(&m.wal); err != nil {
		return m, fmt.Errorf("WAL position: %w", err)
	}
	u, err := readFamily(d.server.PID())
	m.store = u.cpu
	return m, err
}

// authDaemon describes an auth daemon to start.
type authDaemon struct {
	name, database string
	settings       []string
	// If bearer is not empty, the daemon is ready when it answers GET /user with this token, not GET /health.
	bearer string
}

// auth starts the given program as an auth daemon and returns when it is ready.
func (l *testbed) auth(ctx context.Context, program string, d authDaemon) (*target, error) {
	ports, err := localserver.FreePorts(1)
	if err != nil {
		return nil, err
	}
	t, cmd := &target{name: d.name, addr: "127.0.0.1:" + ports[0]}, command(program)
	cmd.Env = append(authSettings(d.database), "AUTH_API_HOST=127.0.0.1", "AUTH_API_PORT="+ports[0])
	cmd.Env = append(append(cmd.Env, d.settings...), l.authExtra...)
	ready := t.answers("/health", "")
	if d.bearer != "" {
		ready = t.answers("/user", d.bearer)
	}
	return t, l.start(ctx, t, cmd, ready)
}

// authSettings returns the settings that all processes of the auth program have.
func authSettings(database string) []string {
	return []string{
		// the same URL for all daemons, since their tokens contain it
		"AUTH_API_EXTERNAL_URL=http://auth.bench.example", "AUTH_SITE_URL=http://bench.example",
		"AUTH_DB_DRIVER=postgres", "DATABASE_URL=" + database,
		"AUTH_JWT_SECRET=" + benchSecret, "AUTH_MAILER_AUTOCONFIRM=true",
	}
}

// cheapHash returns settings with a cheap password hash. All measurements use it, except for those of hashing: an
// expensive hash would dominate them.
func cheapHash(algorithm string) []string {
	return []string{
		"AUTH_JWT_ALGORITHM=" + algorithm, "AUTH_PASSWORD_HASH=bcrypt:4",
		"AUTH_DB_MAX_POOL_SIZE=" + strconv.Itoa(authPool),
	}
}

// answers returns a function that returns an error until a GET request is answered with 200. bearer is the token to
// send; empty for none.
func (t *target) answers(path, bearer string) func(context.Context) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return func(ctx context.Context) error {
		body, err := fetch(ctx, &client, "http://"+t.addr+path, bearer)
		if err == nil {
			body.Close()
		}
		return err
	}
}

// fetch returns the body of an answer, which the caller closes. It returns an error unless the status is 200.
func fetch(ctx context.Context, client *http.Client, url, bearer string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if bearer != "" {
		r.Header.Set("Authorization", "Bearer "+bearer)
	}
	answer, err := client.Do(r)
	if err == nil && answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		err = fmt.Errorf("%s: %s", url, answer.Status)
	}
	if err != nil {
		return nil, err
	}
	return answer.Body, nil
}

// The large database, in which each user has the rows that a sign-up by email address makes.
const (
	millionUsers    = 1_000_000
	millionSessions = 3 // for each user
	millionCrowd    = 2_000
)

//go:embed million.sql
var millionRows string

// millionScenarios are measured on the large database and on one that has only the accounts that the load uses.
var millionScenarios = []string{"user", "refresh", "password"}

func millionLine(scenario string) line { return line{scenario: scenario, target: "million"} }

// startMillion fills the large database, starts a daemon on it, and signs in as many users as the load needs.
func (s *authSuite) startMillion(ctx context.Context) error {
	if !s.large {
		return nil
	}
	const name = "million"
	if err := s.startDaemon(ctx, s.testbed.authDaemon, name, 0, cheapHash("HS256")); err != nil {
		return err
	}
	began := time.Now()
	rows, err := fillIn(millionRows, "{users}", strconv.Itoa(millionUsers), "{sessions}", strconv.Itoa(millionSessions))
	if err != nil {
		return err
	}
	if err := execSQL(ctx, s.db.server.PostgresURL(name), rows, "vacuum analyze"); err != nil {
		return err
	}
	s.report.linef("\nmillion: %d users with %d sessions each, filled in %v", millionUsers, millionSessions,
		time.Since(began).Round(time.Second))

	crowd := make([]account, millionCrowd)
	for i := range crowd {
		crowd[i].email = fmt.Sprintf("million-%07d@bench.example", 1+rand.IntN(millionUsers))
	}
	s.crowd[name] = crowd
	signIn := keeping(crowd, true, passwordPath, appendSignIn)
	l := load{addr: s.targets[name].addr, traffic: signIn, conns: authConns, run: 5 * time.Minute}
	if _, err := l.driveClean(); err != nil {
		return fmt.Errorf("sign in %d of a million: %w\n%s", len(crowd), err, s.testbed.logTail(s.targets[name]))
	}
	return nil
}

// wholeReads returns how often PostgreSQL has read one of the large tables from beginning to end; 0 for rows of other
// databases.
func (s *authSuite) wholeReads(ctx context.Context, l line) (n int64, err error) {
	if l.target != "million" {
		return 0, nil
	}
	time.Sleep(1500 * time.Millisecond) // a PostgreSQL backend reports its statistics at most once a second
	conn, err := pgx.Connect(ctx, s.db.server.PostgresURL("million"))
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	err = conn.QueryRow(ctx,
		"select sum(seq_scan)::bigint from pg_stat_user_tables where relname in ('users', 'identities', 'sessions')").
		Scan(&n)
	return n, err
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"gatehouse/auth/internal/account"
	"gatehouse/auth/internal/keys"
	"gatehouse/auth/internal/password"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/token"
	"gatehouse/shared/settings"
)

// load reads the settings for a command. Warnings are the daemon's to tell, but for those beside a mistake:
// a misspelled name is often why another setting is missing.
func (p *program) load() (config, live, []string, error) {
	c, l, r, err := p.read()
	if err != nil {
		for _, w := range r.Brief() {
			fmt.Fprintln(p.stderr, "auth: warning:", w)
		}
	}
	return c, l, r.Brief(), err
}

// read is load for check, which tells all warnings itself.
func (p *program) read() (config, live, *settings.Report, error) {
	c, l, _, r, err := loadConfig(p.environ, p.file, nil)
	if err == nil {
		err = p.exportStandard()
	}
	return c, l, r, err
}

// exportStandard lets libraries see what only the settings file has: that of the database reads PGSSLROOTCERT
// and the like from the process's environment, that of telemetry OTEL_EXPORTER_OTLP_ENDPOINT.
func (p *program) exportStandard() error {
	all, err := withFile(p.environ, p.file)
	for _, e := range all {
		name, value, _ := strings.Cut(e, "=")
		if _, there := os.LookupEnv(name); (strings.HasPrefix(name, "PG") || strings.HasPrefix(name, "OTEL_")) && !there {
			err = errors.Join(err, os.Setenv(name, value))
		}
	}
	return err
}

func (c *config) root() *secret.Root { return secret.NewRoot(c.JWT.Root, c.previousRoots()...) }

func (c *config) storeOptions(log *slog.Logger) store.Options {
	return store.Options{
		URL: c.DB.URL, Namespace: c.DB.Namespace, MaxConns: c.DB.MaxPool,
		MaxConnLifetime: c.DB.ConnLife, MaxConnIdleTime: c.DB.ConnIdle, HealthCheckPeriod: c.DB.HealthCheck, Log: log,
	}
}

// databasePatience is how long a start waits for a database that is away, as when both start at once.
const databasePatience = 30 * time.Second

// openStore connects, and tries again while the database is away.
func openStore(ctx context.Context, o store.Options, patience time.Duration) (*store.DB, error) {
	deadline := time.Now().Add(patience)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		db, err := store.Open(ctx, o)
		switch {
		case err == nil:
			return db, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case !errors.Is(err, store.ErrUnavailable), time.Now().Add(pause).After(deadline):
			return nil, fmt.Errorf("DATABASE_URL: %w", err)
		}
		o.Log.Warn("waiting for the database", "error", err)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// allMigrated is an error when this program needs a newer schema.
func allMigrated(ctx context.Context, db *store.DB) error {
	n, err := db.Pending(ctx)
	if err == nil && n > 0 {
		err = fmt.Errorf("the database lacks %d migrations: auth migrate applies them", n)
	}
	return err
}

// rooms are what a command on accounts works with.
type rooms struct {
	config   config
	live     live
	db       *store.DB
	root     *secret.Root
	keeper   *keys.Keeper
	hashes   *password.Workers
	accounts *account.Accounts
}

// open opens the database for a command, with one try. What is logged goes to stderr as text.
func (p *program) open(ctx context.Context) (*rooms, error) {
	c, l, _, err := p.load()
	if err != nil {
		return nil, err
	}
	log := newLogger(p.stderr, logConfig{Level: "warn", Format: "text"}).Logger
	db, err := openStore(ctx, c.storeOptions(log), 0)
	if err != nil {
		return nil, err
	}
	if err := allMigrated(ctx, db); err != nil {
		db.Close()
		return nil, err
	}
	r := &rooms{config: c, live: l, db: db, root: c.root()}
	r.keeper = keys.New(keys.Options{DB: db, Root: r.root, Log: log}, l.keys)
	r.hashes = password.NewWorkers(password.Options{Workers: 1, Params: l.hash, Log: slog.New(slog.DiscardHandler)})
	r.accounts = account.New(account.Options{
		DB: db, Keys: r.keeper.Live(), Refresh: token.NewRefreshCodec(r.root.Keys(secret.Refresh)), Root: r.root, Passwords: r.hashes, Log: log,
	}, l.accounts)
	return r, nil
}

func (r *rooms) close() {
	r.hashes.Close()
	r.db.Close()
}

// migrate is the command of that name.
func (p *program) migrate(ctx context.Context, args []string) error {
	if _, err := p.parse(flag.NewFlagSet("migrate", flag.ContinueOnError), args, "", 0, 0); err != nil {
		return err
	}
	c, _, _, err := p.load()
	if err != nil {
		return err
	}
	log := newLogger(p.stderr, c.Log)
	db, err := openStore(ctx, c.storeOptions(log.Logger), databasePatience)
	if err != nil {
		return err
	}
	defer db.Close()
	n, err := db.Migrate(ctx)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "applied %d migrations\n", n)
	return err
}

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"gatehouse/auth/internal/clock"
	"gatehouse/auth/internal/store"
)

func (d *daemon) openDatabase(ctx context.Context, skipMigrations bool) (err error) {
	o := d.config.Load().StoreOptions(d.log.Logger)
	if t := d.observed.tracing; t != nil {
		o.Tracer = t.Tracer(scopeName)
	}
	if d.db, err = OpenStore(ctx, o, DatabaseTimeout); err != nil {
		return err
	}
	if err = d.db.CheckPooler(ctx); err != nil {
		err = fmt.Errorf("DATABASE_URL: %w", err)
	} else if d.clock, err = StartClock(ctx, d.db, d.log.Logger); err == nil {
		err = CheckSchema(ctx, d.db)
	}
	if err == nil && skipMigrations {
		err = CheckMigrated(ctx, d.db)
	} else if err == nil {
		var n int
		if n, err = d.db.Migrate(ctx); n > 0 {
			d.log.Info("migrated the database", "migrations", n, "namespace", d.config.Load().DB.Store.Namespace)
		}
		if n > 0 && n == store.Migrations() {
			d.log.Info("all tables are new and empty: if there should be users in them, DATABASE_URL or " +
				"AUTH_DB_NAMESPACE is another than before")
		}
	}
	if err == nil {
		d.takeover, err = CheckTakeover(ctx, d.db)
	}
	if err != nil {
		d.db.Close()
	}
	return err
}

// StartClock returns PostgreSQL's clock, which it has read once.
func StartClock(ctx context.Context, db *store.DB, log *slog.Logger) (*clock.Clock, error) {
	at, err := db.Time(ctx)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", err)
	}
	c := clock.New(log)
	c.Start(at)
	return c, nil
}

// DatabaseTimeout is how long a start waits for an unreachable database, which may be starting at the same time.
const DatabaseTimeout = 30 * time.Second

// OpenStore connects to the database. While the database is unreachable, it tries again, but not for longer than
// patience.
func OpenStore(ctx context.Context, o store.Options, patience time.Duration) (*store.DB, error) {
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

// CheckMigrated returns an error if the database lacks migrations that this program needs.
func CheckMigrated(ctx context.Context, db *store.DB) error {
	n, err := db.Pending(ctx)
	if err == nil && n > 0 {
		err = fmt.Errorf("the database lacks %d migrations: auth migrate applies them", n)
	}
	return err
}

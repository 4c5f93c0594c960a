package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/migrations"
)

// migration is a file of the database schema (package migrations).
type migration struct {
	Planned
	version int
	sql     string // as in the file, without the namespace, so that the checksum does not depend on it
	sum     [32]byte
}

// Planned describes a migration that Migrate will apply.
type Planned struct {
	Name string
	// Outside means that the file is not executed in a transaction. Its statements end with a semicolon and a newline.
	// Each must be repeatable, since it may be executed again after a crash.
	Outside bool
	// Breaks means that a program that does not contain this file must not use the schema after the file was applied.
	Breaks bool
}

// applied is a row of the table schema_migrations.
type applied struct {
	name   string
	sum    []byte
	breaks bool
}

const createVersions = `
create table if not exists {schema_migrations} (
    version integer primary key,
    name text not null,
    checksum bytea not null,
    breaks boolean not null,
    applied_at timestamptz not null default now()
)`

const selectVersions = `
select version, name, checksum, breaks from {schema_migrations}`

const insertVersion = `
insert into {schema_migrations} (version, name, checksum, breaks) values ($1, $2, $3, $4)
on conflict (version) do nothing`

// Migrations returns how many migrations this program contains.
func Migrations() int {
	files, _ := readMigrations(migrations.FS) // Migrate returns the same error
	return len(files)
}

// Migrate applies the migrations that the schema lacks, and returns how many. Several processes may call it at the same
// time, and a call that was interrupted can be repeated. It returns an error if an applied migration differs from this
// program's file, or if a newer program has applied a migration after which older programs must not use the schema. If
// there is nothing to apply, it needs only the right to read.
func (db *DB) Migrate(ctx context.Context) (int, error) {
	files, err := readMigrations(migrations.FS)
	if err != nil {
		return 0, err
	}
	return db.migrate(ctx, files)
}

func (db *DB) migrate(ctx context.Context, files []migration) (done int, err error) {
	if missing, err := db.missing(ctx, files); len(missing) == 0 || err != nil {
		return 0, err
	}
	for _, m := range files {
		ran, err := db.applyWithRetry(ctx, files, m)
		if err != nil {
			return done, fmt.Errorf("store: migration %s: %w", m.Name, db.wrapError("migrate", err))
		}
		if ran {
			done++
		}
	}
	return done, nil
}

// applyWithRetry applies one file. A statement that waits for a lock blocks all traffic that comes after it. So if
// another client holds a lock for longer than a second, applyWithRetry gives up and tries again later.
func (db *DB) applyWithRetry(ctx context.Context, files []migration, m migration) (ran bool, err error) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 5*time.Second) {
		err = db.withConn(ctx, "apply", func(c *pgx.Conn) error {
			ran, err = db.apply(ctx, c, files, m)
			return err
		})
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "55P03" && !IsContention(err) {
			return ran, err
		}
		db.log.Info("a migration waits for a lock", "file", m.Name)
		select {
		case <-ctx.Done():
			return false, err
		case <-time.After(pause):
		}
	}
}

func (db *DB) apply(ctx context.Context, c *pgx.Conn, files []migration, m migration) (ran bool, err error) {
	if m.Outside {
		if ran, err = db.applyOutside(ctx, c, files, m); err != nil {
			return false, err
		}
	}
	err = db.locked(ctx, c, files, func(tx pgx.Tx, there map[int]applied) error {
		if _, ok := there[m.version]; ok {
			return nil
		}
		if !m.Outside {
			ran = true
			// Without arguments pgx sends the file as one simple query, which may contain many statements.
			if _, err := tx.Exec(ctx, db.fill(m.sql), pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, db.fill(insertVersion), m.version, m.Name, m.sum[:], m.Breaks)
		return err
	})
	return ran, err
}

// applyOutside executes a file statement by statement, without a transaction, unless it was applied before.
func (db *DB) applyOutside(ctx context.Context, c *pgx.Conn, files []migration, m migration) (ran bool, err error) {
	var done bool
	err = db.locked(ctx, c, files, func(_ pgx.Tx, there map[int]applied) error {
		_, done = there[m.version]
		return nil
	})
	if err != nil || done {
		return false, err
	}
	for one := range strings.SplitSeq(db.fill(m.sql), ";\n") {
		if _, err := c.Exec(ctx, one, pgx.QueryExecModeSimpleProtocol); err != nil {
			return false, err
		}
	}
	return true, nil
}

// locked calls f in a transaction during which no other process applies migrations. f gets the migrations that were
// applied before. The lock is held by the transaction, not by the database session, since behind PgBouncer each
// transaction may run in another session.
func (db *DB) locked(ctx context.Context, c *pgx.Conn, files []migration, f func(pgx.Tx, map[int]applied) error) error {
	return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
		// Another process may need long for its migration. The timeout lets this process log that it waits.
		if _, err := tx.Exec(ctx, "set local lock_timeout = '5s'"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock($1)", db.migrationLock()); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "set local lock_timeout = '1s'"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, db.fill(createVersions)); err != nil {
			return err
		}
		there, err := db.readVersions(ctx, tx, files)
		if err != nil {
			return err
		}
		return f(tx, there)
	})
}

// migrationLock returns the key of the advisory lock under which this namespace is migrated.
func (db *DB) migrationLock() int64 { return db.lockKey("migrations") }

// lockKey returns the key of the advisory lock for the purpose what. It also depends on the namespace.
func (db *DB) lockKey(what string) int64 {
	h := fnv.New64a()
	h.Write([]byte("gatehouse auth " + what + " " + db.ns))
	return int64(h.Sum64())
}

// schemaError is the error for a schema that this program cannot use. Trying again does not help.
type schemaError string

func (e schemaError) Error() string { return string(e) }

func checkVersions(there map[int]applied, files []migration) error {
	known := map[int]migration{}
	for _, m := range files {
		known[m.version] = m
	}
	for v, a := range there {
		m, ok := known[v]
		switch {
		case ok && !bytes.Equal(m.sum[:], a.sum):
			return schemaError(a.name +
				" was applied with other content than this program has; an applied file must never change")
		case !ok && a.breaks:
			return schemaError("the schema is newer than this program and " + a.name +
				" says that older ones can't work with it")
		}
	}
	return nil
}

// readVersions reads which migrations were applied, and checks that they match this program's files.
func (db *DB) readVersions(ctx context.Context, q interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, files []migration) (map[int]applied, error) {
	rows, err := q.Query(ctx, db.fill(selectVersions))
	if err != nil {
		return nil, err
	}
	there := map[int]applied{}
	var v int
	var a applied
	_, err = pgx.ForEachRow(rows, []any{&v, &a.name, &a.sum, &a.breaks}, func() error {
		a.sum = bytes.Clone(a.sum)
		there[v] = a
		return nil
	})
	if err != nil {
		return nil, err
	}
	return there, checkVersions(there, files)
}

// Pending returns how many migrations Migrate would apply. The error says why this program cannot use the schema.
func (db *DB) Pending(ctx context.Context) (n int, err error) {
	list, err := db.Plan(ctx)
	return len(list), err
}

// missing returns the files that were not applied yet, in order.
func (db *DB) missing(ctx context.Context, files []migration) (list []Planned, err error) {
	err = db.withConn(ctx, "pending migrations", func(c *pgx.Conn) error {
		there, err := db.readVersions(ctx, c, files)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42P01" { // no such table
			err = nil
		}
		list = nil
		for _, m := range files {
			if _, ok := there[m.version]; !ok {
				list = append(list, m.Planned)
			}
		}
		return err
	})
	return list, err
}

// readMigrations reads the files NNNNN_subject.sql in the order of their numbers.
func readMigrations(fsys fs.FS) ([]migration, error) {
	names, err := fs.Glob(fsys, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	slices.Sort(names)
	var files []migration
	for _, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		number, _, _ := strings.Cut(name, "_")
		version, err := strconv.Atoi(number)
		if err != nil || len(number) != 5 || len(files) > 0 && files[len(files)-1].version >= version {
			return nil, fmt.Errorf("store: migration %s: its number is missing, malformed or there twice", name)
		}
		m := migration{Planned: Planned{Name: name}, version: version, sql: string(text), sum: sha256.Sum256(text)}
		for line := range strings.Lines(m.sql) {
			switch strings.TrimSpace(line) {
			case "-- outside":
				m.Outside = true
			case "-- breaks older programs":
				m.Breaks = true
			}
		}
		files = append(files, m)
	}
	return files, nil
}

// Plan returns what Migrate would apply, in order. It changes nothing.
func (db *DB) Plan(ctx context.Context) ([]Planned, error) {
	files, err := readMigrations(migrations.FS)
	if err != nil {
		return nil, err
	}
	return db.missing(ctx, files)
}

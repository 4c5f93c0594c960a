package store

import (
	"context"
	"io/fs"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MigrateFS applies other files than ours.
func (db *DB) MigrateFS(ctx context.Context, fsys fs.FS) (int, error) {
	files, err := readMigrations(fsys)
	if err != nil {
		return 0, err
	}
	return db.migrate(ctx, files)
}

// MigrationLock is the key of the advisory lock for migrating.
func (db *DB) MigrationLock() int64 { return db.migrationLock() }

// Pool is for tests that query the database directly.
func (db *DB) Pool() *pgxpool.Pool { return db.pool }

// Texts are all statements as they are sent.
func (db *DB) Texts() []string { return db.sql }

// Queued are the texts of a batch's statements.
func (b *Batch) Queued() (texts []string) {
	for _, q := range b.queue.QueuedQueries {
		texts = append(texts, q.SQL)
	}
	return texts
}

// With lends a connection of the pool.
func (db *DB) With(ctx context.Context, f func(*pgx.Conn) error) error {
	return db.withConn(ctx, "test", f)
}

// Fill puts names into a text.
func (db *DB) Fill(sql string) string { return db.fill(sql) }

// TxOn runs a transaction on a connection that is held already.
func TxOn(ctx context.Context, db *DB, c *pgx.Conn, f func(*Tx) error) error {
	return db.inTx(ctx, c, f)
}

var selectTokens = define(`
select ` + tokenColumns + `
from {one_time_tokens} t
where t.user_id = $1 and t.kind = any($2)
order by t.created_at desc, t.id desc`)

// Tokens reads a user's tokens of these kinds, newest first, expired ones too.
func (b *Batch) Tokens(dst *[]Token, user uuid.UUID, kinds ...Kind) {
	*dst = nil
	b.rows("tokens", dst, appendTo(dst, tokenTargets), selectTokens, user, kindArray(kinds))
}

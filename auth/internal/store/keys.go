package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/clock"
)

// SigningKey is a private key, sealed under the root key. Its times decide when it signs. At any time one key signs:
// among the keys that are not revoked and whose SignsAt has passed, it is the one with the latest SignsAt.
type SigningKey struct {
	KID, Algorithm string
	Sealed         []byte
	// SignsAt is when the key begins to sign. RevokedAt is zero if the key was not revoked.
	CreatedAt, SignsAt, RevokedAt time.Time
}

const keyColumns = `kid, algorithm, sealed, created_at, signs_at, revoked_at`

var selectSigningKeys = define(`
select ` + keyColumns + `
from {signing_keys}
order by signs_at desc, kid`)

// selectTimedKeys returns one row with only the time if there is no key.
var selectTimedKeys = define(`
select now.at, ` + keyColumns + `
from (select clock_timestamp() as at) now left join {signing_keys} on true
order by signs_at desc, kid`)

var selectTime = define(`
select clock_timestamp()`)

func (k *SigningKey) targets() []any {
	return []any{&k.KID, &k.Algorithm, &k.Sealed, &k.CreatedAt, &k.SignsAt, &k.RevokedAt}
}

// SigningKeys reads all keys, the one with the latest SignsAt first, and PostgreSQL's clock.
func (db *DB) SigningKeys(ctx context.Context) (list []SigningKey, at clock.Reading, err error) {
	at, err = db.timed(ctx, "signing keys", selectTimedKeys, func(r pgx.Rows, now *time.Time) error {
		var k SigningKey
		err := scanRow(r, append([]any{now}, k.targets()...))
		if k.KID != "" {
			list = append(list, k)
		}
		return err
	})
	return list, at, err
}

// Time reads PostgreSQL's clock.
func (db *DB) Time(ctx context.Context) (clock.Reading, error) {
	return db.timed(ctx, "time", selectTime, func(r pgx.Rows, now *time.Time) error { return scanRow(r, []any{now}) })
}

// timed runs a statement whose rows contain PostgreSQL's time. The result at has this time, and the times when the
// statement was sent and its result was received, without the wait for a connection.
func (db *DB) timed(ctx context.Context, doing string, s statement,
	row func(pgx.Rows, *time.Time) error) (at clock.Reading, err error) {
	err = db.withConn(ctx, doing, func(c *pgx.Conn) error {
		at.Sent = time.Now()
		rows, err := c.Query(ctx, db.sql[s])
		if err != nil {
			return err
		}
		err = eachRow(rows, func(r pgx.Rows) error { return row(r, &at.Server) })
		at.Received = time.Now()
		return err
	})
	return at, err
}

var lockSigningKeys = define(`
lock table {signing_keys} in share row exclusive mode`)

var insertSigningKey = define(insertInto("{signing_keys}", keyColumns))

// FirstSigningKey adds a key if there is none, and returns the stored keys. So replicas that start at the same time
// with an empty database all get the same key.
func (db *DB) FirstSigningKey(ctx context.Context, k SigningKey) (list []SigningKey, err error) {
	err = db.InTx(ctx, func(t *Tx) error {
		if err := t.run(ctx, lockSigningKeys); err != nil {
			return err
		}
		list = nil
		err := t.query(ctx, appendTo(&list, (*SigningKey).targets), selectSigningKeys)
		if err != nil || len(list) > 0 {
			return err
		}
		list = []SigningKey{k}
		return t.run(ctx, insertSigningKey, valuesOf(k.targets())...)
	})
	return list, err
}

// InsertSigningKey adds a signing key.
func (b *Batch) InsertSigningKey(k SigningKey) {
	b.exec("insert signing key", insertSigningKey, valuesOf(k.targets())...)
}

var revokeSigningKey = define(`
update {signing_keys} set revoked_at = $2 where kid = $1 and revoked_at is null`)

// RevokeSigningKey marks a key as revoked. Each replica refuses tokens that the key has signed as soon as it has read
// the keys again.
func (b *Batch) RevokeSigningKey(kid string, now time.Time) {
	b.exec("revoke signing key", revokeSigningKey, kid, now)
}

var resealSigningKey = define(`
update {signing_keys} set sealed = $2 where kid = $1`)

// ResealSigningKey replaces a sealed key by the same key, sealed under a newer root key.
func (db *DB) ResealSigningKey(ctx context.Context, kid string, sealed []byte) error {
	return db.run(ctx, "reseal signing key", resealSigningKey, kid, sealed)
}

var deleteSigningKey = define(`
delete from {signing_keys} where kid = $1`)

// DeleteSigningKey deletes a key that no longer verifies any token.
func (db *DB) DeleteSigningKey(ctx context.Context, kid string) error {
	return db.run(ctx, "delete signing key", deleteSigningKey, kid)
}

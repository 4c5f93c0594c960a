package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// SigningKey is a private key, sealed. Which one signs follows from the times: see the migration.
type SigningKey struct {
	KID, Algorithm string
	Sealed         []byte
	// SignsAt is from when on it signs. RevokedAt is zero unless it was revoked.
	CreatedAt, SignsAt, RevokedAt time.Time
}

var selectSigningKeys = define(`
select kid, algorithm, sealed, created_at, signs_at, revoked_at
from {signing_keys}
order by signs_at desc, kid`)

func keysInto(list *[]SigningKey) func(pgx.Rows) error {
	*list = nil
	return func(r pgx.Rows) error {
		var k SigningKey
		err := r.Scan(&k.KID, &k.Algorithm, (*nullBytes)(&k.Sealed), (*nullTime)(&k.CreatedAt), (*nullTime)(&k.SignsAt),
			(*nullTime)(&k.RevokedAt))
		*list = append(*list, k)
		return err
	}
}

// SigningKeys reads all keys, the one that signs last first.
func (db *DB) SigningKeys(ctx context.Context) ([]SigningKey, error) {
	var list []SigningKey
	err := db.query(ctx, "signing keys", keysInto(&list), selectSigningKeys)
	return list, err
}

var lockSigningKeys = define(`
lock table {signing_keys} in share row exclusive mode`)

var insertSigningKey = define(`
insert into {signing_keys} (kid, algorithm, sealed, created_at, signs_at)
values ($1, $2, $3, $4, $5)`)

// FirstSigningKey adds a key if there is none at all, and returns what is there then: of replicas
// that start at once on an empty database, all work with the same key.
func (db *DB) FirstSigningKey(ctx context.Context, k SigningKey) (list []SigningKey, err error) {
	err = db.InTx(ctx, func(t *Tx) error {
		if _, err := t.tx.Exec(ctx, db.sql[lockSigningKeys]); err != nil {
			return err
		}
		rows, err := t.tx.Query(ctx, db.sql[selectSigningKeys])
		if err != nil {
			return err
		}
		if err := eachRow(rows, keysInto(&list)); err != nil || len(list) > 0 {
			return err
		}
		list = []SigningKey{k}
		_, err = t.tx.Exec(ctx, db.sql[insertSigningKey], k.KID, k.Algorithm, k.Sealed, k.CreatedAt, k.SignsAt)
		return err
	})
	return list, err
}

// InsertSigningKey adds a key.
func (b *Batch) InsertSigningKey(k SigningKey) {
	b.exec("insert signing key", insertSigningKey, k.KID, k.Algorithm, k.Sealed, k.CreatedAt, k.SignsAt)
}

var revokeSigningKey = define(`
update {signing_keys} set revoked_at = $2 where kid = $1 and revoked_at is null`)

// RevokeSigningKey makes a key's tokens worthless on every replica that reads the keys again.
func (b *Batch) RevokeSigningKey(kid string, now time.Time) {
	b.exec("revoke signing key", revokeSigningKey, kid, now)
}

var resealSigningKey = define(`
update {signing_keys} set sealed = $2 where kid = $1`)

// ResealSigningKey replaces a sealed key by the same one sealed with a newer root key.
func (db *DB) ResealSigningKey(ctx context.Context, kid string, sealed []byte) error {
	_, err := db.exec(ctx, "reseal signing key", resealSigningKey, kid, sealed)
	return err
}

var deleteSigningKey = define(`
delete from {signing_keys} where kid = $1`)

// DeleteSigningKey removes a key that nothing is verified with any more.
func (db *DB) DeleteSigningKey(ctx context.Context, kid string) error {
	_, err := db.exec(ctx, "delete signing key", deleteSigningKey, kid)
	return err
}

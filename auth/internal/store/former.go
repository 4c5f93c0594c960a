package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Takeover is how far users were taken over from another service's tables.
type Takeover struct {
	// Source is HOST:PORT/DATABASE SCHEMA; "": there is no takeover, or it was abandoned.
	Source string
	// Open: the tables belong to the takeover, and no other program may change them.
	Open bool
	// StartedAt is the time of the first run. ClosedAt is the time of the last run; zero while the takeover is open.
	StartedAt, ClosedAt time.Time
	// LinksUntil is when the last mailed link that was carried over expires; zero if there is none.
	LinksUntil time.Time
}

// The table has a row for each takeover that was closed, usually one.
var selectTakeover = define(`
select source, state = 'open', started_at, closed_at, (steps->>'links_until')::timestamptz
from {moves} where kind = 'takeover'
order by state = 'open' desc, started_at desc limit 1`)

// Takeover reads the takeover that is open, or else the last one that was closed.
func (db *DB) Takeover(ctx context.Context) (m Takeover, err error) {
	err = db.query(ctx, "takeover", rowInto(&m.Source, &m.Open, &m.StartedAt, &m.ClosedAt, &m.LinksUntil),
		selectTakeover)
	return m, err
}

var countCarriedAnonymous = define(`
select count(*) from {users} where is_anonymous and created_at < $1`)

// CarriedAnonymous counts the anonymous users who were made before a takeover was closed.
func (db *DB) CarriedAnonymous(ctx context.Context, closed time.Time) (n int64, err error) {
	err = db.queryRow(ctx, "carried anonymous", []any{&n}, countCarriedAnonymous, closed)
	return n, err
}

// SessionSecret proves that a refresh token belongs to a session.
type SessionSecret struct {
	Session uuid.UUID
	// Hash is SHA-256 of the session's secret.
	Hash []byte
}

var selectSecret = define(`
select id, secret_hash from {sessions} where id = $1`)

// SecretOfSession reads the hash of the secret of a session, ended or not. ErrNotFound: no such session.
func (db *DB) SecretOfSession(ctx context.Context, id uuid.UUID) (s SessionSecret, err error) {
	err = db.queryRow(ctx, "secret of session", s.targets(), selectSecret, id)
	return s, err
}

var selectSecretOfToken = define(`
select s.id, s.secret_hash from {former_tokens} f join {sessions} s on s.id = f.session_id
where f.token_mac = any($1::bytea[])
limit 1`)

// SecretOfFormerToken reads the secret's hash of the session that a refresh token of the replaced service belongs to.
// macs are the token's MACs under each key. ErrNotFound: no such token.
func (db *DB) SecretOfFormerToken(ctx context.Context, macs [][]byte) (s SessionSecret, err error) {
	err = db.queryRow(ctx, "secret of former token", s.targets(), selectSecretOfToken, macs)
	return s, err
}

func (s *SessionSecret) targets() []any { return []any{&s.Session, &s.Hash} }

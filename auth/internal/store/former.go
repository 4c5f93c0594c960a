package store

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Takeover is the state of a takeover, which copies the users of another service from its tables to ours.
type Takeover struct {
	// Source is where the users come from: HOST:PORT/DATABASE SCHEMA. It is "" if there is no takeover or it was
	// abandoned.
	Source string
	// Open is true while the takeover is not closed. During that time only the takeover may change our tables.
	Open bool
	// StartedAt is the time of the takeover's first run, ClosedAt that of its last run; ClosedAt is zero while the
	// takeover is open.
	StartedAt, ClosedAt time.Time
	// LinksUntil is when the last of the mailed links that the takeover has copied expires; zero if it has copied none.
	LinksUntil time.Time
}

// selectTakeover reads a table that has a row for each takeover that was closed, usually one.
var selectTakeover = define(`
select source, state = 'open', started_at, closed_at, (steps->>'links_until')::timestamptz
from {moves} where kind = 'takeover'
order by state = 'open' desc, started_at desc limit 1`)

// Takeover reads the open takeover, or if there is none, the one that was closed last.
func (db *DB) Takeover(ctx context.Context) (m Takeover, err error) {
	err = db.query(ctx, "takeover", rowInto(&m.Source, &m.Open, &m.StartedAt, &m.ClosedAt, &m.LinksUntil),
		selectTakeover)
	return m, err
}

var countCarriedAnonymous = define(`
select count(*) from {users} where is_anonymous and created_at < $1`)

// CarriedAnonymous returns the number of anonymous users who were created before a takeover was closed.
func (db *DB) CarriedAnonymous(ctx context.Context, closed time.Time) (n int64, err error) {
	err = db.queryRow(ctx, "carried anonymous", []any{&n}, countCarriedAnonymous, closed)
	return n, err
}

// SessionSecret has the data with which a refresh token is verified to belong to a session.
type SessionSecret struct {
	Session uuid.UUID
	// Hash is the SHA-256 of the session's secret.
	Hash []byte
}

var selectSecret = define(`
select id, secret_hash from {sessions} where id = $1`)

// SecretOfSession reads the hash of a session's secret, even if the session has ended. The error is ErrNotFound if
// there is no such session.
func (db *DB) SecretOfSession(ctx context.Context, id uuid.UUID) (s SessionSecret, err error) {
	err = db.queryRow(ctx, "secret of session", s.targets(), selectSecret, id)
	return s, err
}

var selectSecretOfToken = define(`
select s.id, s.secret_hash from {former_tokens} f join {sessions} s on s.id = f.session_id
where f.token_mac = any($1::bytea[])
limit 1`)

// SecretOfFormerToken reads the hash of the secret of the session to which a refresh token of the former service
// belongs. macs are the token's MACs under the current and the previous keys. The error is ErrNotFound if there is no
// such token.
func (db *DB) SecretOfFormerToken(ctx context.Context, macs [][]byte) (s SessionSecret, err error) {
	err = db.queryRow(ctx, "secret of former token", s.targets(), selectSecretOfToken, macs)
	return s, err
}

func (s *SessionSecret) targets() []any { return []any{&s.Session, &s.Hash} }

package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Move is a row of our table "moves". It records a takeover, which copies another service's users to our tables, or a
// mirror, which keeps that service's tables current afterwards (package mirror).
type Move struct {
	ID, Owner uuid.UUID
	// Source is where the users come from: HOST:PORT/DATABASE SCHEMA. Mark distinguishes the source's tables from other
	// tables with the same names.
	Source, Mark string
	Closed       bool
	// Floor is the id of a transaction of the source: the next pass of the takeover looks for changes by this and later
	// transactions. PassFloor is the Floor that will be stored when the present pass, which was begun and not
	// completed, is completed. Each is nil if there is none.
	Floor, PassFloor *int64
	Steps            json.RawMessage
	StartedAt        time.Time
	ClosedAt         time.Time // zero while it is open
}

// ErrMoveLost means that another process has continued, closed or abandoned the takeover.
var ErrMoveLost = errors.New("another process goes on with this takeover")

// The kinds of rows in our table moves.
const (
	MoveTakeover = "takeover"
	MoveMirror   = "mirror"
)

var selectMoves = define(`
select id, owner, source, coalesce(source_mark, ''), state = 'closed', floor, pass_floor, steps, started_at, closed_at
from {moves} where kind = $1
order by state = 'open' desc, started_at desc`)

// Moves reads the rows of one kind, an open one first.
func (db *DB) Moves(ctx context.Context, kind string) (list []Move, err error) {
	err = db.query(ctx, "moves", appendTo(&list, func(m *Move) []any {
		return []any{&m.ID, &m.Owner, &m.Source, &m.Mark, &m.Closed, &m.Floor, &m.PassFloor, &m.Steps, &m.StartedAt,
			&m.ClosedAt}
	}), selectMoves, kind)
	return list, err
}

var openMove = define(`
insert into {moves} (id, kind, source, state, owner, source_mark, steps, started_at)
values ($1, 'takeover', $2, 'open', $3, $4, $5, $6)
on conflict (kind) where state = 'open' and kind = 'takeover' do nothing`)

var ownMove = define(`
update {moves} set owner = $2, source_mark = $3 where id = $1 and state = 'open'`)

// OpenMove starts a takeover. It returns false if a takeover is open already.
func (db *DB) OpenMove(ctx context.Context, m Move) (opened bool, err error) {
	n, err := db.exec(ctx, "open move", openMove, m.ID, m.Source, m.Owner, m.Mark, []byte(m.Steps), m.StartedAt)
	return n == 1, err
}

// OwnMove makes m.Owner the owner of the open takeover m.ID, and stores m.Mark. From then on Carry fails in every other
// process.
func (db *DB) OwnMove(ctx context.Context, m Move) error {
	n, err := db.exec(ctx, "own move", ownMove, m.ID, m.Owner, m.Mark)
	if err == nil && n == 0 {
		err = ErrMoveLost
	}
	return err
}

// Carrier writes rows of another service to our tables, within one transaction of the process that owns the takeover.
type Carrier struct {
	t *Tx
}

const carrySettings = `set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0; set local work_mem = '32MB'`

var lockMove = define(`
select from {moves} where id = $1 and owner = $2 and state = 'open' for update`)

var saveMove = define(`
update {moves} set steps = $3, floor = $4, pass_floor = $5 where id = $1 and owner = $2`)

// batchSettings make PostgreSQL use the indexes of our tables when it joins them with a batch of rows. Without these
// settings it would not, since the tables have no statistics before they are filled.
const batchSettings = carrySettings + `; set local enable_hashjoin = off; set local enable_mergejoin = off`

// Carry calls f and stores m as f has changed it, in one transaction. The error is ErrMoveLost if another process owns
// the takeover.
func (db *DB) Carry(ctx context.Context, m *Move, f func(*Carrier) error) error {
	return db.withConn(ctx, "carry", func(c *pgx.Conn) error {
		return db.inTx(ctx, c, func(t *Tx) error {
			if _, err := t.tx.Exec(ctx, batchSettings, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
			tag, err := t.exec(ctx, lockMove, m.ID, m.Owner)
			if err != nil {
				return err
			}
			if tag == 0 {
				return ErrMoveLost
			}
			if err := f(&Carrier{t}); err != nil {
				return err
			}
			return t.run(ctx, saveMove, m.ID, m.Owner, []byte(m.Steps), m.Floor, m.PassFloor)
		})
	})
}

var closeMove = define(`
update {moves} set state = 'closed', closed_at = $3, owner = null where id = $1 and owner = $2 and state = 'open'`)

// Close closes the takeover within the transaction, and writes an audit row with the given traits.
func (c *Carrier) Close(ctx context.Context, m *Move, at time.Time, traits json.RawMessage) error {
	b := c.t.Batch()
	b.exec("close move", closeMove, m.ID, m.Owner, at)
	b.exec("audit", insertAudit,
		append(Audit{At: at, Action: ActionUsersCarried, ActorRole: "auth takeover", Traits: traits}.args(), nil)...)
	return b.Send(ctx)
}

// readOnly executes a query in a transaction of its own, without a time limit.
func (db *DB) readOnly(ctx context.Context, s statement, each func(pgx.Rows) error, args ...any) error {
	return db.withConn(ctx, "read", func(c *pgx.Conn) error {
		tx, err := c.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
		if err != nil {
			return err
		}
		defer func() {
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelGrace)
			defer cancel()
			tx.Rollback(undo)
		}()
		if _, err := tx.Exec(ctx, carrySettings, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, db.sql[s], encodeUUIDs(args)...)
		if err != nil {
			return err
		}
		return eachRow(rows, each)
	})
}

var selectOwnProcesses = define(`
select pid from pg_stat_activity where usename = session_user and application_name = current_setting('application_name')`)

// OwnProcesses returns the ids of the server processes whose connections have this program's role and application name,
// including this program's own connections.
func (db *DB) OwnProcesses(ctx context.Context) (list []int32, err error) {
	list = []int32{} // so that an SQL argument is an empty array, not null
	err = db.readOnly(ctx, selectOwnProcesses, appendTo(&list, func(pid *int32) []any { return []any{pid} }))
	return list, err
}

// CarriedTable identifies a table into which a takeover copies rows.
type CarriedTable int

// The tables whose rows are compared with the source by their ids.
const (
	CarriedUsers CarriedTable = iota
	CarriedIdentities
	CarriedFactors
	CarriedSessions
	CarriedPasskeys
)

// carriedRows has an SQL text for each CarriedTable: the row's id, the id of its user, and the table.
var carriedRows = [...]string{
	"id, id from {users}",
	"id, user_id from {identities}",
	"id, user_id from {factors}",
	"id, user_id from {sessions}",
	"id, user_id from {webauthn_credentials} where factor_id is null",
}

// forCarried defines a statement for each CarriedTable. Its text is the parameter first, then the table's rows under
// the name r (id, owner), then the parameter rest. So first must end with the word "from".
func forCarried(first, rest string) (list [len(carriedRows)]statement) {
	for i, rows := range carriedRows {
		list[i] = define(first + " (select " + rows + ") r (id, owner)" + rest)
	}
	return list
}

var selectCarriedIDs = forCarried(`select id, owner from`, ` order by id`)

// CarriedIDs calls the function each with the id and the user's id of every row of a table, ordered by id.
func (db *DB) CarriedIDs(ctx context.Context, table CarriedTable, each func(id, user uuid.UUID) error) error {
	return db.readOnly(ctx, selectCarriedIDs[table], func(r pgx.Rows) error {
		var id, user uuid.UUID
		if err := scanRow(r, []any{&id, &user}); err != nil {
			return err
		}
		return each(id, user)
	})
}

// SumOfIDs is an SQL aggregate over a column id: the sums of two 64-bit hashes of the ids. Different sets of ids
// practically never have the same sums. Equal sets have different sums in two databases that hash differently.
const SumOfIDs = `coalesce(sum(uuid_hash_extended(id, 0))::text || ' ' || sum(uuid_hash_extended(id, 1))::text, '')`

var groupCarried = forCarried("select count(*), "+SumOfIDs+" from", "")

// CarriedGroup returns the number of a table's rows and the SumOfIDs of their ids.
func (db *DB) CarriedGroup(ctx context.Context, table CarriedTable) (rows int64, sum string, err error) {
	err = db.readOnly(ctx, groupCarried[table], rowInto(&rows, &sum))
	return rows, sum, err
}

var sampleUsers, sampleSessions = define(`select id from {users} order by random() limit $1`),
	define(`select id from {sessions} order by random() limit $1`)

// SampleUsers returns the ids of n users, chosen at random.
func (db *DB) SampleUsers(ctx context.Context, n int) ([]uuid.UUID, error) {
	return db.sample(ctx, sampleUsers, n)
}

// SampleSessions returns the ids of n sessions, chosen at random.
func (db *DB) SampleSessions(ctx context.Context, n int) ([]uuid.UUID, error) {
	return db.sample(ctx, sampleSessions, n)
}

func (db *DB) sample(ctx context.Context, s statement, n int) (list []uuid.UUID, err error) {
	err = db.readOnly(ctx, s, appendTo(&list, func(id *uuid.UUID) []any { return []any{id} }), n)
	return list, err
}

// CountUsers does the same as DB.CountUsers, within the transaction.
func (c *Carrier) CountUsers(ctx context.Context) (n int64, err error) {
	err = c.t.queryRow(ctx, []any{&n}, countCarried)
	return n, err
}

var deleteCarried = [...]statement{
	define(`delete from {users} where id = any($1)`),
	define(`delete from {identities} where id = any($1)`),
	define(`delete from {factors} where user_id = any($1)`), // by user, as names must be unique among a user's factors
	define(`delete from {sessions} where id = any($1)`),
	define(`delete from {webauthn_credentials} where id = any($1)`),
}

// Delete deletes rows of a table by their ids. Factors are deleted by the ids of their users.
func (c *Carrier) Delete(ctx context.Context, table CarriedTable, ids []uuid.UUID) (int64, error) {
	return c.t.exec(ctx, deleteCarried[table], ids)
}

var blankUsers = define(`
update {users} set email = '', phone = '' where id = any($1) and (email <> '' or phone <> '')`)

// BlankUsers removes the email addresses and phone numbers of users, since these may belong to other users of the
// source now. The users get addresses again when they are written.
func (c *Carrier) BlankUsers(ctx context.Context, ids []uuid.UUID) error {
	return c.t.run(ctx, blankUsers, ids)
}

var detachFactors = define(`
update {sessions} s set factor_id = null
where s.factor_id is not null and not exists (select from {factors} f where f.id = s.factor_id)`)

// DetachFactors removes from sessions the ids of factors that do not exist any more.
func (c *Carrier) DetachFactors(ctx context.Context) error { return c.t.run(ctx, detachFactors) }

var countCarried = define(`select count(*) from {users}`)

// CountUsers returns the number of users.
func (db *DB) CountUsers(ctx context.Context) (n int64, err error) {
	err = db.readOnly(ctx, countCarried, rowInto(&n))
	return n, err
}

var analyzeCarried = []string{"{users}", "{identities}", "{factors}", "{sessions}", "{former_tokens}",
	"{one_time_tokens}", "{webauthn_credentials}"}

// AnalyzeCarried updates the statistics of PostgreSQL's query planner after many rows were written.
func (db *DB) AnalyzeCarried(ctx context.Context) error {
	return db.withConn(ctx, "analyze", func(c *pgx.Conn) error {
		for _, name := range analyzeCarried {
			if _, err := c.Exec(ctx, db.fill("analyze "+name), pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		return nil
	})
}

var selectCarriedUsers = define(`
select ` + userColumns + `,` + identityColumns + `
from {users} u left join {identities} i on i.user_id = u.id
where u.id = any($1) order by u.id`)

// CarriedUsers reads users by their ids, with identities and without factors.
func (db *DB) CarriedUsers(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]*User, error) {
	found := map[uuid.UUID]*User{}
	err := db.readOnly(ctx, selectCarriedUsers, func(r pgx.Rows) error {
		u := new(User)
		var i Identity
		if err := scanRow(r, append(userTargets(u), identityTargets(&i)...)); err != nil {
			return err
		}
		if found[u.ID] == nil {
			found[u.ID] = u
		}
		if i.ID != uuid.Nil {
			found[u.ID].Identities = append(found[u.ID].Identities, i)
		}
		return nil
	}, ids)
	return found, err
}

// CarriedFactor is a verified second factor that a takeover copies. Secret is sealed under the root key; nil for none.
type CarriedFactor struct {
	Factor
	UserID uuid.UUID
	Secret []byte
	// Credential is the credential of a security key; nil for other factors.
	Credential *Credential
}

const carriedFactorColumns = factorColumns + `, f.user_id, f.secret`

func carriedFactorTargets(f *CarriedFactor) []any {
	return append(factorTargets(&f.Factor), &f.UserID, &f.Secret)
}

var selectCarriedFactors = define(`
select ` + carriedFactorColumns + ` from {factors} f where f.user_id = any($1) order by f.user_id, f.created_at, f.id`)

var selectCarriedCredentials = define(`
select ` + credentialColumns + ` from {webauthn_credentials} c where c.user_id = any($1)`)

// CarriedFactors reads the factors, passkeys and security keys of users. In the results, factors has a user's factors
// by the factor's id, and credentials has passkeys and security keys by the credential's id. The credential of a
// security key has the same id as its factor.
func (db *DB) CarriedFactors(ctx context.Context, users []uuid.UUID) (factors map[uuid.UUID]CarriedFactor,
	credentials map[uuid.UUID]*Credential, err error) {
	var list []Credential
	var found []CarriedFactor
	err = db.readOnly(ctx, selectCarriedCredentials, appendTo(&list, credentialTargets), users)
	if err == nil {
		err = db.readOnly(ctx, selectCarriedFactors, appendTo(&found, carriedFactorTargets), users)
	}
	factors, credentials = map[uuid.UUID]CarriedFactor{}, map[uuid.UUID]*Credential{}
	for i := range list {
		credentials[list[i].ID] = &list[i]
	}
	for _, f := range found {
		f.Credential = credentials[f.ID]
		factors[f.ID] = f
	}
	return factors, credentials, err
}

// CarriedSession is a session that a takeover copies. The refresh token that the former service has issued for it
// counts as the session's first refresh token.
type CarriedSession struct {
	Session
	SecretHash [32]byte
	// TokenMAC is the MAC of the refresh token, by which the session is found; nil if the token itself contains the
	// session's id.
	TokenMAC []byte
}

var selectCarriedSessions = define(`
select ` + sessionColumns + `, s.secret_hash, t.token_mac
from {sessions} s left join {former_tokens} t on t.session_id = s.id where s.id = any($1)`)

// CarriedSessions reads sessions by their ids.
func (db *DB) CarriedSessions(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]CarriedSession, error) {
	found := map[uuid.UUID]CarriedSession{}
	err := db.readOnly(ctx, selectCarriedSessions, func(r pgx.Rows) error {
		var s CarriedSession
		var hash []byte
		err := scanRow(r, append(sessionTargets(&s.Session), &hash, &s.TokenMAC))
		copy(s.SecretHash[:], hash)
		found[s.ID] = s
		return err
	}, ids)
	return found, err
}

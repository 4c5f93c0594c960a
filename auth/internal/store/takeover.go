package store

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Move is a takeover of another service's users.
type Move struct {
	ID, Owner uuid.UUID
	// Source is HOST:PORT/DATABASE SCHEMA; Mark distinguishes the source's tables from other tables of the same names.
	Source, Mark string
	Closed       bool
	// Floor is the transaction of the source from which on the next pass looks for changes. PassFloor is the floor of
	// the pass under way; nil: none.
	Floor, PassFloor *int64
	Steps            json.RawMessage
	StartedAt        time.Time
	ClosedAt         time.Time // zero while it is open
}

// ErrMoveLost: another process has continued, closed or abandoned the takeover.
var ErrMoveLost = errors.New("another process goes on with this takeover")

// The kinds of rows of {moves}.
const (
	MoveTakeover = "takeover"
	MoveMirror   = "mirror"
)

var selectMoves = define(`
select id, owner, source, coalesce(source_mark, ''), state = 'closed', floor, pass_floor, steps, started_at, closed_at
from {moves} where kind = $1
order by state = 'open' desc, started_at desc`)

// Moves reads the takeovers, or the mirrors; an open one comes first.
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

// OpenMove begins a takeover, unless one is open already.
func (db *DB) OpenMove(ctx context.Context, m Move) (opened bool, err error) {
	n, err := db.exec(ctx, "open move", openMove, m.ID, m.Source, m.Owner, m.Mark, []byte(m.Steps), m.StartedAt)
	return n == 1, err
}

// OwnMove makes m.Owner the owner of the open takeover m.ID and stores m.Mark. From then on the batches of any other
// process for this takeover fail.
func (db *DB) OwnMove(ctx context.Context, m Move) error {
	n, err := db.exec(ctx, "own move", ownMove, m.ID, m.Owner, m.Mark)
	if err == nil && n == 0 {
		err = ErrMoveLost
	}
	return err
}

// Carrier writes rows that come from another service, in one transaction of the process that owns the takeover.
type Carrier struct {
	t *Tx
}

const carrySettings = `set local statement_timeout = 0; set local idle_in_transaction_session_timeout = 0; set local work_mem = '32MB'`

var lockMove = define(`
select from {moves} where id = $1 and owner = $2 and state = 'open' for update`)

var saveMove = define(`
update {moves} set steps = $3, floor = $4, pass_floor = $5 where id = $1 and owner = $2`)

// batchSettings make joins with a batch use the indexes of our tables, which have no statistics until they are filled.
// The source's connections have the same settings.
const batchSettings = carrySettings + `; set local enable_hashjoin = off; set local enable_mergejoin = off`

// Carry runs f and stores m as f leaves it, in one transaction. ErrMoveLost: another process owns the takeover.
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
			err = t.run(ctx, saveMove, m.ID, m.Owner, []byte(m.Steps), m.Floor, m.PassFloor)
			return err
		})
	})
}

// queryRow is DB.queryRow within the transaction, without repetition.
func (t *Tx) queryRow(ctx context.Context, targets []any, s statement, args ...any) error {
	rows, err := t.tx.Query(ctx, t.db.sql[s], encodeUUIDs(args)...)
	return oneRow(rows, err, targets)
}

func (t *Tx) exec(ctx context.Context, s statement, args ...any) (int64, error) {
	tag, err := t.tx.Exec(ctx, t.db.sql[s], encodeUUIDs(args)...)
	return tag.RowsAffected(), err
}

func (t *Tx) run(ctx context.Context, s statement, args ...any) error {
	_, err := t.exec(ctx, s, args...)
	return err
}

var closeMove = define(`
update {moves} set state = 'closed', closed_at = $3, owner = null where id = $1 and owner = $2 and state = 'open'`)

// Close ends the takeover and writes an audit row with these traits, within the transaction.
func (c *Carrier) Close(ctx context.Context, m *Move, at time.Time, traits json.RawMessage) error {
	b := c.t.Batch()
	b.exec("close move", closeMove, m.ID, m.Owner, at)
	b.exec("audit", insertAudit,
		append(Audit{At: at, Action: ActionUsersCarried, ActorRole: "auth takeover", Traits: traits}.args(), nil)...)
	return b.Send(ctx)
}

// readOnly runs a query in a transaction of its own, without a time limit.
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

// OwnProcesses returns the IDs of the server's processes whose connections have our role and application name,
// including this program's own.
func (db *DB) OwnProcesses(ctx context.Context) (list []int32, err error) {
	list = []int32{} // an empty list, not null, in SQL
	err = db.readOnly(ctx, selectOwnProcesses, appendTo(&list, func(pid *int32) []any { return []any{pid} }))
	return list, err
}

// CarriedTable is a table into which a takeover writes rows.
type CarriedTable int

// The tables that are compared with the source by their ids.
const (
	CarriedUsers CarriedTable = iota
	CarriedIdentities
	CarriedFactors
	CarriedSessions
	CarriedPasskeys
)

// carriedRows has, by CarriedTable, the rows with their ids and the ids of their users.
var carriedRows = [...]string{
	"id, id from {users}",
	"id, user_id from {identities}",
	"id, user_id from {factors}",
	"id, user_id from {sessions}",
	"id, user_id from {webauthn_credentials} where factor_id is null",
}

// forCarried defines a statement for each CarriedTable, whose rows follow the word from at the end of the first part.
func forCarried(first, rest string) (list [len(carriedRows)]statement) {
	for i, rows := range carriedRows {
		list[i] = define(first + " (select " + rows + ") r (id, owner)" + rest)
	}
	return list
}

var selectCarriedIDs = forCarried(`select id, owner from`, ` order by id`)

// CarriedIDs reads the id and the user's id of all rows of a table, in order.
func (db *DB) CarriedIDs(ctx context.Context, table CarriedTable, each func(id, user uuid.UUID) error) error {
	return db.readOnly(ctx, selectCarriedIDs[table], func(r pgx.Rows) error {
		var id, user uuid.UUID
		if err := scanRow(r, []any{&id, &user}); err != nil {
			return err
		}
		return each(id, user)
	})
}

// SumOfIDs is an aggregate over a column id: the sums of two 64-bit hashes. If two databases hash differently, it
// differs for equal ids; for different ids it is practically never equal.
const SumOfIDs = `coalesce(sum(uuid_hash_extended(id, 0))::text || ' ' || sum(uuid_hash_extended(id, 1))::text, '')`

var groupCarried = forCarried("select count(*), "+SumOfIDs+" from", "")

// CarriedGroup counts the rows of a table and sums up their ids with SumOfIDs.
func (db *DB) CarriedGroup(ctx context.Context, table CarriedTable) (rows int64, sum string, err error) {
	err = db.readOnly(ctx, groupCarried[table], rowInto(&rows, &sum))
	return rows, sum, err
}

var sampleCarried = forCarried(`select id from`, ` order by random() limit $1`)

// SampleCarried returns the ids of some rows of a table.
func (db *DB) SampleCarried(ctx context.Context, table CarriedTable, rows int) (list []uuid.UUID, err error) {
	err = db.readOnly(ctx, sampleCarried[table],
		appendTo(&list, func(id *uuid.UUID) []any { return []any{id} }), rows)
	return list, err
}

// CountUsers is DB.CountUsers within the transaction.
func (c *Carrier) CountUsers(ctx context.Context) (n int64, err error) {
	err = c.t.queryRow(ctx, []any{&n}, countCarried)
	return n, err
}

var deleteCarried = [...]statement{
	define(`delete from {users} where id = any($1)`),
	define(`delete from {identities} where id = any($1)`),
	define(`delete from {factors} where user_id = any($1)`), // names are unique for each user
	define(`delete from {sessions} where id = any($1)`),
	define(`delete from {webauthn_credentials} where id = any($1)`),
}

// Delete removes rows by their ids; factors by their users' ids.
func (c *Carrier) Delete(ctx context.Context, table CarriedTable, ids []uuid.UUID) (int64, error) {
	return c.t.exec(ctx, deleteCarried[table], ids)
}

var blankUsers = define(`
update {users} set email = '', phone = '' where id = any($1) and (email <> '' or phone <> '')`)

// BlankUsers removes users' addresses, which other users may have now. The addresses are set again when the users are
// written.
func (c *Carrier) BlankUsers(ctx context.Context, ids []uuid.UUID) error {
	return c.t.run(ctx, blankUsers, ids)
}

var detachFactors = define(`
update {sessions} s set factor_id = null
where s.factor_id is not null and not exists (select from {factors} f where f.id = s.factor_id)`)

// DetachFactors removes from sessions the factors that no longer exist.
func (c *Carrier) DetachFactors(ctx context.Context) error { return c.t.run(ctx, detachFactors) }

var countCarried = define(`select count(*) from {users}`)

// CountUsers counts the users.
func (db *DB) CountUsers(ctx context.Context) (n int64, err error) {
	err = db.readOnly(ctx, countCarried, rowInto(&n))
	return n, err
}

var analyzeCarried = []string{"{users}", "{identities}", "{factors}", "{sessions}", "{former_tokens}",
	"{one_time_tokens}", "{webauthn_credentials}"}

// AnalyzeCarried renews the planner's statistics after many rows were written.
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

// CarriedFactor is a verified second factor. Secret is sealed; nil for none.
type CarriedFactor struct {
	Factor
	UserID uuid.UUID
	Secret []byte
	// Credential is the credential of a security key.
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

// CarriedFactors reads the factors of users, and the credentials of their passkeys and security keys. A security key's
// credential has the id of its factor.
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

// CarriedSession is a session of the other service. The session's refresh token there stands for the first refresh
// token here.
type CarriedSession struct {
	Session
	SecretHash [32]byte
	// TokenMAC finds the session by a refresh token that does not contain the session's ID; nil: the token contains it.
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

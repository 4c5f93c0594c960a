package store

import (
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// auditGate limits the audit rows without an actor before they reach the database. The limit is a bucket of tokens in
// the database. When the bucket is found empty, the gate stays closed for a second and skips rows without querying the
// bucket, so that a flood of rows does not queue for the bucket's lock. It counts the skipped rows and passes their
// number on with the next row that queries the bucket.
type auditGate struct {
	mu          sync.Mutex
	closedUntil time.Time // until then the bucket is not queried
	skipped     int64
}

// unnamedPerMinute is how many audit rows without an actor all replicas together write in a minute.
const unnamedPerMinute = "60"

// auditTicket is the gate's decision about one row. skipped is the number of rows that the gate has skipped before, or
// nil if the row does not query the bucket. closed means that the row must not be written.
type auditTicket struct {
	gate    *auditGate
	at      time.Time
	skipped *int64
	closed  bool
}

// admitAudit decides whether a row may be written. A row with an actor, or with the role of a service token, always
// may.
func (db *DB) admitAudit(a Audit) auditTicket {
	e := auditTicket{gate: &db.unnamed, at: a.At}
	if !a.unnamed() {
		return e
	}
	g := e.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if wait := g.closedUntil.Sub(a.At); wait > 0 && wait <= time.Second { // a longer wait: the clock was set back
		e.closed = true
		return e
	}
	carry := g.skipped
	e.skipped, g.skipped = &carry, 0
	return e
}

// report informs the gate of what became of the row. due is true if the row would have been written without the limit.
// wrote is true if the row was written.
func (e *auditTicket) report(due, wrote bool, err error) {
	g := e.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case e.closed && due && err == nil:
		g.skipped++
	case e.skipped == nil:
	case err != nil || !due:
		g.skipped += *e.skipped
	case !wrote:
		g.closedUntil = e.at.Add(time.Second)
	}
}

func (e *auditTicket) args() []any { return []any{e.skipped, e.closed} }

func (a Audit) unnamed() bool { return uuidOrNull(a.Actor) == nil && a.ActorRole == "" }

// noteIfRoom returns the common table expressions that write an audit row if the table expression named marked has a
// row and the bucket has a token. Their SQL parameters begin with number first: the values of Audit.args (at, action,
// actor, role, session, IP address and traits), followed by those of auditTicket.args.
func noteIfRoom(first int) string {
	return numberFrom(first, `counted as (
    insert into {audit_unnamed} as g (one, tokens, at, wrote, omitted, told, told_before)
    select true, `+unnamedPerMinute+` - 1, $1::timestamptz, true, $8::bigint, $8::bigint, 0 from marked where $8::bigint is not null
    on conflict (one) do update set (tokens, at, wrote, omitted, told, told_before) = (
        select held - holds::int, greatest(g.at, $1::timestamptz), holds, g.omitted + $8::bigint + (not holds)::int,
            case when holds then g.omitted + $8::bigint else g.told end, case when holds then g.told else g.told_before end
        from (select held, held >= 1 - 1e-9 as holds from (
            select least(`+unnamedPerMinute+`, g.tokens + greatest(0, extract(epoch from
                $1::timestamptz - g.at)::float8) * `+unnamedPerMinute+` / 60) as held) a) b)
    returning wrote, told - told_before as omitted
), noted as (
    insert into {audit} (at, action, actor_id, actor_role, session_id, ip, traits)
    select $1::timestamptz, $2::smallint, $3::uuid, $4::text, $5::uuid, $6::text,
        case when c.omitted > 0 then coalesce($7::jsonb, '{}') || jsonb_build_object('omitted', c.omitted) else $7::jsonb end
    from marked left join counted c on true
    where not $9::boolean and ($8::bigint is null or c.wrote)
)`)
}

// roomColumns are the result columns of a statement that writes an audit row: the parameters due and wrote of
// auditTicket.report.
const roomColumns = `exists (select from marked), coalesce((select wrote from counted), false)`

var insertUnnamed = define(`
with marked as (
    select where $10::uuid is null or exists (select from {users} where id = $10)
), ` + noteIfRoom(1) + `
select ` + roomColumns)

// note adds a statement whose result columns are roomColumns, and passes their values to e.report.
func (b *Batch) note(doing string, s statement, e auditTicket, args []any) {
	b.add(doing, func(r pgx.BatchResults) error {
		var due, wrote bool
		err := r.QueryRow().Scan(&due, &wrote)
		e.report(due, wrote, err)
		return err
	}, s, args...)
}

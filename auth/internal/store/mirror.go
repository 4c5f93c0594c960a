package store

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// MirrorVersion is the version of the functions and triggers that "auth mirror install" makes. It must be increased
// with every change of their texts.
const MirrorVersion = 4

// Mirror describes the installed mirror, whose triggers keep the tables of a former service current (package mirror).
type Mirror struct {
	// Installed is true if there is a mirror. If it is false, the other fields are zero.
	Installed bool
	Version   int
	// Triggers is how many triggers the mirror should have, Enabled how many of them exist and are enabled.
	Triggers, Enabled int
}

var selectMirror = define(`
select (steps ->> 'version')::int, (steps ->> 'triggers')::int, (
    select count(*) from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_namespace n on n.oid = p.pronamespace
    where n.nspname = current_schema() and p.proname like $1 and not t.tgisinternal and t.tgenabled in ('O', 'A'))::int
from {moves} where kind = 'mirror' and state = 'open'`)

// Mirror reads what was recorded about the mirror, and counts its triggers in the system catalogue.
func (db *DB) Mirror(ctx context.Context) (m Mirror, err error) {
	err = db.query(ctx, "mirror", func(r pgx.Rows) error {
		m.Installed = true
		return scanRow(r, []any{&m.Version, &m.Triggers, &m.Enabled})
	}, selectMirror, strings.ReplaceAll(db.ns+"mirror_", "_", `\_`)+"%")
	return m, err
}

// MarkScrubbed is the SQL that follows "update" and the name of our table moves. It records in the mirror's row that
// "auth mirror scrub" has run.
const MarkScrubbed = ` set steps = steps || jsonb_build_object('scrubbed',
    to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) where kind = 'mirror' and state = 'open'`

var markScrubbed = define("update {moves}" + MarkScrubbed)

// MarkScrubbed records that "auth mirror scrub" has run.
func (db *DB) MarkScrubbed(ctx context.Context) error {
	return db.run(ctx, "mark scrubbed", markScrubbed)
}

package store

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// MirrorVersion is the version of the functions and triggers that auth mirror install makes: it grows with every change
// of their texts.
const MirrorVersion = 4

// Mirror describes the installed mirror of a former schema.
type Mirror struct {
	// Installed: there is a mirror; otherwise the other fields are zero.
	Installed bool
	Version   int
	// Triggers is how many triggers there should be, Enabled how many exist and fire.
	Triggers, Enabled int
}

var selectMirror = define(`
select (steps ->> 'version')::int, (steps ->> 'triggers')::int, (
    select count(*) from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_namespace n on n.oid = p.pronamespace
    where n.nspname = current_schema() and p.proname like $1 and not t.tgisinternal and t.tgenabled in ('O', 'A'))::int
from {moves} where kind = 'mirror' and state = 'open'`)

// Mirror reads the state of the mirror, and counts its triggers in the catalogue.
func (db *DB) Mirror(ctx context.Context) (m Mirror, err error) {
	err = db.query(ctx, "mirror", func(r pgx.Rows) error {
		m.Installed = true
		return scanRow(r, []any{&m.Version, &m.Triggers, &m.Enabled})
	}, selectMirror, strings.ReplaceAll(db.ns+"mirror_", "_", `\_`)+"%")
	return m, err
}

// MarkScrubbed ends the UPDATE of the table {moves} that records in the installed mirror that scrub has run.
const MarkScrubbed = ` set steps = steps || jsonb_build_object('scrubbed',
    to_char(now() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) where kind = 'mirror' and state = 'open'`

var markScrubbed = define("update {moves}" + MarkScrubbed)

// MarkScrubbed records that scrub has run.
func (db *DB) MarkScrubbed(ctx context.Context) error {
	return db.run(ctx, "mark scrubbed", markScrubbed)
}

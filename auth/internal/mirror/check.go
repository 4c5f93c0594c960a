package mirror

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"gatehouse/auth/internal/store"
)

// difference describes a row of the former service's tables that does not have the values that the mirror should have
// written.
type difference struct {
	Table   string    `json:"table"`
	ID      uuid.UUID `json:"id"`
	User    uuid.UUID `json:"user"`
	Columns []string  `json:"columns"` // the columns that differ, or "missing" or "extra" for the whole row
}

// differences are the result of a comparison of all rows.
type differences struct {
	rows  []difference // the first ones, at most as many as were requested
	count int
	users []uuid.UUID // the users to be repaired, sorted, without those in gone
	gone  []uuid.UUID // users who were deleted in our tables, but not in the former ones
}

// shown is how many differences are printed.
const shown = 20

func (d *differences) write(out io.Writer) {
	for _, one := range d.rows {
		fmt.Fprintf(out, "%s %s differs: %s\n", one.Table, one.ID, strings.Join(one.Columns, ", "))
	}
	if more := d.count - len(d.rows); more > 0 {
		fmt.Fprintf(out, "and %d more\n", more)
	}
}

func byID(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

// compare compares our tables with the former service's tables, both read in one snapshot. A user of the former service
// whom our tables lack counts as a difference only if our audit log says that the user was deleted; otherwise the
// takeover did not copy the user. d counts all differences, and has the first ones, at most the number most. If the
// parameter of is not nil, it is a sorted list of users, and only these users are compared.
func (r *run) compare(ctx context.Context, most int, of []uuid.UUID) (d differences, err error) {
	list := func(of []column) string {
		return each(of, ", ", func(c column) string { return fmt.Sprintf("case when %s then '%s' end", c.differ(), c.name) })
	}
	users := r.have("users", userColumns)
	sql := fmt.Sprintf(`
with images as materialized (select * from %[2]s())
select 'users' as relation, coalesce(n.id, o.id) as id, coalesce(n.id, o.id) as owner,
    case when n.id is null then array['extra'] when o.id is null then array['missing']
        else array_remove(array[%[1]s], null) end as columns
from images n full join %[3]s o on o.id = n.id
where n.id is not null and (o.id is null or %[4]s)
    or n.id is null and o.id in (select %[5]s())`, list(users), ident(r.here, r.ns+"mirror_users"), r.theirs("users"),
		each(users, " or ", column.differ), ident(r.here, r.ns+"mirror_deleted"))
	for _, t := range r.tables() {
		of := r.have(t.there, t.columns)
		// If the mirror has soft-deleted a user in the former service's tables, the user's other rows in these tables
		// stay as they are, and are not compared.
		sql += fmt.Sprintf(`
union all
select '%[1]s', coalesce(n.id, o.id), coalesce(n.user_id, o.user_id),
    case when n.id is null then array['extra'] when o.id is null then array['missing']
        else array_remove(array[%[2]s], null) end
from %[3]s() n full join %[4]s o on o.id = n.id
join images m on m.id = coalesce(n.user_id, o.user_id) and m.deleted_at is null
where n.id is null and %[5]s or n.id is not null and (o.id is null or %[6]s)`, t.there, list(of), ident(r.here, r.ns+"mirror_"+t.there),
			r.theirs(t.there), strings.ReplaceAll(t.pruned, "t.", "o."), each(of, " or ", column.differ))
	}
	add := func(row pgx.CollectableRow) (none struct{}, err error) {
		one, err := pgx.RowToStructByPos[difference](row)
		if _, found := slices.BinarySearchFunc(of, one.User, byID); err != nil || of != nil && !found {
			return none, err
		}
		if d.count++; d.count <= most {
			d.rows = append(d.rows, one)
		}
		if one.Table == "users" && one.Columns[0] == "extra" {
			d.gone = append(d.gone, one.User)
		} else {
			d.users = append(d.users, one.User)
		}
		return none, nil
	}
	// All tables must be read in one snapshot. At a weaker isolation level each statement inside of the functions would
	// have a snapshot of its own.
	err = pgx.BeginTxFunc(ctx, r.conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(pgx.Tx) error {
		_, err := query(ctx, r, add, sql)
		return err
	})
	slices.SortFunc(d.users, byID)
	d.users = slices.Compact(d.users)
	return d, err
}

// Check compares the functions, triggers and rows with those that Install would make, and prints the differences. It
// returns ErrDiffers if there are any. If try is true, it also makes users in a transaction that it rolls back, to find
// triggers of the application that fail.
func Check(ctx context.Context, o Options, try, asJSON bool) error {
	r, err := openInstalled(ctx, o)
	if err != nil {
		return err
	}
	defer r.close()
	if try {
		if err := r.needMember(); err != nil {
			return err
		}
		fmt.Fprintln(o.Log, "mirror: -try makes users of five kinds and undoes it, but not what triggers send to other servers")
	}
	found, doubts, err := r.catalogue(ctx)
	if err != nil {
		return err
	}
	r.warn(doubts)
	most := shown
	if asJSON {
		most = math.MaxInt
	}
	var d differences
	if len(found) == 0 {
		if d, err = r.compare(ctx, most, nil); err != nil {
			return err
		}
	}
	if try && len(found) == 0 {
		found = append(found, r.try(ctx)...)
	}
	if asJSON {
		err = json.NewEncoder(o.Out).Encode(struct {
			Schema      string       `json:"schema"`
			Version     int          `json:"version"`
			Objects     []string     `json:"objects"`
			Differences []difference `json:"differences"`
		}{r.there.Name, r.known.Version, append([]string{}, found...), append([]difference{}, d.rows...)})
	} else {
		for _, text := range found {
			fmt.Fprintln(o.Out, text)
		}
		d.write(o.Out)
		if len(found)+d.count == 0 {
			fmt.Fprintf(o.Out, "the mirror of schema %s is current: 0 rows differ\n", r.there.Name)
		}
	}
	if err == nil && len(found)+d.count > 0 {
		err = ErrDiffers
	}
	return err
}

// catalogue returns what is wrong with the functions and triggers, and what may be wrong. If the installed mirror was
// made by another version of the program, the functions and triggers differ anyway, and are not compared.
func (r *run) catalogue(ctx context.Context) (wrong, doubts []string, err error) {
	if _, err = r.findWriter(ctx); err != nil {
		return nil, nil, err
	}
	if doubts, err = r.warnings(ctx); err != nil {
		return nil, nil, err
	}
	if r.known.Version != store.MirrorVersion {
		return nil, append(doubts, fmt.Sprintf("the mirror is of version %d: auth mirror install brings it up to date",
			r.known.Version)), nil
	}
	wrong, err = r.altered(ctx)
	return wrong, doubts, err
}

// scrubDue is how long after the end of a takeover Look begins to remind of "auth mirror scrub": by then the former
// service is no longer needed.
const scrubDue = 30 * 24 * time.Hour

// Look makes the checks of Check that need no right on the former service's tables: of the functions, triggers and
// roles. If the takeover was closed more than scrubDue ago and secrets are still left in the former service's tables,
// it adds a reminder to doubts. Both lists are empty if no takeover was completed. installed says whether a mirror is
// installed.
func Look(ctx context.Context, o Options, installed bool) (wrong, doubts []string, err error) {
	var refused strings.Builder
	o.Log = &refused
	r, err := open(ctx, o)
	switch {
	case errors.Is(err, ErrRefused) && installed:
		return []string{strings.TrimPrefix(strings.TrimSpace(refused.String()), "mirror: ")}, nil, nil
	case errors.Is(err, ErrRefused): // no takeover was completed, or it was from another database
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	}
	defer r.close()
	remedy := "auth mirror scrub, when going back is ruled out"
	if r.known == nil {
		remedy = "drop table for each table of it, when going back is ruled out, but never drop schema"
	} else if wrong, doubts, err = r.catalogue(ctx); err != nil {
		return nil, nil, err
	}
	if r.scrubbed == "" && time.Since(r.move.ClosedAt) > scrubDue {
		doubts = append(doubts, fmt.Sprintf("the takeover was closed on %s, and hashes, tokens and secrets still lie in "+
			"schema %s: %s", r.move.ClosedAt.Format(time.DateOnly), r.there.Name, remedy))
	}
	return wrong, doubts, nil
}

// place returns where the database raised an error, for example a constraint. It omits the values of the row, which
// must not be logged.
func place(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return store.RaisedAt(pg)
	}
	return err.Error()
}

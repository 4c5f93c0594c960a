package takeover

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// laterPass copies the rows that were written to the source since the takeover's floor, the transaction id that endPass
// has set. A pass that was interrupted is started again from its beginning, which does no harm.
func (r *run) laterPass(ctx context.Context) error {
	since := former.Since{Floor: former.Floor(*r.move.Floor), Clock: cmp.Or(r.steps.Clock, r.move.StartedAt)}
	r.result.since = &since
	oldest := int64(r.floor)
	r.move.PassFloor = &oldest
	r.steps.Pass, r.steps.PassAt, r.steps.PassClock = "later", r.begun, r.clock
	if err := r.carry(ctx, "begin", nothing); err != nil {
		return err
	}
	for _, t := range tables {
		if err := r.laterTable(ctx, t, since); err != nil {
			return err
		}
	}
	detach := func(ctx context.Context, c *store.Carrier) error { return c.DetachFactors(ctx) }
	if err := r.carry(ctx, "sessions", detach); err != nil {
		return err
	}
	return r.endPass(ctx)
}

// laterRows collects the ids of the rows of one table that a later pass has to delete or write.
type laterRows struct {
	r *run
	t table

	gone, freed []uuid.UUID // to delete; users to take addresses from, since others may have them
	changed     []uuid.UUID // rows to write, at most Hooks.Kept
	overflow    bool        // there are more than Hooks.Kept rows to write
	// former are users who have lost an identity. These users are written again: if an unconfirmed user has no identity
	// at an external provider any more, the user counts as a pending sign-up again.
	former []uuid.UUID
}

// laterTable first deletes the rows that are no longer copied, and removes values that other rows may have now:
// addresses, names and provider ids. Then it writes the rows that have changed or are missing.
func (r *run) laterTable(ctx context.Context, t table, since former.Since) error {
	r.progress.start(t.name, r.Source.Catalog.About(t.source))
	l := &laterRows{r: r, t: t}
	err := r.merge(ctx, t, &since, true, func(p pair) error {
		r.progress.add(1)
		l.sort(&p)
		return l.remove(ctx, r.Hooks.Rows)
	})
	if err == nil {
		err = l.rewrite(ctx)
	}
	if err == nil && len(l.gone)+len(l.freed) > 0 {
		err = l.remove(ctx, 0)
	}
	if err != nil {
		return err
	}
	// For factors, read the ids again: deleting one factor has deleted all factors of its user, and l.changed does not
	// list the factors to write.
	if again := l.overflow || t.target == store.CarriedFactors; again {
		return r.writeMissing(ctx, t, since)
	}
	return r.writeChanged(ctx, t, l.changed)
}

// outdated reports whether the source's row has to be written to the target.
func (p *pair) outdated() bool { return p.wanted() && (p.target == nil || p.source.Changed) }

// sort decides what has to be done with a row, and adds it to the lists.
func (l *laterRows) sort(p *pair) {
	target := l.t.target
	switch {
	case target == store.CarriedFactors:
		if p.target != nil && (!p.wanted() || p.source.Changed) {
			l.gone = append(l.gone, p.target.user)
		}
		if p.outdated() { // also for a new factor, whose name another factor may have in the target
			l.gone = append(l.gone, p.source.User)
		}
		return
	case p.target != nil && !p.wanted():
		l.gone = append(l.gone, p.id)
	case p.target != nil && p.source.Changed && target == store.CarriedUsers:
		l.freed = append(l.freed, p.id)
	case p.target != nil && p.source.Changed && target != store.CarriedSessions: // a session has no unique value
		l.gone = append(l.gone, p.id)
	}
	if target == store.CarriedIdentities && p.target != nil && (!p.wanted() || p.target.user != p.source.User) {
		l.former = append(l.former, p.target.user)
	}
	if p.outdated() {
		if l.overflow = l.overflow || len(l.changed) == l.r.Hooks.Kept; !l.overflow {
			l.changed = append(l.changed, p.id)
		}
	}
}

// rewrite writes the users in l.former again. It must be called before their identities are deleted from the target: if
// the run were interrupted after the deletion, the next run would not find these users.
func (l *laterRows) rewrite(ctx context.Context) error {
	if len(l.former) == 0 {
		return nil
	}
	err := l.r.writeChanged(ctx, tables[store.CarriedUsers], l.former)
	l.former = l.former[:0]
	return err
}

// remove deletes the rows in l.gone and removes the addresses of the users in l.freed. It does nothing if both lists
// have fewer elements than the number least.
func (l *laterRows) remove(ctx context.Context, least int) error {
	if len(l.gone) < least && len(l.freed) < least {
		return nil
	}
	if err := l.rewrite(ctx); err != nil {
		return err
	}
	users := l.t.target == store.CarriedUsers
	var refused error
	err := l.r.carry(ctx, l.t.name, func(ctx context.Context, c *store.Carrier) error {
		if users && len(l.gone) > 0 {
			// A running daemon may need a minute to notice that a takeover is open. A user who signs up in this minute
			// would look like a user that was deleted from the source. So refuse to delete users if there are more of
			// them than the takeover has written.
			n, err := c.CountUsers(ctx)
			if err != nil {
				return err
			}
			if refused = l.r.signups(n); refused != nil {
				return refused
			}
		}
		n, err := c.Delete(ctx, l.t.target, l.gone)
		if err == nil && users {
			l.r.steps.Deleted += n
			if len(l.freed) > 0 {
				err = c.BlankUsers(ctx, l.freed)
			}
		}
		return err
	})
	l.gone, l.freed = l.gone[:0], l.freed[:0]
	if refused != nil {
		return refused
	}
	return err
}

// signups returns an error if the target has more users than the runs of the takeover have written.
func (r *run) signups(users int64) error {
	if n := users - (r.steps.Written - r.steps.Deleted); n > 0 {
		return fmt.Errorf(
			"%d users signed up here while the takeover was open: auth takeover -abandon empties the tables", n)
	}
	return nil
}

// writeMissing reads the ids of the source and the target again, and writes the rows that have changed or are missing.
func (r *run) writeMissing(ctx context.Context, t table, since former.Since) error {
	var part []uuid.UUID
	flush := func() error {
		if len(part) == 0 {
			return nil
		}
		err := r.writeChanged(ctx, t, part)
		part = part[:0]
		return err
	}
	err := r.merge(ctx, t, &since, true, func(p pair) error {
		if t.target == store.CarriedFactors {
			if p.wanted() && p.target == nil {
				part = append(part, p.source.User)
			}
		} else if p.outdated() {
			part = append(part, p.id)
		}
		if len(part) < r.Hooks.Rows {
			return nil
		}
		return flush()
	})
	if err != nil {
		return err
	}
	return flush()
}

// writeChanged reads rows of the source by their ids and writes them. Factors are read by the ids of their users.
func (r *run) writeChanged(ctx context.Context, t table, list []uuid.UUID) error {
	slices.SortFunc(list, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) // the order of reading
	list = slices.Compact(list)
	return r.pipe(ctx, t.name, func(ctx context.Context, pass func(batch) error) error {
		if t.target != store.CarriedFactors {
			return r.readChanged(ctx, t, list, pass)
		}
		b, err := r.factorsOf(ctx, list)
		if err != nil || b.rows == 0 {
			return err
		}
		return pass(b)
	}, func(batch) {})
}

// links replaces all mailed links in the target. There are few, since links are valid only for a short time (LinkLife).
// If a run is interrupted, the next one starts with them again.
func (r *run) links(ctx context.Context) error {
	r.progress.start("links", r.Source.Catalog.About("one_time_tokens"))
	r.steps.LinksUntil = time.Time{}
	r.result.links = tally{Left: map[string]int64{}}
	return r.pipe(ctx, "links", func(ctx context.Context, pass func(batch) error) error {
		if err := pass(
			batch{write: func(ctx context.Context, c *store.Carrier) error { return c.DeleteLinks(ctx) }}); err != nil {
			return err
		}
		return r.readLinks(ctx, pass)
	}, func(batch) {})
}

// readLinks reads and converts the mailed links of the source, and counts them.
func (r *run) readLinks(ctx context.Context, pass func(batch) error) error {
	var cursor uuid.UUID
	for {
		list, err := r.Source.Links(ctx, cursor)
		if err != nil || len(list) == 0 {
			return err
		}
		var tokens []store.NewToken
		var flows []store.Flow
		var until time.Time
		for _, l := range list {
			cursor = l.ID
			r.result.links.There++
			t, flow, reason, err := r.m.link(l)
			if err != nil {
				return err
			}
			if reason == "" && r.duplicates[l.UserID] {
				reason = leftUser
			}
			if reason != "" {
				r.result.links.Left[reason]++
				continue
			}
			r.result.links.Carried++
			if tokens = append(tokens, t); flow != nil {
				flows = append(flows, *flow)
			}
			if t.ExpiresAt.After(until) {
				until = t.ExpiresAt
			}
		}
		b := batch{rows: len(list), cursor: cursor, write: func(ctx context.Context, c *store.Carrier) error {
			if until.After(r.steps.LinksUntil) {
				r.steps.LinksUntil = until
			}
			return c.Links(ctx, tokens, flows)
		}}
		if err := pass(b); err != nil {
			return err
		}
	}
}

// awaitWriters waits until no open transaction can still write to the source. If such a transaction were committed
// after the last check, the check would not have seen its rows, and they would be lost.
func (r *run) awaitWriters(ctx context.Context) error {
	deadline := time.Now().Add(r.Hooks.LockWait)
	for {
		pid, found, err := r.Source.Writer(ctx)
		if err != nil || !found {
			return err
		}
		if time.Now().After(deadline) {
			if pid == 0 {
				return errors.New("a transaction there is still open (a prepared one)")
			}
			return fmt.Errorf("a transaction there is still open (pid %d)", pid)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// lastCheck returns an error if the source was written since this run began. It compares the number and digest of the
// rows that were written since the transaction r.floor with those at the beginning of the run. The floor may be older
// than the run, if another application's transaction was open: rows that existed when the run began make no difference.
func (r *run) lastCheck(ctx context.Context) error {
	now, err := r.Source.Changed(ctx, r.floor)
	if err == nil && now != r.before {
		err = fmt.Errorf("the service there still writes (%d rows): stop it and run this again",
			max(1, now.Rows-r.before.Rows))
	}
	return err
}

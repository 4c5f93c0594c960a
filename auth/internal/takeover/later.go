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

// laterPass carries the changes since the floor. It may run twice; a pass that was stopped starts over.
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

// laterRows are the ids of the rows of one table that a later run has to delete or write.
type laterRows struct {
	r *run
	t table

	gone, freed []uuid.UUID // rows to delete; users whose addresses are removed, since others may have them now
	changed     []uuid.UUID // rows to write, up to Hooks.Kept
	overflow    bool        // there are more than Hooks.Kept
	// former are users who have lost an identity: an unconfirmed user whose remaining identities are only email and
	// phone becomes pending again.
	former []uuid.UUID
}

// laterTable deletes the rows that are no longer carried, and frees values that other rows may have now: addresses,
// names, provider ids. Then it writes the rows that have changed or are missing.
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
	// Removing a factor has removed the user's other factors.
	if again := l.overflow || t.target == store.CarriedFactors; again {
		return r.writeMissing(ctx, t, since)
	}
	return r.writeChanged(ctx, t, l.changed)
}

// outdated reports whether the source's row has to be written.
func (p *pair) outdated() bool { return p.wanted() && (p.target == nil || p.source.Changed) }

// sort puts a row into the lists by what has to be done with it.
func (l *laterRows) sort(p *pair) {
	target := l.t.target
	switch {
	case target == store.CarriedFactors:
		if p.target != nil && (!p.wanted() || p.source.Changed) {
			l.gone = append(l.gone, p.target.user)
		}
		if p.outdated() { // new factors too: a new factor may have a name that was given to another one here
			l.gone = append(l.gone, p.source.User)
		}
		return
	case p.target != nil && !p.wanted():
		l.gone = append(l.gone, p.id)
	case p.target != nil && p.source.Changed && target == store.CarriedUsers:
		l.freed = append(l.freed, p.id)
	case p.target != nil && p.source.Changed && target != store.CarriedSessions: // a session blocks no other
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

// rewrite writes the users who have lost an identity. It comes before the identity is deleted here: otherwise, after a
// run that was stopped in between, the next run would not find these users.
func (l *laterRows) rewrite(ctx context.Context) error {
	if len(l.former) == 0 {
		return nil
	}
	err := l.r.writeChanged(ctx, tables[store.CarriedUsers], l.former)
	l.former = l.former[:0]
	return err
}

// remove deletes and frees the listed rows, if there are at least so many.
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
			// A daemon notices within a minute that a takeover is open. A user who signed up before that would look
			// like a user deleted from the source.
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

// signups returns an error if there are more users here than the runs have written.
func (r *run) signups(users int64) error {
	if n := users - (r.steps.Written - r.steps.Deleted); n > 0 {
		return fmt.Errorf(
			"%d users signed up here while the takeover was open: auth takeover -abandon empties the tables", n)
	}
	return nil
}

// writeMissing finds the changed and missing rows again, and writes them while it reads.
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

// writeChanged writes rows by their ids; factors by their users' ids.
func (r *run) writeChanged(ctx context.Context, t table, list []uuid.UUID) error {
	slices.SortFunc(list, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) // as rows are read
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

// links replaces all links, which are few, as they soon expire, and have no cursor.
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

// readLinks reads, maps and counts the links.
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

// awaitWriters waits until no open transaction can still write to the source: its rows would be older than the last
// check and appear after it.
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

// lastCheck makes sure that nothing was written to the source since this run began. The floor may be older than the
// run, held back by a transaction of another application: rows that existed when the run began do not count.
func (r *run) lastCheck(ctx context.Context) error {
	now, err := r.Source.Changed(ctx, r.floor)
	if err == nil && now != r.before {
		err = fmt.Errorf("the service there still writes (%d rows): stop it and run this again",
			max(1, now.Rows-r.before.Rows))
	}
	return err
}

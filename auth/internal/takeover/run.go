package takeover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// changedKept is how many ids of changed rows a later pass keeps in memory, which are 8 MiB. If more rows have changed,
// it reads the ids again.
const changedKept = 1 << 19

// run is one run of the command.
type run struct {
	Options
	m        *mapper
	begun    time.Time // the start of this run
	progress *progress

	move  store.Move
	steps steps
	// floor is the id of the oldest transaction that was open in the source when this run began. before describes the
	// rows that were written from this transaction on until the checks of the last run.
	floor  former.Floor
	before former.Changes
	clock  time.Time // the source's clock, read after the floor

	warnings []string
	// duplicates are users who are not copied because another user has the same address. dropped and badSessions are
	// factors, passkeys and sessions that are not copied because of their contents; dropped has the reasons.
	duplicates  map[uuid.UUID]bool
	dropped     map[uuid.UUID]string
	badSessions map[uuid.UUID]bool
	// refused is how many passwords are not copied because this service cannot read their form or cost.
	refused int64

	result result
}

// steps is the state of a takeover. It is stored with each batch, as JSON in our table moves.
type steps struct {
	// Pass is "first" until every row was read once, "later" during a later pass, and "" after a pass.
	Pass string `json:"pass,omitempty"`
	// Step is the table that the first pass has reached, Cursor the last row that was written.
	Step   string    `json:"step,omitempty"`
	Cursor uuid.UUID `json:"cursor"`
	// Written and Deleted count the users that the takeover has written and deleted. All other users have signed up
	// themselves.
	Written int64 `json:"written"`
	Deleted int64 `json:"deleted"`
	// Rows is how many rows the first pass has read, Seconds how long it took.
	Rows    int64   `json:"rows"`
	Seconds float64 `json:"seconds"`
	// LookedAt is when the last completed pass began. PassAt is when the present pass began; zero if there is none.
	LookedAt time.Time `json:"looked_at,omitzero"`
	PassAt   time.Time `json:"pass_at,omitzero"`
	// Clock and PassClock are the source's clock at LookedAt and PassAt. They are zero if an older version of the
	// program began the takeover.
	Clock     time.Time `json:"clock,omitzero"`
	PassClock time.Time `json:"pass_clock,omitzero"`
	// Custom maps the source's names custom:NAME of providers to ours. A name must not change any more, since rows that
	// were copied have it.
	Custom map[string]string `json:"custom,omitempty"`
	// LinksUntil is when the last link that was copied expires.
	LinksUntil time.Time `json:"links_until,omitzero"`
}

func newRun(o Options) *run {
	o.Hooks.LockWait = cmp.Or(o.Hooks.LockWait, 10*time.Second)
	o.Hooks.Rows, o.Hooks.Kept = cmp.Or(o.Hooks.Rows, former.BatchRows), cmp.Or(o.Hooks.Kept, changedKept)
	r := &run{Options: o, begun: time.Now().UTC().Truncate(time.Microsecond),
		progress:   &progress{out: o.Log, terminal: o.Terminal},
		duplicates: map[uuid.UUID]bool{}, dropped: map[uuid.UUID]string{}, badSessions: map[uuid.UUID]bool{}}
	r.m = &mapper{Settings: o.Settings, begun: r.begun, now: r.begun,
		withoutPasswords: slices.Contains(o.LeaveOut, "passwords")}
	return r
}

func (r *run) leaves(kind string) bool { return slices.Contains(r.LeaveOut, kind) }

func (r *run) run(ctx context.Context) error {
	defer r.progress.clear()
	switch r.Mode {
	case Abandon:
		return r.abandon(ctx)
	case Suggest:
		return r.suggest(ctx)
	}
	if err := r.check(ctx); err != nil {
		return err
	}
	if r.Mode == DryRun {
		return r.dryRun(ctx)
	}
	if err := r.open(ctx); err != nil {
		return err
	}
	r.steps.Custom = r.m.custom
	fresh := r.steps.Pass == "" && r.move.Floor == nil
	if r.move.Floor == nil {
		if err := r.firstPass(ctx); err != nil {
			return err
		}
	}
	if !fresh {
		if err := r.laterPass(ctx); err != nil {
			return err
		}
	}
	if r.Mode == Ahead {
		if err := r.compare(ctx, false); err != nil {
			return err
		}
		return r.report(ctx)
	}
	return r.finish(ctx)
}

// finish copies the links, verifies that both sides are the same, and closes the takeover, at the end of the last run.
func (r *run) finish(ctx context.Context) error {
	if err := r.links(ctx); err != nil {
		return err
	}
	if err := r.awaitWriters(ctx); err != nil {
		return err
	}
	differ := r.compare(ctx, true)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// The last check comes after the comparison: the comparison takes a while, and transactions may have begun during
	// it. If the sides differ because the former service still writes, the last check reports this cause.
	if err := r.awaitWriters(ctx); err != nil {
		return err
	}
	if err := r.lastCheck(ctx); err != nil {
		return err
	}
	if differ != nil {
		return differ
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.result.closed = time.Now().UTC().Truncate(time.Microsecond)
	traits, err := json.Marshal(map[string]int64{"users": r.result.tables["users"].Carried,
		"sessions": r.result.tables["sessions"].Carried})
	if err != nil {
		return err
	}
	if err := r.carry(ctx, "close", func(ctx context.Context, c *store.Carrier) error {
		return c.Close(ctx, &r.move, r.result.closed, traits)
	}); err != nil {
		return err
	}
	return r.report(ctx)
}

// open creates the takeover, or makes this process the owner of an open one.
func (r *run) open(ctx context.Context) error {
	owner := uuid.New()
	if r.move.ID == uuid.Nil {
		m := store.Move{ID: uuid.New(), Owner: owner, Source: r.Source.Place(), Mark: r.Source.Catalog.Mark,
			StartedAt: r.begun,
			Steps:     json.RawMessage("{}")}
		opened, err := r.DB.OpenMove(ctx, m)
		if err != nil {
			return err
		}
		if !opened {
			return errors.New("another process has just begun a takeover: run this again")
		}
		r.move = m
		return nil
	}
	r.move.Owner = owner
	if err := r.DB.OwnMove(ctx, r.move); err != nil {
		return err
	}
	// The previous owner may have committed another batch before OwnMove, so read the stored state again.
	list, err := r.DB.Moves(ctx, store.MoveTakeover)
	if err != nil {
		return err
	}
	for _, m := range list {
		if m.ID == r.move.ID && m.Owner == owner {
			return r.resume(m)
		}
	}
	return store.ErrMoveLost
}

// resume continues an open takeover from its stored state.
func (r *run) resume(m store.Move) error {
	r.move = m
	r.steps = steps{}
	if err := json.Unmarshal(m.Steps, &r.steps); err != nil {
		return fmt.Errorf("read the state of the takeover: %w", err)
	}
	r.m.begun = m.StartedAt
	return nil
}

// carry calls f in a transaction, which also stores the state of the takeover. It is not interrupted when ctx ends.
func (r *run) carry(ctx context.Context, step string, f func(context.Context, *store.Carrier) error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	ctx = context.WithoutCancel(ctx)
	err := r.DB.Carry(ctx, &r.move, func(c *store.Carrier) error {
		if err := f(ctx, c); err != nil {
			return err
		}
		if r.Hooks.Writing != nil {
			r.Hooks.Writing(step)
		}
		text, err := json.Marshal(r.steps)
		r.move.Steps = text
		return err
	})
	if err == nil && r.Hooks.Batch != nil {
		r.Hooks.Batch(step)
	}
	if errors.Is(err, store.ErrMoveLost) {
		return store.ErrMoveLost
	}
	return err
}

// batch is a number of rows that were read together and are written in one transaction.
type batch struct {
	rows   int
	cursor uuid.UUID
	write  func(context.Context, *store.Carrier) error
}

// pipe reads and writes batches concurrently: while one is written, the next is read. It calls the function done in
// each transaction that writes a batch.
func (r *run) pipe(ctx context.Context, step string, read func(ctx context.Context, pass func(batch) error) error,
	done func(batch)) error {
	next, stop := stream(ctx, 1, read)
	defer stop()
	for {
		b, ok, err := next()
		if err != nil || !ok {
			return err
		}
		if err := r.carry(ctx, step, func(ctx context.Context, c *store.Carrier) error {
			if err := b.write(ctx, c); err != nil {
				return err
			}
			done(b)
			return nil
		}); err != nil {
			return err
		}
		r.progress.add(int64(b.rows))
	}
}

// firstPass copies all rows. It continues where an earlier run was interrupted.
func (r *run) firstPass(ctx context.Context) error {
	if r.steps.Pass == "" {
		oldest := int64(r.floor)
		r.move.PassFloor = &oldest
		r.steps = steps{Pass: "first", Step: tables[0].name, PassAt: r.begun, PassClock: r.clock,
			Custom: r.m.custom}
		if err := r.carry(ctx, "begin", nothing); err != nil {
			return err
		}
	}
	timer := time.Now()
	for i, t := range tables {
		if r.steps.Step != t.name {
			continue
		}
		r.progress.start(t.name, r.Source.Catalog.About(t.source))
		err := r.pipe(ctx, t.name, func(ctx context.Context, pass func(batch) error) error {
			return r.readAll(ctx, t, r.steps.Cursor, pass)
		}, func(b batch) {
			r.steps.Cursor = b.cursor
			r.steps.Rows += int64(b.rows)
			r.steps.Seconds += time.Since(timer).Seconds()
			timer = time.Now()
		})
		if err != nil {
			return err
		}
		r.steps.Cursor = uuid.Nil
		if r.steps.Step = ""; i+1 < len(tables) {
			r.steps.Step = tables[i+1].name
		}
	}
	if err := r.endPass(ctx); err != nil {
		return err
	}
	return r.DB.AnalyzeCarried(ctx)
}

func nothing(context.Context, *store.Carrier) error { return nil }

// endPass makes the floor of this pass, a transaction id, the floor from which the next pass looks for changes.
func (r *run) endPass(ctx context.Context) error {
	r.move.Floor, r.move.PassFloor = r.move.PassFloor, nil
	r.steps.Pass, r.steps.LookedAt, r.steps.PassAt = "", r.steps.PassAt, time.Time{}
	r.steps.Clock, r.steps.PassClock = r.steps.PassClock, time.Time{}
	return r.carry(ctx, "end", nothing)
}

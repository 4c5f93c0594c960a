package takeover

import (
	"bytes"
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// idChunk is how many rows with ids a stream passes on together.
const idChunk = 512

// stream calls read in a goroutine. It returns a function next, which returns the rows that read has passed on, one row
// at each call. For efficiency chunk rows are sent between the goroutines together. The caller must call stop, which
// ends the goroutine.
func stream[T any](ctx context.Context, chunk int, read func(context.Context, func(T) error) error) (
	next func() (v T, ok bool, err error), stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	chunks := make(chan []T)
	done := make(chan error, 1)
	go func() {
		defer close(chunks)
		var rows []T
		send := func() error {
			select {
			case chunks <- rows:
				rows = make([]T, 0, chunk)
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		err := read(ctx, func(v T) error {
			if rows = append(rows, v); len(rows) < chunk {
				return nil
			}
			return send()
		})
		if err == nil && len(rows) > 0 {
			err = send()
		}
		done <- err
	}()
	var have []T
	var ended bool
	var failed error
	next = func() (v T, ok bool, err error) {
		for len(have) == 0 {
			if ended {
				return v, false, failed
			}
			if have, ok = <-chunks; !ok {
				ended, failed = true, <-done
			}
		}
		v, have = have[0], have[1:]
		return v, true, nil
	}
	stop = func() {
		cancel()
		for range chunks { // wait until read has ended and returned its connection
		}
	}
	return next, stop
}

// table is a table whose rows are copied, and compared by their ids.
type table struct {
	target store.CarriedTable
	source string
	name   string // the name in the report
	one    string
}

// tables has the tables in the order in which they are copied. A table's index is its store.CarriedTable.
var tables = []table{
	{store.CarriedUsers, former.Users, "users", "user"},
	{store.CarriedIdentities, former.Identities, "identities", "identity"},
	{store.CarriedFactors, former.Factors, "factors", "factor"},
	{store.CarriedSessions, former.Sessions, "sessions", "session"},
	{store.CarriedPasskeys, former.Passkeys, "passkeys", "passkey"},
}

// owned is a row of one of our tables: its id and its user.
type owned struct{ id, user uuid.UUID }

// pair is an id with the source's row, our row, or both.
type pair struct {
	id     uuid.UUID
	source *former.Entry // nil: the source has no such row
	target *owned        // nil: our table has no such row
	// reason is why the source's row is not to be copied; "" if it is.
	reason string
}

// wanted reports whether our table should have the row: the source has it, and it is to be copied.
func (p *pair) wanted() bool { return p.source != nil && p.reason == "" }

// merge reads the ids of a table in the source and in the target, in order, and calls visit once for each id. If target
// is false, it reads only the source.
func (r *run) merge(ctx context.Context, t table, since *former.Since, target bool, visit func(pair) error) error {
	theirs, stop := stream(ctx, idChunk, func(ctx context.Context, each func(former.Entry) error) error {
		return r.Source.Entries(ctx, t.source, since, each)
	})
	defer stop()
	ours, stopOurs := stream(ctx, idChunk, func(ctx context.Context, each func(owned) error) error {
		if !target {
			return nil
		}
		return r.DB.CarriedIDs(ctx, t.target, func(id, user uuid.UUID) error { return each(owned{id, user}) })
	})
	defer stopOurs()
	a, okA, err := theirs()
	if err != nil {
		return err
	}
	b, okB, err := ours()
	if err != nil {
		return err
	}
	for okA || okB {
		order := 0
		switch {
		case !okB:
			order = -1
		case !okA:
			order = 1
		default:
			order = bytes.Compare(a.ID[:], b.id[:])
		}
		var p pair
		if order <= 0 {
			entry := a
			p.id, p.source, p.reason = a.ID, &entry, r.reason(t, a)
			if a, okA, err = theirs(); err != nil {
				return err
			}
		}
		if order >= 0 {
			row := b
			p.id, p.target = b.id, &row
			if b, okB, err = ours(); err != nil {
				return err
			}
		}
		if err := visit(p); err != nil {
			return err
		}
	}
	return nil
}

// reason returns why a row of the source is not copied: because of its columns, or because of what the checks before
// the run have found. It returns "" if the row is copied.
func (r *run) reason(t table, e former.Entry) string {
	switch {
	case e.Reason != "":
		return e.Reason
	case r.duplicates[e.User]:
		return "duplicates"
	case t.source == former.Factors || t.source == former.Passkeys:
		return r.dropped[e.ID]
	case t.source == former.Sessions && r.badSessions[e.ID]:
		return former.NoToken
	}
	return ""
}

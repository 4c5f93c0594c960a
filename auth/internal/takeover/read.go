package takeover

import (
	"context"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// size counts the rows and bytes of a batch.
type size struct{ rows, bytes int }

func (s *size) add(bytes int) error {
	s.rows++
	if s.bytes += bytes; s.bytes >= former.BatchBytes {
		return former.ErrEnough
	}
	return nil
}

// next returns how many rows the next batch should request: twice as many as the last batch has requested, which is the
// parameter rows, but at most the number in the parameter most. If the last batch reached the limit of bytes, next
// returns twice the number of rows that the batch then had. A larger request would be useless, since the source sends
// all requested rows and those beyond a full batch are discarded.
func (s *size) next(rows, most int) int {
	if s.bytes >= former.BatchBytes {
		return min(2*s.rows, most)
	}
	return min(2*rows, most)
}

// readAll reads a table from a cursor to its end, and calls the function pass with each batch.
func (r *run) readAll(ctx context.Context, t table, cursor uuid.UUID, pass func(batch) error) error {
	if t.source == former.Factors {
		return r.readFactors(ctx, cursor, pass)
	}
	for rows := r.Hooks.Rows; ; {
		b, s, err := r.readBatch(ctx, t, former.Select{After: cursor, Rows: rows}, true)
		if err != nil || s.rows == 0 {
			return err
		}
		if err := pass(b); err != nil {
			return err
		}
		cursor, rows = b.cursor, s.next(rows, r.Hooks.Rows)
	}
}

// readChanged reads rows by their ids, and calls the function pass with each batch.
func (r *run) readChanged(ctx context.Context, t table, list []uuid.UUID, pass func(batch) error) error {
	for len(list) > 0 {
		part := list[:min(len(list), r.Hooks.Rows)]
		b, s, err := r.readBatch(ctx, t, former.Select{IDs: part}, false)
		if err != nil {
			return err
		}
		if s.bytes >= former.BatchBytes && s.rows < len(part) { // the batch became full before its last row
			last := 0
			for i, id := range part {
				if id == b.cursor {
					last = i
				}
			}
			part = part[:last+1]
		}
		list = list[len(part):]
		if s.rows == 0 {
			continue
		}
		if err := pass(b); err != nil {
			return err
		}
	}
	return nil
}

// readBatch reads and converts one batch. fresh is true if none of its rows exists in the target.
func (r *run) readBatch(ctx context.Context, t table, w former.Select, fresh bool) (b batch, s size, err error) {
	switch t.source {
	case former.Users:
		var list []store.CarriedUser
		err = r.Source.Users(ctx, w, func(u *former.User) error {
			b.cursor = u.ID
			if u.Reason == "" && !r.duplicates[u.ID] {
				c, err := r.m.user(u)
				if err != nil {
					return err
				}
				list = append(list, c)
			}
			return s.add(len(u.AppMetadata) + len(u.UserMetadata) + len(u.Password) + 300)
		})
		b.write = writing(list, func(c *store.Carrier, ctx context.Context, _ []store.CarriedUser) error {
			added, removed, err := c.Users(ctx, list, fresh)
			r.steps.Written += added
			r.steps.Deleted += removed
			return err
		})
	case former.Identities:
		var list []store.Identity
		err = r.Source.Identities(ctx, w, func(i *former.Identity) error {
			b.cursor = i.ID
			if i.Reason == "" && !r.duplicates[i.UserID] {
				list = append(list, r.m.identity(i))
			}
			return s.add(len(i.Data) + 200)
		})
		b.write = writing(list, (*store.Carrier).Identities)
	case former.Passkeys:
		var list []store.Credential
		err = r.Source.Passkeys(ctx, w, func(p *former.Passkey) error {
			b.cursor = p.RowID
			if p.Reason == "" && !r.duplicates[p.UserID] && r.dropped[p.RowID] == "" {
				list = append(list, r.m.passkey(p))
			}
			return s.add(len(p.ID) + len(p.PublicKey) + 200)
		})
		b.write = writing(list, (*store.Carrier).Credentials)
	case former.Sessions:
		var found []*former.Session
		var list []store.CarriedSession
		if found, err = r.Source.Sessions(ctx, w); err != nil {
			return b, s, err
		}
		for _, v := range found {
			b.cursor = v.ID
			s.add(len(v.UserAgent) + len(v.Tag) + 300)
			if v.Reason != "" || r.duplicates[v.UserID] {
				continue
			}
			c, ok, err := r.m.session(v)
			if err != nil {
				return b, s, err
			}
			if ok {
				list = append(list, c)
			}
		}
		b.write = writing(list, func(c *store.Carrier, ctx context.Context, _ []store.CarriedSession) error {
			return c.Sessions(ctx, list, fresh)
		})
	}
	b.rows = s.rows
	return b, s, err
}

// readFactors reads the factors of the users after a cursor, and calls the function pass with each batch.
func (r *run) readFactors(ctx context.Context, cursor uuid.UUID, pass func(batch) error) error {
	for {
		owners, err := r.Source.FactorOwners(ctx, cursor, r.Hooks.Rows)
		if err != nil || len(owners) == 0 {
			return err
		}
		cursor = owners[len(owners)-1]
		b, err := r.factorsOf(ctx, owners)
		if err != nil {
			return err
		}
		if b.cursor = cursor; b.rows == 0 {
			continue
		}
		if err := pass(b); err != nil {
			return err
		}
	}
}

// factorsOf reads all factors of the given users as one batch. It cannot read single factors, since the names of a
// user's factors depend on each other.
func (r *run) factorsOf(ctx context.Context, owners []uuid.UUID) (b batch, err error) {
	var list []store.CarriedFactor
	var one []*former.Factor
	flush := func() {
		list = append(list, r.m.factors(one, r.dropped)...)
		one = nil
	}
	err = r.Source.FactorsOf(ctx, owners, func(f *former.Factor) error {
		b.rows++
		if r.duplicates[f.UserID] {
			return nil
		}
		if len(one) > 0 && one[0].UserID != f.UserID {
			flush()
		}
		one = append(one, f)
		return nil
	})
	flush()
	b.write = writing(list, (*store.Carrier).Factors)
	return b, err
}

// writing returns a function for the field batch.write. It writes list by calling write, or does nothing if the list is
// empty.
func writing[T any](list []T, write func(*store.Carrier, context.Context, []T) error) func(
	context.Context, *store.Carrier) error {
	return func(ctx context.Context, c *store.Carrier) error {
		if len(list) == 0 {
			return nil
		}
		return write(c, ctx, list)
	}
}

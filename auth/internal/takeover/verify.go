package takeover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/google/uuid"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/secret"
	"gatehouse/auth/internal/store"
)

// sampleSize is how many users, and how many sessions, are compared column by column.
const sampleSize = 1000

// tally counts the rows of one kind: There is how many the source has, Carried how many of these were copied, and Left
// how many were not copied, by the reason.
type tally struct {
	There   int64            `json:"there"`
	Carried int64            `json:"carried"`
	Left    map[string]int64 `json:"left_out"`
}

// leftForNext is the reason for rows that were not copied yet and will be by the next run.
const leftForNext = "left for the next run"

// reservoir is a random sample of ids whose total number is not known in advance (reservoir sampling).
type reservoir struct {
	size, seen int
	ids        []uuid.UUID
}

func (v *reservoir) add(id uuid.UUID) {
	v.seen++
	if len(v.ids) < v.size {
		v.ids = append(v.ids, id)
	} else if i := rand.IntN(v.seen); i < v.size {
		v.ids[i] = id
	}
}

// sameIDs reports whether the source and our table have the same ids. It compares the numbers of rows and sums of
// hashes of the ids (store.SumOfIDs). If they are equal, it also counts the rows. It does not compare, and returns
// false, if rows of the table are left out because of what the checks before the run have found, since the sums would
// differ.
func (r *run) sameIDs(ctx context.Context, t table, counts *tally) (same bool, err error) {
	dropping := t.source == former.Factors || t.source == former.Passkeys
	if len(r.duplicates) > 0 || dropping && len(r.dropped) > 0 || t.source == former.Sessions &&
		len(r.badSessions) > 0 {
		return false, nil
	}
	groups, err := r.Source.Groups(ctx, t.source, store.SumOfIDs)
	if err != nil {
		return false, err
	}
	rows, sum, err := r.DB.CarriedGroup(ctx, t.target)
	carried := groups[""]
	if err != nil || rows != carried.Rows || sum != carried.Sum {
		return false, err
	}
	for reason, g := range groups {
		if counts.There += g.Rows; reason != "" {
			counts.Left[reason] = g.Rows
		}
	}
	counts.Carried = rows
	if t.target == store.CarriedSessions { // others have no versions, and are counted concurrently
		for version, n := range carried.Versions {
			r.result.versions[version] += n
		}
	}
	return true, nil
}

// comparison has the samples that are chosen while all ids are compared.
type comparison struct {
	verify                 bool          // a difference is an error
	since                  *former.Since // set in a later run: half of the sample are users who have changed since
	users, fresh, sessions reservoir
}

// compare compares the ids in the source and in our tables, and counts the rows. If verify is true, a difference is an
// error, and a sample of users and sessions is read and converted again, and compared column by column.
func (r *run) compare(ctx context.Context, verify bool) error {
	r.result.tables = map[string]*tally{}
	half := sampleSize
	if r.result.since != nil {
		half = sampleSize / 2
	}
	c := &comparison{
		verify: verify,
		since:  r.result.since,
		users:  reservoir{size: sampleSize}, fresh: reservoir{size: half}, sessions: reservoir{size: sampleSize},
	}
	for _, t := range tables {
		r.result.tables[t.name] = &tally{Left: map[string]int64{}}
	}
	r.progress.start("comparing ids", 0)
	// Compare two tables at a time, since the source needs a while to sort each. All counts of a table are written by
	// one goroutine.
	var errs [2]error
	var wg sync.WaitGroup
	for i, pair := range [][]table{
		{tables[store.CarriedUsers], tables[store.CarriedFactors], tables[store.CarriedPasskeys]},
		{tables[store.CarriedSessions], tables[store.CarriedIdentities]},
	} {
		wg.Go(func() {
			for _, t := range pair {
				if errs[i] == nil {
					errs[i] = r.compareTable(ctx, t, c)
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs { // report a missing user rather than the user's missing sessions
		if err != nil {
			return err
		}
	}
	if !verify {
		return nil
	}
	return r.compareRows(ctx, sampled(c.fresh.ids, c.users.ids), c.sessions.ids)
}

// differing is called with each row that was compared, and the row's user. column is the first column in which the
// source and our table differ, or "" if none does.
type differing func(t table, id, user uuid.UUID, column string) error

// refuseDifference returns an error if a column differs. It is a function of the type differing.
func refuseDifference(t table, id, user uuid.UUID, column string) error {
	switch {
	case column == "":
		return nil
	case t.target == store.CarriedUsers || t.target == store.CarriedSessions:
		return fmt.Errorf("%s %s: column %s differs", t.one, id, column)
	}
	return fmt.Errorf("user %s: column %s of %s %s differs", user, column, t.one, id)
}

// compareRows compares users and sessions column by column. A row that differs is written again and compared again,
// since it may differ only because a time that was in the future when the row was copied is now in the past. If a row
// still differs, compareRows returns an error.
func (r *run) compareRows(ctx context.Context, users, sessions []uuid.UUID) error {
	again := map[string][]uuid.UUID{}
	var owners []uuid.UUID
	collect := func(t table, id, user uuid.UUID, column string) error {
		if column == "" {
			return nil
		}
		if again[t.name] = append(again[t.name], id); t.target != store.CarriedSessions {
			owners = append(owners, user)
		}
		r.result.rewritten++
		return nil
	}
	if err := r.compareUsers(ctx, users, collect); err != nil {
		return err
	}
	if err := r.compareSessions(ctx, sessions, collect); err != nil {
		return err
	}
	for _, t := range tables {
		if len(again[t.name]) == 0 {
			continue
		}
		if t.target == store.CarriedIdentities || t.target == store.CarriedPasskeys { // only inserted, never updated
			if err := r.carry(ctx, t.name, func(ctx context.Context, c *store.Carrier) error {
				_, err := c.Delete(ctx, t.target, again[t.name])
				return err
			}); err != nil {
				return err
			}
		}
		if err := r.writeChanged(ctx, t, again[t.name]); err != nil {
			return err
		}
	}
	counted := [2]int{r.result.sampleUsers, r.result.sampleSessions}
	err := r.compareUsers(ctx, sampled(owners, nil), refuseDifference)
	if err == nil {
		err = r.compareSessions(ctx, again[tables[store.CarriedSessions].name], refuseDifference)
	}
	r.result.sampleUsers, r.result.sampleSessions = counted[0], counted[1]
	return err
}

// compareTable compares the ids of one table by their sums, and one by one if the sums differ.
func (r *run) compareTable(ctx context.Context, t table, c *comparison) error {
	counts := r.result.tables[t.name]
	same, err := r.sameIDs(ctx, t, counts)
	if err != nil {
		return err
	}
	if same {
		r.progress.add(counts.There)
		switch {
		case !c.verify:
		case t.target == store.CarriedUsers:
			if c.users.ids, err = r.DB.SampleUsers(ctx, sampleSize); err == nil && c.since != nil {
				c.fresh.ids, err = r.Source.SampleChanged(ctx, t.source, *c.since, c.fresh.size)
			}
		case t.target == store.CarriedSessions:
			c.sessions.ids, err = r.DB.SampleSessions(ctx, sampleSize)
		}
		return err
	}
	return r.merge(ctx, t, c.since, true, func(p pair) error {
		r.progress.add(1)
		return r.comparePair(t, &p, c, counts)
	})
}

// comparePair compares and counts a row that one side or both have.
func (r *run) comparePair(t table, p *pair, c *comparison, counts *tally) error {
	switch {
	case p.source == nil:
		if c.verify {
			return fmt.Errorf("%s %s: it is here and no longer there", t.one, p.id)
		}
		return nil
	case p.reason != "":
		counts.There++
		counts.Left[p.reason]++
		if c.verify && p.target != nil {
			return fmt.Errorf("%s %s: it is here and should be left out (%s)", t.one, p.id, p.reason)
		}
		return nil
	}
	if counts.There++; p.target == nil {
		if c.verify {
			return fmt.Errorf("%s %s: it is missing here", t.one, p.id)
		}
		counts.Left[leftForNext]++
		return nil
	}
	counts.Carried++
	switch t.target {
	case store.CarriedUsers:
		if c.users.add(p.id); p.source.Changed {
			c.fresh.add(p.id)
		}
	case store.CarriedSessions:
		r.result.versions[p.source.Version]++
		c.sessions.add(p.id)
	}
	return nil
}

// sampled returns the changed users, then other users, without repetitions and at most sampleSize.
func sampled(changed, others []uuid.UUID) []uuid.UUID {
	seen := map[uuid.UUID]bool{}
	var list []uuid.UUID
	for _, id := range append(changed, others...) {
		if !seen[id] && len(list) < sampleSize {
			seen[id] = true
			list = append(list, id)
		}
	}
	return list
}

// compareStep is how many users are compared at a time. It is small because their metadata may be large.
const compareStep = 100

func (r *run) compareUsers(ctx context.Context, ids []uuid.UUID, differ differing) error {
	for part := range slices.Chunk(ids, compareStep) {
		target, err := r.DB.CarriedUsers(ctx, part)
		if err != nil {
			return err
		}
		factors, credentials, err := r.DB.CarriedFactors(ctx, part)
		if err != nil {
			return err
		}
		if err := r.Source.Users(ctx, former.Select{IDs: part}, func(u *former.User) error {
			want, err := r.m.user(u)
			if err != nil {
				return err
			}
			r.result.sampleUsers++
			return differ(tables[store.CarriedUsers], u.ID, u.ID, want.User.Differs(target[u.ID], u.Clock))
		}); err != nil {
			return err
		}
		if err := r.Source.Identities(ctx, former.Select{Users: part}, func(i *former.Identity) error {
			row := former.Entry{ID: i.ID, User: i.UserID, Reason: i.Reason}
			if r.reason(tables[store.CarriedIdentities], row) != "" {
				return nil
			}
			want := r.m.identity(i)
			return differ(tables[store.CarriedIdentities], i.ID, i.UserID, want.Differs(target[i.UserID], i.Clock))
		}); err != nil {
			return err
		}
		if err := r.compareFactors(ctx, part, factors); err != nil {
			return err
		}
		if err := r.Source.Passkeys(ctx, former.Select{Users: part}, func(p *former.Passkey) error {
			row := former.Entry{ID: p.RowID, User: p.UserID, Reason: p.Reason}
			if r.reason(tables[store.CarriedPasskeys], row) != "" {
				return nil
			}
			want := r.m.passkey(p)
			return differ(tables[store.CarriedPasskeys], p.RowID, p.UserID, want.Differs(credentials[p.RowID]))
		}); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) compareFactors(ctx context.Context, users []uuid.UUID, target map[uuid.UUID]store.CarriedFactor) error {
	byUser := map[uuid.UUID][]*former.Factor{}
	if err := r.Source.FactorsOf(ctx, users, func(f *former.Factor) error {
		byUser[f.UserID] = append(byUser[f.UserID], f)
		return nil
	}); err != nil {
		return err
	}
	for user, list := range byUser {
		for _, want := range r.m.factors(list, r.dropped) {
			have, found := target[want.ID]
			column := "id"
			if found {
				column = want.Differs(&have)
			}
			if column == "" && !r.sameKey(want, have) {
				column = "secret"
			}
			if column == "" {
				column = want.Credential.Differs(have.Credential)
			}
			if err := refuseDifference(tables[store.CarriedFactors], want.ID, user, column); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameKey decrypts the keys of two factors and reports whether they are the same.
func (r *run) sameKey(a, b store.CarriedFactor) bool {
	if a.Secret == nil || b.Secret == nil {
		return a.Secret == nil && b.Secret == nil
	}
	x, _, err := r.Settings.Root.Open(secret.Factors, a.Secret, a.ID[:])
	y, _, err2 := r.Settings.Root.Open(secret.Factors, b.Secret, b.ID[:])
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// compareSessions compares sessions column by column. The source's refresh tokens are read again to derive their
// hashes.
func (r *run) compareSessions(ctx context.Context, ids []uuid.UUID, differ differing) error {
	if len(ids) == 0 { // with an empty list the query would select all rows
		return nil
	}
	target, err := r.DB.CarriedSessions(ctx, ids)
	if err != nil {
		return err
	}
	source, err := r.Source.Sessions(ctx, former.Select{IDs: ids})
	if err != nil {
		return err
	}
	for _, s := range source {
		want, ok, err := r.m.session(s)
		if err != nil {
			return err
		}
		column := "id"
		if have, found := target[s.ID]; found && ok {
			column = want.Differs(&have)
		}
		if err := differ(tables[store.CarriedSessions], s.ID, s.UserID, column); err != nil {
			return err
		}
	}
	if r.result.sampleSessions += len(source); len(source) != len(ids) {
		return errors.New("the sessions there changed while they were compared: is the service stopped?")
	}
	return nil
}

package mirror

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/store"
)

// Install makes the functions and triggers of the mirror or replaces them, and repairs the rows of the former service's
// tables. It may be called while the daemon runs.
func Install(ctx context.Context, o Options) error {
	r, err := open(ctx, o)
	if err != nil {
		return err
	}
	defer r.close()
	first := r.known == nil
	if !first && (o.Sessions == nil || o.Days == nil) {
		fmt.Fprintf(o.Log, "mirror: as installed before: sessions %s, sign-ins %s\n",
			map[bool]string{true: "mirrored", false: "not mirrored"}[r.sessions], r.known.SignIns)
	}
	same := !first && r.known.Version == store.MirrorVersion
	for flag, given := range map[*bool]*bool{&r.sessions: o.Sessions, &r.days: o.Days} {
		if given != nil {
			same = same && *flag == *given
			*flag = *given
		}
	}
	if o.SQL {
		old, err := r.unmake(ctx)
		if err == nil {
			r.printReplace(old, r.statements()...)
		}
		return err
	}
	if err := r.needMember(); err != nil {
		return err
	}
	if err := r.examine(ctx, first); err != nil {
		return err
	}
	if same { // if nothing has to be made, no table is locked
		wrong, err := r.altered(ctx)
		if err != nil {
			return err
		}
		same = len(wrong) == 0
	}
	if !same {
		carry := func() error { return nil }
		if first {
			if carry, err = r.catchUp(ctx); err != nil {
				return err
			}
		}
		err = r.replace(ctx, r.statements(), func() error {
			if err := carry(); err != nil {
				return err
			}
			return r.note(ctx)
		})
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(o.Out, "installed the mirror of schema %s\n", r.there.Name)
	err = r.repair(ctx)
	if members, err2 := r.members(ctx, r.role); err2 == nil && slices.Contains(members, r.login) {
		fmt.Fprintf(o.Out, "revoke %s from %s;\n", ident(r.role), ident(r.login))
	}
	return cmp.Or(err, r.stale(ctx))
}

// stale prints the application's database objects that read tables or columns of the former service which are no longer
// written.
func (r *run) stale(ctx context.Context) error {
	unwritten := slices.DeleteFunc(slices.Sorted(maps.Keys(r.there.Tables)),
		func(name string) bool { return slices.Contains(r.mirrored(), name) })
	var made []string
	for _, f := range r.functions() {
		made = append(made, r.here+"."+f.name)
	}
	list, err := former.Readers(ctx, r.conn, former.Read{Schema: r.there.Name, Tables: unwritten,
		Column: "encrypted_password", Ours: made})
	if len(list) > 0 {
		fmt.Fprintln(r.Out, "these read what is no longer kept current there:")
	}
	for _, one := range list {
		fmt.Fprintln(r.Out, "-- "+one)
	}
	return err
}

// statements returns the statements of the transaction that installs the mirror.
func (r *run) statements() []string {
	grant := fmt.Sprintf("on schema %s to %s", ident(r.here), ident(r.writer))
	list := append([]string{"grant usage, create " + grant}, r.create()...)
	return append(list, "revoke create "+strings.Replace(grant, " to ", " from ", 1))
}

// note records in our table moves what is installed. The record of a scrub is kept.
func (r *run) note(ctx context.Context) error {
	n := noted{Version: store.MirrorVersion, Sessions: r.sessions, SignIns: map[bool]string{true: "day", false: "all"}[r.days],
		Triggers: len(r.triggers())}
	steps, err := json.Marshal(n)
	if err != nil {
		return err
	}
	if r.known != nil {
		return r.exec(ctx, "update "+r.ours("moves")+" set steps = steps || $1 where kind = 'mirror' and state = 'open'", steps)
	}
	return r.exec(ctx, "insert into "+r.ours("moves")+` (id, kind, source, state, steps, started_at)
		values ($1, 'mirror', $2, 'open', $3, now())`, uuid.New(), r.move.Source, steps)
}

// newer returns the ids of rows in the former service's table users that were written by transactions whose ids are at
// least floor. If more is not "", it is a further SQL condition on these rows. next is the floor for the next call.
func (r *run) newer(ctx context.Context, floor int64, more string) (ids []uuid.UUID, next int64, err error) {
	err = r.conn.QueryRow(ctx, fmt.Sprintf(`
select coalesce(array_agg(o.id), '{}'), pg_snapshot_xmin(pg_current_snapshot())::text::bigint
from %s o where age(o.xmin) <= age(($1::bigint %% 4294967296)::text::xid)%s`, r.theirs("users"), more), floor).Scan(&ids, &next)
	return ids, next, err
}

// catchUp prepares the copying of changes that the application has made to the former service's table users since the
// end of the takeover. It returns a function that copies these changes to our table, except for users who have also
// changed in our table since then. The returned function must be called with the tables locked. To be quick, it
// compares only the users who differed when catchUp compared all of them, and the users whose rows were written after
// this comparison.
func (r *run) catchUp(ctx context.Context) (func() error, error) {
	if r.move.Floor == nil {
		return func() error { return nil }, nil
	}
	differs := fmt.Sprintf(`u.id = o.id and u.updated_at <= '%s' and (o.raw_app_meta_data is distinct from u.app_metadata
    or o.role is distinct from u.role or o.banned_until is distinct from u.banned_until
    or o.raw_user_meta_data is distinct from u.user_metadata)`, r.move.ClosedAt.Format(time.RFC3339Nano))
	ids, next, err := r.newer(ctx, *r.move.Floor, " and exists (select from "+r.ours("users")+" u where "+differs+")")
	return func() error {
		late, _, err := r.newer(ctx, next, "")
		if err != nil {
			return err
		}
		return r.exec(ctx, fmt.Sprintf(`
update %s u set updated_at = now(),
    app_metadata = case when jsonb_typeof(o.raw_app_meta_data) = 'object' then o.raw_app_meta_data else u.app_metadata end,
    user_metadata = case when jsonb_typeof(o.raw_user_meta_data) = 'object' and not %s then o.raw_user_meta_data
        else u.user_metadata end,
    role = case when coalesce(o.role, '') = '' or o.role = any($2) then u.role else o.role end,
    banned_until = case when o.banned_until = 'infinity' then '9999-12-31T00:00:00Z' else nullif(o.banned_until, '-infinity') end
from %s o where o.id = any($1) and %s`, r.ours("users"), claimed, r.theirs("users"), differs), slices.Concat(ids, late), r.adminRoles)
	}, err
}

// repairBatch is how many users one transaction of the repair locks.
const repairBatch = 500

// repair corrects the former service's rows that differ. It writes each user once, and prints the differences that
// remain.
func (r *run) repair(ctx context.Context) error {
	before, err := r.compare(ctx, 0, nil)
	if err != nil {
		return err
	}
	ids := append(append([]uuid.UUID{}, before.gone...), before.users...) // not nil, which would mean all users
	slices.SortFunc(ids, byID)
	began := time.Now()
	failed := map[uuid.UUID]string{}
	if err := r.repairAll(ctx, before.gone, failed); err != nil {
		return err
	}
	if len(before.users) > 0 {
		if err := r.takeAddresses(ctx, before.users); err != nil {
			return err
		}
	}
	if err := r.repairAll(ctx, before.users, failed); err != nil {
		return err
	}
	fmt.Fprintf(r.Out, "%d users put in order in %s\n", len(ids)-len(failed), time.Since(began).Round(time.Millisecond))
	after, err := r.compare(ctx, shown, ids) // users who change during the repair are written by the triggers
	if err != nil {
		return err
	}
	after.write(r.Out)
	for _, id := range ids {
		if text := failed[id]; text != "" {
			fmt.Fprintf(r.Out, "user %s: %s\n", id, text)
		}
	}
	if after.count+len(failed) > 0 {
		return ErrDiffers
	}
	return nil
}

// repairAll repairs the users in batches. If the database refuses the repair of a user, it adds the user to the map
// failed, with the reason.
func (r *run) repairAll(ctx context.Context, ids []uuid.UUID, failed map[uuid.UUID]string) error {
	repair := "select " + ident(r.here, r.ns+"mirror_repair") + "($1)"
	for part := range slices.Chunk(ids, repairBatch) {
		if r.Batch != nil {
			r.Batch()
		}
		if _, err := r.asWriter(ctx, repair, part); err == nil {
			continue
		}
		for _, id := range part { // at least one of the users was refused
			if _, err := r.asWriter(ctx, repair, []uuid.UUID{id}); err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				failed[id] = place(err)
			}
		}
	}
	return nil
}

// asWriter executes a statement in a transaction of its own, with the rights of the writer. It tries again, up to three
// times in all, if a concurrent transaction makes the statement fail. Deferred triggers of the application also run
// with the writer's rights, since the role of this connection may be a superuser.
func (r *run) asWriter(ctx context.Context, sql string, args ...any) (n int64, err error) {
	for range 3 {
		if n, err = r.onceAsWriter(ctx, sql, args...); !gaveWay(err) {
			break
		}
	}
	return n, err
}

func (r *run) onceAsWriter(ctx context.Context, sql string, args ...any) (n int64, err error) {
	err = pgx.BeginFunc(ctx, r.conn, func(pgx.Tx) error {
		if err := r.exec(ctx, "set local role "+ident(r.writer)); err != nil {
			return err
		}
		tag, err := r.conn.Exec(ctx, sql, args...)
		n = tag.RowsAffected()
		if err == nil {
			err = r.exec(ctx, "set constraints all immediate")
		}
		return err
	})
	return n, err
}

// takeAddresses removes email addresses and phone numbers from the former service's rows of the given users, if they
// belong to other users in our tables by now. Otherwise the unique constraints of the former service's table could fail
// during the repair, which writes the right addresses.
func (r *run) takeAddresses(ctx context.Context, ids []uuid.UUID) error {
	type stale struct {
		ids            []uuid.UUID
		emails, phones []string
	}
	var s stale
	err := r.conn.QueryRow(ctx, fmt.Sprintf(`
select coalesce(array_agg(o.id), '{}'), coalesce(array_agg(o.email::text) filter (where e.id is not null), '{}'),
    coalesce(array_agg(o.phone::text) filter (where p.id is not null), '{}')
from %[1]s o join %[2]s u on u.id = o.id
left join %[2]s e on o.email <> u.email and o.email <> '' and e.email = o.email
left join %[2]s p on o.phone <> u.phone and o.phone <> '' and p.phone = o.phone
where o.id = any($1) and (e.id is not null or p.id is not null)`, r.theirs("users"),
		r.ours("users")), ids).Scan(&s.ids, &s.emails, &s.phones)
	if err == nil && len(s.ids) > 0 {
		_, err = r.asWriter(ctx, "update "+r.theirs("users")+` o set
		email = case when email = any($2) then null else email end,
		phone = case when phone = any($3) then null else phone end where id = any($1)`, s.ids, s.emails, s.phones)
	}
	if err != nil {
		return err
	}
	return r.takeIdentities(ctx, ids)
}

const settleIdentities = `
with images as materialized (select * from %[1]s()), stale as (
    select o.id from %[2]s o join images n on n.provider = o.provider and n.provider_id = o.provider_id and n.id <> o.id
    where n.user_id = any($1)
    union select o.id from %[2]s o join %[3]s s on s.id = o.user_id and s.deleted_at is null
    join %[4]s() u on u.id = s.id and u.deleted_at is not null where u.id = any($1)),
gone as (
    delete from %[2]s o using stale where o.id = stale.id and o.user_id = any($1) and %[5]s
        and not exists (select from images where id = o.id))
select %[6]s(row(i.*)::%[7]s) from images i join stale using (id)`

// takeIdentities resolves conflicts between identities, so that the repair does not fail. It writes the identities of
// users who were soft-deleted in our tables only, and replaces identities of the former service if another identity of
// ours has the same account at the provider.
func (r *run) takeIdentities(ctx context.Context, ids []uuid.UUID) error {
	here := func(name string) string { return ident(r.here, r.ns+"mirror_"+name) }
	_, err := r.asWriter(ctx, fmt.Sprintf(settleIdentities, here("identities"), r.theirs("identities"), r.theirs("users"),
		here("users"), strings.ReplaceAll(identities.pruned, "t.", "o."), here("put_identity"), here("identity")), ids)
	return err
}

// lines runs a query whose rows have one column of text, and returns these texts.
func (r *run) lines(ctx context.Context, sql string, args ...any) ([]string, error) {
	return query(ctx, r, pgx.RowTo[string], sql, args...)
}

package takeover_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/await"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// A time that lay ahead when it was read, and no longer does at the last run, is carried as it is there: of users, of
// identities that take over their user's, and of sessions.
func TestAhead_clockAhead(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	user, other := m.User(1).ID, m.User(28).ID
	m.there(t, `update auth.users set updated_at = clock_timestamp() + interval '6 s' where id = $1`, user)
	m.there(t, `update auth.users set created_at = clock_timestamp() + interval '6 s',
		updated_at = clock_timestamp() + interval '6 s' where id = $1`, other)
	m.there(t, `update auth.identities set created_at = null, updated_at = null where user_id = $1`, other)
	m.there(t, `update auth.sessions set refreshed_at = (clock_timestamp() + interval '6 s') at time zone 'UTC'
		where user_id = $1`, user)
	m.must(t, takeover.Ahead)
	m.must(t, takeover.Ahead) // which ends before the times do, or has carried them
	await.True(t, "the times have passed", func() bool {
		return testdb.One[bool](t, m.sourceURL, `select bool_and(updated_at < clock_timestamp()) from auth.users
			where id in ($1, $2)`, user, other)
	})
	m.must(t, takeover.Last)
	for what, sql := range map[string]string{
		"users": `select count(*) from auth.users a join public.users b on b.id = a.id
			where a.updated_at <> b.updated_at and a.id in ($1, $2) or a.created_at <> b.created_at and a.id = $2`,
		"identities": `select count(*) from public.identities i join auth.users u on u.id = i.user_id
			where u.id = $2 and $1 <> u.id and (i.created_at <> u.created_at or i.updated_at <> u.updated_at)`,
		"sessions": `select count(*) from auth.sessions a join public.sessions b on b.id = a.id
			where a.user_id = $1 and $2 <> a.user_id and a.refreshed_at <> b.refreshed_at at time zone 'UTC'`,
	} {
		if n := testdb.One[int](t, m.url, sql, user, other); n != 0 {
			t.Errorf("%s: %d rows have another time", what, n)
		}
	}
}

// An application whose clock is ahead and that has written just before the last run does not keep it from closing. Rows
// whose time has passed between the reading and the comparison are written once more.
func TestLast_clockAhead(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]string{"far": "6 s", "near": "300 ms"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMove(t, formertest.Newest)
			m.must(t, takeover.Ahead)
			m.there(t, `update auth.users set updated_at = clock_timestamp() + $1::interval`, ahead)
			m.must(t, takeover.Last, func(o *takeover.Options) {
				o.Hooks.Batch = func(step string) {
					if step != "links" || name != "near" {
						return
					}
					await.True(t, "the times have passed", func() bool {
						return testdb.One[bool](t, m.sourceURL,
							`select bool_and(updated_at < clock_timestamp()) from auth.users`)
					})
				}
			})
		})
	}
}

// A row that differs in the verification is written once more, which the report tells; one that differs then refuses.
func TestVerify_rewrites(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.must(t, takeover.Ahead)
	user := m.User(1).ID
	spoil := func(step string) {
		if step == "links" {
			formertest.Exec(t, m.url, `update public.users set updated_at = '2001-01-01' where id = $1`, user)
			formertest.Exec(t, m.url, `update public.identities set provider_id = provider_id || 'x'
				where user_id = $1`, m.User(28).ID)
			formertest.Exec(t, m.url, `update public.sessions set secret_hash = sha256('x') where user_id = $1`, user)
		}
	}
	want := testdb.One[int](t, m.url, `select 1 + (select count(*) from public.identities where user_id = $1)
		+ (select count(*) from public.sessions where user_id = $2)`, m.User(28).ID, user)
	o := m.must(t, takeover.Last, func(o *takeover.Options) { o.Hooks.Batch = spoil })
	if text := ", 0 differ, " + strconv.Itoa(want) + " rewritten\n"; !strings.Contains(o.out, text) {
		t.Errorf("want %q in\n%s", text, o.out)
	}
	if n := testdb.One[int](t, m.url, `select count(*) from public.users where updated_at = '2001-01-01'`); n != 0 {
		t.Error("the spoilt row is still here")
	}
}

func TestVerify_refuses(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.must(t, takeover.Ahead)
	formertest.Exec(t, m.url, `create function public.spoil() returns trigger language plpgsql as
		$$ begin new.updated_at = '2001-01-01'; return new; end $$;
		create trigger spoil before insert or update on public.users for each row execute function public.spoil();
		update public.users set updated_at = updated_at`)
	o := m.run(t, takeover.Last)
	if o.err == nil || !strings.Contains(o.err.Error(), ": column updated_at differs") {
		t.Errorf("%v\n%s", o.err, o.log)
	}
}

// A copy of the source's database is another source, also one that was made as a template; the same database under
// another name of its host is not. A takeover that an older program has opened goes on.
func TestRefusals_copy(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.must(t, takeover.Ahead)
	name := testdb.One[string](t, m.url, `select current_database()`)
	mark := testdb.One[string](t, m.url, `select source_mark from public.moves`)
	started := testdb.One[string](t, m.url, `
		select to_char(started_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') from public.moves`)
	m.awaitDisconnected(t)
	c, err := pgx.Connect(t.Context(), strings.Replace(m.url, name, "postgres", 1))
	must.Succeed(t, err)
	defer c.Close(context.Background())
	must.Succeed(t, must.ErrOf(c.Exec(t.Context(), "create database "+name+"_copy template "+name)))
	t.Cleanup(func() { c.Exec(context.Background(), "drop database "+name+"_copy with (force)") })
	source := testdb.One[string](t, m.url, `select source from public.moves`)
	copied := *m
	copied.sourceURL = strings.Replace(m.url, name, name+"_copy", 1)
	copied.there(t, `update auth.users set raw_app_meta_data = '{"other": true}'`)
	copied.refused(t, takeover.Last, "takeover: a takeover from "+source+" is open since "+started+
		": auth takeover -abandon empties the tables")

	old := mark[:strings.LastIndex(mark, "/")]
	old = old[:strings.LastIndex(old, "/")] + mark[strings.LastIndex(mark, "/"):]
	formertest.Exec(t, m.url, `update public.moves set source_mark = $1, steps = steps - 'clock'`, old)
	copied.refused(t, takeover.Last, "takeover: a takeover from "+source+" is open since "+started+
		": auth takeover -abandon empties the tables")
	m.must(t, takeover.Ahead)
	if got := testdb.One[string](t, m.url, `select source_mark from public.moves`); got != mark {
		t.Errorf("the mark is %s, want %s", got, mark)
	}
	m.must(t, takeover.Last)
}

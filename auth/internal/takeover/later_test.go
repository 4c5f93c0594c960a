package takeover_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former"
	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/testdb"
)

// A provider keeps the name that the first run has given it, whatever providers come later.
func TestAhead_customProvider(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	identity := func(provider string) {
		t.Helper()
		m.there(t,
			`insert into auth.identities (provider_id, user_id, identity_data, provider) values ($1, $2, '{}', $3)`,
			provider, m.User(1).ID, provider)
	}
	identity("custom:a-b")
	m.must(t, takeover.Ahead)
	identity("custom:a:b")
	identity("custom:c-d")
	m.must(t, takeover.Ahead)
	m.there(t, "delete from auth.identities where provider = 'custom:c-d'")
	identity("custom:c:d")
	m.must(t, takeover.Last)
	for there, here := range map[string]string{"custom:a-b": "a_b", "custom:a:b": "custom:a:b",
		"custom:c:d": "custom:c:d"} {
		if got := testdb.One[string](t, m.url, "select provider from identities where provider_id = $1", there); got != here {
			t.Errorf("%s is %s here, want %s", there, got, here)
		}
	}
}

// Names that one of two could not have when they came stay as they came, though the other one has gone.
func TestAhead_customProviderKept(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	for _, provider := range []string{"custom:a-b", "custom:a:b"} {
		m.there(t,
			`insert into auth.identities (provider_id, user_id, identity_data, provider) values ($1, $2, '{}', $1)`,
			provider, m.User(1).ID)
	}
	m.must(t, takeover.Ahead)
	m.there(t, "delete from auth.identities where provider = 'custom:a:b'")
	m.must(t, takeover.Last)
	if got := testdb.One[string](t, m.url, "select provider from identities where provider_id = 'custom:a-b'"); got != "custom:a-b" {
		t.Errorf("custom:a-b is %s here", got)
	}
}

// An unconfirmed user who loses the identity of an external provider is a sign-up that waits, though no row of the user
// has changed; so is one whose identity was given to another user.
func TestAhead_identityDeleted(t *testing.T) {
	t.Parallel()
	for _, sql := range []string{
		"delete from auth.identities where provider = 'github' and user_id = 'USER'",
		"update auth.identities set user_id = 'OTHER' where provider = 'github' and user_id = 'USER'",
	} {
		m := newMove(t, formertest.Newest)
		user := m.User(5)
		m.there(t, `insert into auth.identities (provider_id, user_id, identity_data, provider) values ('5005', $1, '{}', 'github')`, user.ID)
		waits := func() bool {
			t.Helper()
			return testdb.One[bool](t, m.url, `select password_hash = '' and exists (select from one_time_tokens t where t.user_id = u.id and t.password_hash <> '')
				from users u where id = $1`, user.ID)
		}
		m.must(t, takeover.Ahead)
		if waits() {
			t.Error("with an identity of an external provider it is no sign-up that waits")
		}
		m.there(t, strings.NewReplacer("USER", user.ID.String(), "OTHER", m.User(1).ID.String()).Replace(sql))
		for n := 1; m.process(t, child{After: n}); n++ { // killed after each batch
		}
		if !waits() {
			t.Errorf("after %s the sign-up does not wait", sql)
		}
	}
}

// The same of users so large that not all fit into one batch, whose identities have ids in another order.
func TestAhead_identitiesDeletedLarge(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	const large = 4
	for i := range large {
		m.there(t, `insert into auth.users (id, aud, role, email, encrypted_password, confirmation_sent_at, created_at, updated_at, raw_app_meta_data, raw_user_meta_data)
			values ($1, 'authenticated', 'authenticated', 'large' || $2::int || '@example.org', (select encrypted_password from auth.users where id = $3), now(), now(), now(), '{}',
				jsonb_build_object('large', repeat('x', 6 << 20)))`, uuid.UUID{15: byte(i + 1)}, i, m.User(5).ID)
		m.there(t, `insert into auth.identities (id, provider_id, user_id, identity_data, provider) values ($1, $2, $3, '{}', 'github')`,
			uuid.UUID{15: byte(large - i)}, fmt.Sprint("large", i), uuid.UUID{15: byte(i + 1)})
	}
	m.must(t, takeover.Ahead)
	m.there(t, "delete from auth.identities where provider_id like 'large%'")
	m.must(t, takeover.Last)
	if n := testdb.One[int](t, m.url, "select count(*) from users where email like 'large%' and password_hash = ''"); n != large {
		t.Errorf("%d of %d users are sign-ups that wait", n, large)
	}
}

// A user without a password is no sign-up that waits, whatever identity comes.
func TestAhead_noPassword(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	user := m.User(5)
	m.there(t, "update auth.users set encrypted_password = null where id = $1", user.ID)
	m.must(t, takeover.Ahead)
	m.there(t, `insert into auth.identities (provider_id, user_id, identity_data, provider) values ('5005', $1, '{}', 'github')`, user.ID)
	m.must(t, takeover.Last)
	if n := testdb.One[int](t, m.url, "select count(*) from identities where provider_id = '5005'"); n != 1 {
		t.Errorf("%d identities came, want 1", n)
	}
}

// A daemon that has not noticed the takeover yet may take a sign-up after the run has counted the users: the run stops
// before it deletes that user.
func TestAhead_signupMeanwhile(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.must(t, takeover.Ahead)
	m.there(t, "delete from auth.users where id = $1", m.User(6).ID)
	o := m.run(t, takeover.Last, func(o *takeover.Options) {
		o.Hooks.Batch = func(step string) {
			if step == "begin" {
				formertest.Exec(t, m.url, `insert into users (id, aud, role, email, created_at, updated_at)
					values (gen_random_uuid(), 'a', 'a', 'mine@example.org', now(), now())`)
			}
		}
	})
	const want = "1 users signed up here while the takeover was open: auth takeover -abandon empties the tables"
	if o.err == nil || o.err.Error() != want {
		t.Errorf("%v, want %s", o.err, want)
	}
	if n := testdb.One[int](t, m.url, "select count(*) from users where email = 'mine@example.org'"); n != 1 {
		t.Errorf("%d users of that address, want 1", n)
	}
	m.refused(t, takeover.Last, "takeover: "+want)
}

// Minus infinity is a time that is missing, wherever the program reads it.
func TestMinusInfinity(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	ann, pending := m.User(1), m.User(5)
	m.there(t, `update auth.users set deleted_at = '-infinity', invited_at = '-infinity', banned_until = '-infinity' where id = $1`, ann.ID)
	m.there(t, `update auth.sessions set not_after = '-infinity' where user_id = $1`, ann.ID)
	m.there(t, `update auth.users set deleted_at = '-infinity', email_confirmed_at = '-infinity', phone_confirmed_at = '-infinity', invited_at = '-infinity',
		raw_user_meta_data = '{"sub": "x", "email_verified": false}'
		where id = $1`, pending.ID)
	m.there(t, `update auth.users set email = upper($1) where id = $2`, ann.Email, m.User(2).ID)
	m.refused(t, takeover.Last, fmt.Sprintf("takeover: 1 addresses stand twice when written in lower case: %s %s; -leave-out "+
		"duplicates accepts that",
		m.User(2).ID, ann.ID))
	m.there(t, `update auth.users set email = $1 where id = $2`, m.User(2).Email, m.User(2).ID)
	m.must(t, takeover.Last)
	if !testdb.One[bool](t, m.url, `select deleted_at is null and invited_at is null and banned_until is null and email <> '' and password_hash <> ''
		and exists (select from sessions s where s.user_id = u.id and s.not_after is null) from users u where id = $1`, ann.ID) {
		t.Error("the user is not carried as one that was never deleted")
	}
	if !testdb.One[bool](t, m.url, `select password_hash = '' and email_confirmed_at is null
		and exists (select from one_time_tokens t where t.user_id = u.id and t.password_hash <> '' and t.user_metadata is null) from users u where id = $1`, pending.ID) {
		t.Error("the sign-up does not wait, or has metadata though none was given")
	}
}

// A batch ends at its size, too: large rows come a few at a time, in a first pass and in a later one.
func TestRun_largeRows(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	const size, large = 6 << 20, 7
	fill := func(letter string) {
		t.Helper()
		m.there(t, fmt.Sprintf(`update auth.users set raw_user_meta_data = jsonb_build_object('large', repeat('%s', %d))
			where id in (select id from auth.users where email_confirmed_at is not null and deleted_at is null and not is_sso_user order by id limit %d)`,
			letter, size, large))
	}
	run := func(mode takeover.Mode, letter string) {
		t.Helper()
		batches := 0
		m.must(t, mode, func(o *takeover.Options) {
			o.Hooks.Batch = func(step string) {
				if step == "users" {
					batches++
				}
			}
		})
		// The batch that reaches the bound ends there: three rows of 6 MiB.
		if least := large * size / (former.BatchBytes + size); batches < least {
			t.Errorf("%d batches of users, want at least %d", batches, least)
		}
		if n := testdb.One[int](t, m.url,
			"select count(*) from users where length(user_metadata->>'large') = $1 and left(user_metadata->>'large', "+
				"1) = $2", size,
			letter); n != large {
			t.Errorf("%d large rows are here, want %d", n, large)
		}
	}
	fill("a")
	run(takeover.Ahead, "a")
	fill("b")
	run(takeover.Last, "b")
}

// A batch finds what belongs to its rows by indexes: neither side reads a large table again for each of them.
func TestRun_indexes(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	for _, sql := range []string{
		`insert into auth.users (id, aud, role, email, email_confirmed_at, created_at, updated_at, raw_app_meta_data, raw_user_meta_data)
			select gen_random_uuid(), 'authenticated', 'authenticated', 'many' || n || '@example.org', now(), now(), now(), '{}', '{}' from generate_series(1, 20000) n`,
		`insert into auth.identities (provider_id, user_id, identity_data, provider) select id, id, '{}', 'email' from auth.users where email like 'many%'`,
		`insert into auth.sessions (id, user_id, created_at, refresh_token_hmac_key, refresh_token_counter)
			select gen_random_uuid(), id, now(), repeat('A', 43), 1 from auth.users where email like 'many%'`,
		`analyze`,
	} {
		m.there(t, sql)
	}
	tables := []string{"auth.users", "auth.identities", "auth.sessions", "users", "identities", "sessions"}
	scans := func(table string) int {
		return testdb.One[int](t, m.url, "select seq_scan from pg_stat_user_tables where relid = $1::regclass", table)
	}
	m.awaitDisconnected(t) // which is when the server has counted
	before := map[string]int{}
	for _, table := range tables {
		before[table] = scans(table)
	}
	const batches = 40
	m.must(t, takeover.Ahead, func(o *takeover.Options) { o.Hooks.Rows = 20000 / batches })
	m.awaitDisconnected(t)
	for _, table := range tables {
		if n := scans(table) - before[table]; n >= batches {
			t.Errorf("%s was read whole %d times, in %d batches", table, n, batches)
		}
	}
}

// A role that may not see another one's connections says so.
func TestWarnings_hiddenConnections(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	role := "reader_" + testdb.One[string](t, m.url, "select current_database()")
	m.there(t, strings.ReplaceAll(`create role READER login bypassrls; grant usage on schema auth to READER; grant select on all tables in schema auth to READER;`,
		"READER", role))
	url := m.sourceURL
	m.sourceURL = strings.Replace(url, "postgres@", role+"@", 1)
	if o := m.must(t, takeover.Ahead); strings.Contains(o.log, "connections") {
		t.Errorf("the program's own connections are warned of:\n%s", o.log)
	}
	m.awaitDisconnected(t)
	held, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close(context.Background())
	o := m.must(t, takeover.Last)
	want := "takeover: warning: role postgres has 1 connections to the schema there, and role " + role +
		" may not see where from (grant pg_read_all_stats to " +
		role + ";): is the service stopped?\n"
	if !strings.Contains(o.log, want) {
		t.Errorf("%s\nwant %s", o.log, want)
	}
}

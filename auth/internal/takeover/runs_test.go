package takeover_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/takeover"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// moved are all our tables that a run could write.
var moved = map[string]string{"users": "", "identities": "", "sessions": "", "former_tokens": "", "factors": "",
	"one_time_tokens": "", "webauthn_credentials": "",
	"flows": "", "moves": "", "audit": "", "outbox": "", "limits": ""}

// A dry run writes nothing, before a first run, after one, and when it is refused.
func TestDryRun(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	f := func(mode func()) {
		t.Helper()
		before, there := dump(t, m.url, moved),
			testdb.One[string](t, m.url, "select string_agg(u::text, ',' order by id) from auth.users u")
		mode()
		same(t, dump(t, m.url, moved), before)
		if there != testdb.One[string](t, m.url, "select string_agg(u::text, ',' order by id) from auth.users u") {
			t.Error("the tables there changed")
		}
	}
	var dry output
	f(func() { dry = m.must(t, takeover.DryRun) })
	f(func() {
		if o := m.run(t, takeover.DryRun, nothingLeftOut); !errors.Is(o.err, takeover.ErrRefused) {
			t.Error(o.err)
		}
	})
	m.must(t, takeover.Ahead)
	f(func() { m.must(t, takeover.DryRun) })
	last := m.must(t, takeover.Last)
	table := func(text string) string {
		_, rest, _ := strings.Cut(text, "left out\n")
		return rest[:strings.Index(rest, "links")]
	}
	if !strings.HasPrefix(
		dry.out, "dry run: nothing was written\ntakeover from schema auth (version 20260625000000) of ") ||
		table(dry.out) != table(last.out) {
		t.Errorf("the dry run tells\n%s\nthe last run\n%s", dry.out, last.out)
	}
}

// Two processes at once: one stops, and the other one's end is that of an undisturbed run.
func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	first, second := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var errs [2]output
	var wg sync.WaitGroup
	wg.Go(func() {
		errs[0] = m.run(t, takeover.Last, func(o *takeover.Options) {
			o.Hooks.Rows = 10
			o.Hooks.Batch = func(step string) {
				if step == "users" {
					once.Do(func() { close(first); <-second })
				}
			}
		})
	})
	<-first
	errs[1] = m.run(t, takeover.Last, func(o *takeover.Options) { o.Hooks.Rows = 10 })
	close(second)
	wg.Wait()
	if errs[1].err != nil || !errors.Is(errs[0].err, store.ErrMoveLost) ||
		errs[0].err.Error() != "another process goes on with this takeover" {
		t.Errorf("the first: %v, the second: %v", errs[0].err, errs[1].err)
	}
	same(t, m.dump(t), m.atOnce(t))
}

// A run that is stopped finishes its batch, says so, and goes on later.
func TestStopped(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	db, source := m.connect(t)
	defer db.Close()
	defer source.Close()
	var out, log strings.Builder
	err := takeover.Run(ctx, takeover.Options{Mode: takeover.Ahead, Source: source, DB: db, Settings: settings(t),
		LeaveOut: losses, Out: &out,
		Log: &log, Hooks: takeover.Hooks{Rows: 10, Writing: func(step string) {
			if step == "users" {
				cancel()
			}
		}}})
	if err == nil || err.Error() != "stopped: the same command goes on from here" || out.String() != "" {
		t.Errorf("%v %s", err, out.String())
	}
	if n := testdb.One[int](t, m.url, "select count(*) from users"); n == 0 || n > 10 {
		t.Errorf("%d users are here, want those of the batch in hand", n)
	}
	m.must(t, takeover.Last)
}

// The suggested statements move the application's foreign keys and triggers, and the way back leaves them as they were.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	owner := "app_" + testdb.One[string](t, m.url, "select current_database()")
	m.there(t, strings.ReplaceAll(`create role OWNER; create schema app; grant usage on schema auth, public, app to OWNER; grant create on schema app to OWNER;
		grant references on auth.users to OWNER;
		create table app.profiles (id uuid primary key references auth.users on delete cascade, "Friend" uuid,
			constraint "Odd name" foreign key ("Friend") references auth.users (id) on update cascade on delete set null deferrable initially deferred);
		alter table app.profiles owner to OWNER;
		create table app.orders (n int, user_id uuid);
		alter table app.orders add constraint unchecked foreign key (user_id) references auth.users (id) not valid;
		create table app.seen (session_id uuid references auth.sessions (id) on delete cascade);
		create function app.noted() returns trigger language plpgsql as $$ begin return new; end $$;
		create trigger on_user after insert on auth.users for each row execute function app.noted();
		create function app.handle() returns trigger language plpgsql as
		$$ begin insert into app.orders (n) values (length(new.raw_user_meta_data::text)); return new; end $$;
		create trigger on_data after insert on auth.users for each row execute function app.handle();
		create trigger on_confirmed after update of email_confirmed_at, confirmed_at on auth.users for each row
			when (old.confirmed_at is null and new.raw_app_meta_data is not null) execute function app.noted();
		create view app.people as select id, email from auth.users;
		create table app.notes (user_id uuid); alter table app.notes enable row level security;
		create policy mine on app.notes using (auth.uid() = user_id);
		create function app.count_users() returns bigint language sql as 'select count(*) from auth.users';`, "OWNER", owner))
	m.there(t, `insert into app.profiles select id, id from auth.users where not is_sso_user`)
	constraints := func() string {
		return testdb.One[string](t, m.url, `select string_agg(conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid), E'\n' order by conrelid::regclass::text, conname)
			from pg_constraint where contype = 'f' and connamespace = 'app'::regnamespace`)
	}
	triggers := func() string {
		return testdb.One[string](t, m.url, `select string_agg(pg_get_triggerdef(oid), E'\n' order by 1) from (select oid from pg_trigger where not tgisinternal) t`)
	}
	before, triggered := constraints(), triggers()
	// as the replaced service's role has it: texts of the catalogue name tables without schema
	m.sourceURL += "&search_path=auth,app"
	o := m.must(t, takeover.Ahead)
	if strings.Contains(o.out, "alter table") || !strings.Contains(o.out, "  trigger on_user on auth.users\n") {
		t.Errorf("a run that does not close tells\n%s", o.out)
	}
	o = m.must(t, takeover.Last)
	if again := m.must(t, takeover.Suggest).out; !strings.HasPrefix(again, "-- suggestions: auth mirror install\n") ||
		!strings.HasSuffix(o.out, again) {
		t.Errorf("-suggest prints\n%s", again)
	}
	_, rest, _ := strings.Cut(o.out, "-- without a mirror:\n")
	forth, back, _ := strings.Cut(rest, "-- way back:\n")
	for _, want := range []string{
		"alter table app.profiles drop constraint \"Odd name\", add constraint \"Odd name\" foreign key (\"Friend\") " +
			"references public.users (id) on update cascade on delete set null deferrable initially deferred not " +
			"valid;",
		"grant references on public.users to " + owner + ";",
		"alter table app.profiles validate constraint profiles_id_fkey;",
		"-- foreign key seen_session_id_fkey of app.seen refers to auth.sessions",
		"-- trigger on_data on auth.users would fail here: function app.handle reads raw_user_meta_data, which has " +
			"another name; mend a copy first; mended: CREATE TRIGGER on_data AFTER INSERT ON public.users FOR EACH ROW " +
			"EXECUTE FUNCTION app.handle();",
		"-- trigger on_confirmed on auth.users would fail here: it names confirmed_at, which has another name; mended: " +
			"CREATE TRIGGER on_confirmed AFTER UPDATE OF email_confirmed_at, phone_confirmed_at ON " +
			"public.users FOR EACH ROW WHEN (((least(old.email_confirmed_at, old.phone_confirmed_at) IS NULL) AND " +
			"(new.app_metadata IS NOT NULL))) EXECUTE FUNCTION app.noted();",
		"-- view app.people reads auth.users",
		"-- function app.count_users reads auth.users", "-- keep schema auth: uid is used by 1 policies, 0 defaults and 0 functions",
		"CREATE TRIGGER on_user AFTER INSERT ON public.users FOR EACH ROW EXECUTE FUNCTION app.noted();",
		"update auth.refresh_tokens set revoked = true; update auth.sessions set refresh_token_hmac_key = null;",
	} {
		if !strings.Contains(forth, want+"\n") {
			t.Errorf("the suggestions lack %s:\n%s", want, forth)
		}
	}
	if strings.Contains(forth, "validate constraint unchecked") {
		t.Error("a key that was not valid becomes so")
	}
	_, mended, _ := strings.Cut(forth, "it names confirmed_at, which has another name; mended: ")
	mended, _, _ = strings.Cut(mended, "\n")
	m.there(t, mended+"drop trigger on_confirmed on public.users")
	m.there(t, forth)
	if moved := constraints(); strings.Contains(moved, "auth.users") ||
		strings.Count(moved, "REFERENCES users(id)") != 3 {
		t.Errorf("after the suggestions:\n%s", moved)
	}
	m.there(t, back)
	if after := constraints(); after != before {
		t.Errorf("after the way back:\n%s\nbefore:\n%s", after, before)
	}
	if after := triggers(); after != triggered {
		t.Errorf("after the way back:\n%s\nbefore:\n%s", after, triggered)
	}
	if n := testdb.One[int](t, m.url, "select count(*) from app.profiles"); n == 0 {
		t.Error("rows of the application are gone")
	}
}

// From another database, into tables with a prefix: what refers to the users can only be listed.
func TestTwoDatabases(t *testing.T) {
	t.Parallel()
	source := formertest.Fill(t, testdb.Postgres(t), "auth", formertest.Oldest, time.Now())
	m := &move{Source: source, url: testdb.Postgres(t), sourceURL: source.URL, namespace: "gh_"}
	m.there(t, `create schema app; create table app.profiles (id uuid references auth.users on delete cascade)`)
	m.migrate(t)
	m.must(t, takeover.Ahead)
	formertest.Exec(t, m.url,
		`create schema app; create table app.notes (id uuid constraint owner references gh_users)`)
	refusal := "takeover: app.notes refers to users here already, and its rows would go with users that are deleted " +
		"here: move the key back first: alter table app.notes drop constraint owner;"
	m.refused(t, takeover.Last, refusal)
	m.refused(t, takeover.Abandon, refusal, func(o *takeover.Options) { o.Source.Close(); o.Source = nil })
	formertest.Exec(t, m.url, `alter table app.notes drop constraint owner`)
	o := m.must(t, takeover.Last)
	if !strings.Contains(o.out, "-- foreign key profiles_id_fkey of app.profiles refers to auth.users\n") ||
		!strings.Contains(o.out, "-- they cannot refer to another database\n") ||
		strings.Contains(o.out, "alter table") {
		t.Error(o.out)
	}
	if here, there := testdb.One[int](t, m.url, "select count(*) from gh_users"),
		testdb.One[int](t, m.sourceURL, "select count(*) from auth.users where not is_sso_user"); here != there {
		t.Errorf("%d users here, want %d", here, there)
	}
}

// Behind PgBouncer in transaction mode nothing of a run stays on a connection that others use next.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	bouncer := testdb.PgBouncer(t, server, "default_pool_size = 6")
	url := bouncer.PostgresURL("postgres") + "&default_query_exec_mode=cache_describe"
	m := &move{Source: formertest.Fill(t, server.PostgresURL("postgres"), "auth", formertest.Newest, time.Now()),
		url: url, sourceURL: url}
	m.migrate(t)
	m.must(t, takeover.Ahead, func(o *takeover.Options) { o.Hooks.Rows = 10 })
	m.there(t, "update auth.users set raw_user_meta_data = '{}' where id = $1", m.User(1).ID)
	m.must(t, takeover.Last, func(o *takeover.Options) { o.Hooks.Rows = 10 })
	for range 12 {
		c, err := pgx.Connect(t.Context(), url)
		must.Succeed(t, err)
		var left string
		must.Succeed(t, c.QueryRow(t.Context(), `select concat_ws(' ',
			current_setting('default_transaction_read_only'), current_setting('row_security'),
			current_setting('statement_timeout'), current_setting('transaction_isolation'), (select count(*) from pg_prepared_statements))`).Scan(&left))
		c.Close(t.Context())
		if left != "off on 0 read committed 0" {
			t.Errorf("a connection has %s", left)
		}
	}
}

// A standby may be read ahead of the last run, which needs the primary.
func TestRecovery(t *testing.T) {
	t.Parallel()
	primary := testdb.PrivatePostgres(t, localserver.PostgresOptions{Config: []string{"wal_level=replica"}})
	url := primary.PostgresURL("postgres")
	source := formertest.Fill(t, url, "auth", formertest.Newest, time.Now())
	standby := standbyOf(t, primary)
	m := &move{Source: source, url: testdb.Postgres(t), sourceURL: standby}
	m.migrate(t)
	m.must(t, takeover.DryRun)
	m.must(t, takeover.Ahead)
	m.refused(t, takeover.Last,
		"takeover: the database there is in recovery, and the last run would miss what is not replayed yet: connect "+
			"to its primary (-ahead and -dry-run may read here)")
	m.sourceURL = url
	m.must(t, takeover.Last)
}

// Names in comments of the suggested statements stay on their line: behind a line break they
// would be run with the rest.
func TestSuggestions_lineBreaks(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.there(t, strings.ReplaceAll(`create schema app; create table app.run (what text);
		create function app."f{insert into app.run values ('f'); --"() returns int language sql as 'select count(*)::int from auth.users';
		create table app."t{insert into app.run values ('t'); --" (id uuid references auth.users);
		create table app.seen (session_id uuid constraint "k{insert into app.run values ('k'); --" references auth.sessions)`, "{", "\n"))
	o := m.must(t, takeover.Last)
	_, rest, _ := strings.Cut(o.out, "-- without a mirror:\n")
	forth, back, _ := strings.Cut(rest, "-- way back:\n")
	for _, sql := range []string{forth, back} {
		m.there(t, sql)
		if run := testdb.One[string](t, m.url, "select coalesce(string_agg(what, ' '), '') from app.run"); run != "" {
			t.Fatalf("names that were run as statements: %s\n%s", run, sql)
		}
	}
}

// A schema whose name needs quotes has its triggers moved like any other.
func TestSuggestions_quotedSchema(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.there(t, `create schema app;
		create function app.noted() returns trigger language plpgsql as 'begin return new; end';
		create trigger on_user after insert on auth.users for each row execute function app.noted();
		alter schema auth rename to "Auth"`)
	m.Schema = "Auth"
	o := m.must(t, takeover.Last)
	if !strings.Contains(
		o.out, "\nCREATE TRIGGER on_user AFTER INSERT ON public.users FOR EACH ROW EXECUTE FUNCTION app.noted();\n") {
		t.Error(o.out)
	}
}

// A session that expires while the last run works doesn't keep the takeover open.
func TestLast_sessionExpires(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	live := m.Live()[0]
	m.there(t, "update auth.sessions set not_after = clock_timestamp() + interval '5 seconds' where id = $1", live.ID)
	m.must(t, takeover.Last, func(o *takeover.Options) {
		o.Hooks.Batch = func(step string) {
			if step == "links" {
				for testdb.One[bool](t, m.url, "select not_after >= clock_timestamp() from auth.sessions where id = $1",
					live.ID) {
					time.Sleep(100 * time.Millisecond)
				}
			}
		}
	})
	if n := testdb.One[int](t, m.url, "select count(*) from sessions where id = $1", live.ID); n != 1 {
		t.Errorf("%d sessions, want the one that was live when the run began", n)
	}
}

// A factor that is new there may have the name that an older one without any has got here.
func TestAhead_factorName(t *testing.T) {
	t.Parallel()
	m := newMove(t, formertest.Newest)
	m.must(t, takeover.Ahead)
	user := m.User(14) // two factors without a name
	m.there(t, `insert into auth.mfa_factors (id, user_id, friendly_name, factor_type, status, created_at, updated_at, secret)
		values (gen_random_uuid(), $1, '2', 'totp', 'verified', now(), now(), 'JBSWY3DPEHPK3PXP')`, user.ID)
	m.must(t, takeover.Last)
	if names := testdb.One[string](
		t, m.url, "select string_agg(friendly_name, ',' order by created_at) from factors where user_id = $1",
		user.ID); names != ",3,2" {
		t.Errorf("the names are %q", names)
	}
}

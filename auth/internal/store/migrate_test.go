package store_test

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/store"
	"gatehouse/auth/internal/store/storetest"
	"gatehouse/migrations"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/logtest"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

func open(t *testing.T, url, namespace string) *store.DB {
	t.Helper()
	db, err := store.Open(t.Context(),
		store.Options{URL: url, Settings: store.Settings{Namespace: namespace, MaxConns: 8}})
	must.Succeed(t, err)
	t.Cleanup(db.Close)
	return db
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	db := open(t, url, "")
	files, err := migrations.FS.ReadDir(".")
	must.Succeed(t, err)
	if n, err := db.Pending(t.Context()); n != len(files) || err != nil {
		t.Errorf("%d pending on an empty database, %v; want %d", n, err, len(files))
	}
	// Ten replicas start at once.
	var mu sync.Mutex
	sum := 0
	await.Together(10, func(int) {
		other := open(t, url, "")
		n, err := other.Migrate(t.Context())
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		sum += n
		mu.Unlock()
	})
	if sum != len(files) {
		t.Errorf("%d files applied by ten at once, want %d", sum, len(files))
	}
	if n, err := db.Pending(t.Context()); n != 0 || err != nil {
		t.Errorf("%d pending afterwards, %v", n, err)
	}
}

// Two namespaces live in one database, with the longest possible prefix, and nothing lies outside of them.
func TestMigrate_namespace(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	long := strings.Repeat("n", 30)
	for _, ns := range []string{"auth_", long} {
		must.Succeed(t, must.ErrOf(open(t, url, ns).Migrate(t.Context())))
	}
	db := open(t, url, long)
	err := db.With(t.Context(), func(c *pgx.Conn) error {
		rows, _ := c.Query(t.Context(), `select relname::text from pg_class where relnamespace = 'public'::regnamespace
			union select conname::text from pg_constraint where connamespace = 'public'::regnamespace
				and contype <> 'n'`) // PostgreSQL 18 names the kind n, not null, and shortens the names
		names, err := pgx.CollectRows(rows, pgx.RowTo[string])
		seen := map[string]int{}
		for _, name := range names {
			after, ok := strings.CutPrefix(name, "auth_")
			if !ok {
				after, ok = strings.CutPrefix(name, long)
			}
			if !ok {
				t.Errorf("%s has no prefix", name)
			}
			seen[after]++
		}
		for name, n := range seen {
			if n != 2 {
				t.Errorf("%s exists %d times, want once in each namespace", name, n)
			}
		}
		return err
	})
	must.Succeed(t, err)
}

func TestMigrate_refuses(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := testdb.Postgres(t)
	db := open(t, url, "")
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	apply := func(files fstest.MapFS, want int, wantErr string) {
		t.Helper()
		n, err := db.MigrateFS(ctx, files)
		if n != want || (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%d applied, %v; want %d and %q", n, err, want, wantErr)
		}
		if errors.Is(err, store.ErrUnavailable) {
			t.Errorf("waiting would not help: %v", err)
		}
	}
	first := file("create table {users} (id int); insert into {users} values (1);")
	apply(fstest.MapFS{"00001_a.sql": first}, 1, "")
	apply(fstest.MapFS{"00001_a.sql": first}, 0, "")
	apply(fstest.MapFS{"00001_a.sql": file("create table {users} (id bigint)")}, 0,
		"00001_a.sql was applied with other content")
	// A file that fails leaves nothing behind.
	apply(fstest.MapFS{"00001_a.sql": first, "00002_b.sql": file("alter table {users} add n int; select nonsense;")}, 0,
		`migration 00002_b.sql`)
	// Outside of a transaction, statement by statement, and again after a kill between the two.
	index := file("-- outside\ndrop index concurrently if exists {users_newest};\n" +
		"create index concurrently {users_newest} on {users} (id);\n")
	apply(fstest.MapFS{"00001_a.sql": first, "00002_b.sql": index}, 1, "")
	// A rollback: the newer schema is fine unless it says otherwise.
	apply(fstest.MapFS{"00001_a.sql": first}, 0, "")
	breaking := file("-- breaks older programs\nalter table {users} add n int;")
	apply(fstest.MapFS{"00001_a.sql": first, "00002_b.sql": index, "00003_c.sql": breaking}, 1, "")
	apply(fstest.MapFS{"00001_a.sql": first}, 0, "00003_c.sql says that older ones can't work with it")
	apply(fstest.MapFS{"1_a.sql": first}, 0, "its number")
}

// A migration that meets a lock doesn't queue behind it, and goes on when it is gone.
func TestMigrate_lock(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := open(t, testdb.Postgres(t), "")
	files := fstest.MapFS{"00001_a.sql": {Data: []byte("create table {users} (id int)")}}
	must.Succeed(t, must.ErrOf(db.MigrateFS(ctx, files)))
	files["00002_b.sql"] = &fstest.MapFile{Data: []byte("alter table {users} add n int")}
	held := make(chan struct{})
	release := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		err := db.With(ctx, func(c *pgx.Conn) error {
			return pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "lock table users")
				close(held)
				<-release
				return err
			})
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-held
	short, cancel := context.WithTimeout(ctx, 1500*time.Millisecond)
	defer cancel()
	if _, err := db.MigrateFS(short, files); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("while the table is locked: %v", err)
	}
	close(release)
	wg.Wait()
	if n, err := db.MigrateFS(ctx, files); n != 1 || err != nil {
		t.Errorf("afterwards: %d, %v", n, err)
	}
}

// A daemon that waits for another program's migration logs it.
func TestMigrate_waits(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url := testdb.Postgres(t)
	var log logtest.Buffer
	db, err := store.Open(ctx, store.Options{URL: url, Settings: store.Settings{MaxConns: 2},
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	must.Succeed(t, err)
	defer db.Close()
	other := testdb.Connect(t, url)
	must.Succeed(t, must.ErrOf(other.Exec(ctx, "select pg_advisory_lock($1)", db.MigrationLock())))
	done := make(chan error)
	go func() {
		_, err := db.Migrate(ctx)
		done <- err
	}()
	await.True(t, "a log line of the lock",
		func() bool { return strings.Contains(log.String(), "a migration waits for a lock") }, log.String)
	must.Succeed(t, must.ErrOf(other.Exec(ctx, "select pg_advisory_unlock($1)", db.MigrationLock())))
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Every name in braces is known, every known name is used, and none is too long for a prefix.
func TestNames(t *testing.T) {
	var text strings.Builder
	files, err := migrations.FS.ReadDir(".")
	must.Succeed(t, err)
	for _, f := range files {
		b, err := migrations.FS.ReadFile(f.Name())
		must.Succeed(t, err)
		text.Write(b)
	}
	db := storetest.Open(t)
	for _, sql := range db.Texts() {
		if regexp.MustCompile(`\{[a-z_]+\}`).MatchString(sql) {
			t.Errorf("an unknown name is left in %s", sql)
		}
	}
	for _, m := range regexp.MustCompile(`\{([a-z_]+)\}`).FindAllStringSubmatch(text.String(), -1) {
		if !slices.Contains(migrations.Names, m[1]) {
			t.Errorf("%s is not in migrations.Names", m[1])
		}
	}
	for _, name := range migrations.Names {
		if len(name) > migrations.MaxName {
			t.Errorf("%s has %d bytes", name, len(name))
		}
		if name != "schema_migrations" && !strings.Contains(text.String(), "{"+name+"}") {
			t.Errorf("%s is in no file", name)
		}
	}
}

// PostgreSQL understands every statement, with and without a namespace.
func TestStatements_parse(t *testing.T) {
	t.Parallel()
	url := storetest.URL(t)
	must.Succeed(t, must.ErrOf(open(t, url, "x_").Migrate(t.Context())))
	for _, ns := range []string{"", "x_"} {
		db := open(t, url, ns)
		err := db.With(t.Context(), func(c *pgx.Conn) error {
			// A takeover's statements read temporary tables, which others of them make.
			for _, sql := range db.Texts() {
				if text, temporary := strings.CutPrefix(sql, "create temporary table "); temporary {
					text = strings.ReplaceAll(text, " on commit drop", "")
					if _, err := c.Exec(t.Context(), "create temporary table "+text); err != nil {
						return err
					}
				}
			}
			for _, sql := range db.Texts() {
				if _, err := c.Prepare(t.Context(), sql, sql); err != nil {
					t.Errorf("%v in\n%s", err, sql)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A database of before the factors is brought up with what is in it, and read by both programs: users without
// factors, sessions at the level that they have.
func TestMigrate_beforeFactors(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := open(t, testdb.Postgres(t), "auth_")
	earlier := fstest.MapFS{}
	files, err := migrations.FS.ReadDir(".")
	must.Succeed(t, err)
	for _, f := range files {
		if text, err := migrations.FS.ReadFile(f.Name()); err == nil && f.Name() < "00009" {
			earlier[f.Name()] = &fstest.MapFile{Data: text}
		}
	}
	if n, err := db.MigrateFS(ctx, earlier); n != 8 || err != nil {
		t.Fatal(n, err)
	}
	u := newUser("mia@example.org")
	s := newSession(u, noon)
	err = db.With(ctx, func(c *pgx.Conn) error { // as the program of then did
		if _, err := c.Exec(ctx,
			"insert into auth_users (id, aud, role, email, created_at, updated_at) values ($1, $2, $3, $4, $5, $5)",
			u.ID.String(), u.Aud, u.Role, u.Email, noon); err != nil {
			return err
		}
		_, err := c.Exec(ctx,
			"insert into auth_sessions (id, user_id, created_at, secret_hash, refreshed_at, aal, amr) values ($1, "+
				"$2, $3, '', $3, 2, '[]')", s.ID.String(), u.ID.String(), noon)
		return err
	})
	must.Succeed(t, err)
	if n, err := db.Migrate(ctx); n < 1 || err != nil {
		t.Fatal(n, err)
	}
	got, v, err := db.Caller(ctx, u.ID, s.ID)
	if err != nil || got.Email != u.Email || got.Identities != nil || got.Factors != nil || v.AAL != 2 {
		t.Errorf("%+v, %+v, %v", got, v, err)
	}
	addFactor(t, db, u, store.FactorTOTP, "", noon)
	if n, err := db.MigrateFS(ctx, earlier); n != 0 || err != nil { // the program of before goes on
		t.Error(n, err)
	}
}

// schemaOf lists every column, index and constraint.
func schemaOf(t *testing.T, db *store.DB) (lines []string) {
	t.Helper()
	err := db.With(t.Context(), func(c *pgx.Conn) error {
		rows, _ := c.Query(t.Context(), `
			select table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '')
			from information_schema.columns where table_schema = 'public'
			union all select indexdef from pg_indexes where schemaname = 'public'
			union all select conname || ' ' || pg_get_constraintdef(oid) from pg_constraint where connamespace = 'public'::regnamespace
			order by 1`)
		var err error
		lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	must.Succeed(t, err)
	return lines
}

// However often the migrating program or the server is killed, the next one completes the work.
func TestMigrate_killed(t *testing.T) {
	t.Parallel()
	clean := open(t, testdb.Postgres(t), "")
	must.Succeed(t, must.ErrOf(clean.Migrate(t.Context())))
	server := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	db := open(t, server.PostgresURL("postgres"), "")
	kills := 0
	for wait := time.Millisecond; ; wait += time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		_, err := db.Migrate(ctx)
		cancel()
		if err == nil {
			break
		}
		if kills++; kills%4 == 0 {
			must.Succeed(t, server.Restart(t.Context()))
		}
		if kills > 1000 {
			t.Fatal(err)
		}
	}
	if want, got := schemaOf(t, clean), schemaOf(t, db); !slices.Equal(want, got) {
		t.Errorf("after %d kills the schema is\n%s\nwant\n%s", kills, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// What a program of before left is repaired, and it goes on afterwards: what it may write breaks no constraint.
func TestMigrate_beforeProofs(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := open(t, testdb.Postgres(t), "auth_")
	files, err := migrations.FS.ReadDir(".")
	must.Succeed(t, err)
	earlier := fstest.MapFS{}
	for _, f := range files {
		if text, err := migrations.FS.ReadFile(f.Name()); err == nil && f.Name() < "00017" {
			earlier[f.Name()] = &fstest.MapFile{Data: text}
		}
	}
	must.Succeed(t, must.ErrOf(db.MigrateFS(ctx, earlier)))
	exec := func(sql string) {
		t.Helper()
		must.Succeed(t, must.ErrOf(db.Pool().Exec(ctx, sql)))
	}
	const made = `insert into auth_users (id, aud, role, is_anonymous, email, email_confirmed_at, phone, phone_confirmed_at,
		created_at, updated_at) values (gen_random_uuid(), 'a', 'a', true, `
	exec(made + `'mia@example.org', now(), '', null, now(), now())`)
	exec(made + `'', null, '491511', now(), now(), now())`)
	exec(made + `'tom@example.org', null, '', null, now(), now())`)
	if n, err := db.Migrate(ctx); n < 1 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := db.MigrateFS(ctx, earlier); n != 0 || err != nil {
		t.Error(n, err)
	}
	var anonymous string
	if err := db.Pool().QueryRow(ctx, `select string_agg(email || phone, ' ') from auth_users
		where is_anonymous or email_unproven or phone_unproven`).Scan(&anonymous); err != nil || anonymous != "tom@example.org" {
		t.Errorf("anonymous, or unproven: got %q, %v, want tom@example.org", anonymous, err)
	}
	exec(`update auth_users set email_confirmed_at = now() where is_anonymous`)             // a proof
	exec(made + `'ann@example.org', now(), '', null, now(), now())`)                        // a takeover
	exec(`update auth_users set email_unproven = true where email <> ''`)                   // by the present program
	exec(`update auth_users set email = '', email_confirmed_at = null where email <> ''`)   // unlinks
	exec(`update auth_users set deleted_at = now(), password_hash = 'x' where phone <> ''`) // undone later
}

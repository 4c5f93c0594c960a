package mirror_test

import (
	"bytes"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/auth/internal/mirror"
	"gatehouse/auth/internal/store"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// Each command works through PgBouncer, and leaves nothing on the connections that other clients use next.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	server := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	m := moveTo(t, server.PostgresURL("postgres"), formertest.Newest, "")
	m.exec(t, "alter database postgres set search_path = gatehouse") // a pooler takes no parameter of it
	for _, mode := range []string{"transaction", "session"} {
		bouncer := testdb.PgBouncer(t, server, "default_pool_size = 3", "pool_mode = "+mode)
		link := bouncer.PostgresURL("postgres") + "&default_query_exec_mode=cache_describe"
		db, err := store.Open(t.Context(), store.Options{URL: link, Settings: store.Settings{MaxConns: 1}})
		must.Succeed(t, err)
		t.Cleanup(db.Close)
		through := func(o *mirror.Options) { o.URL, o.DB = link, db }
		for range 2 { // the second time on connections that the first one has used
			m.install(t, through, func(o *mirror.Options) { o.Sessions = new(true) })
			m.add(t, uuid.NewString()+"@example.org")
			m.check(t, true, through)
			var out bytes.Buffer
			o := m.options(&out)
			through(&o)
			if wrong, _, err := mirror.Look(t.Context(), o, true); len(wrong) > 0 || err != nil {
				t.Errorf("%s: look: %q, %v", mode, wrong, err)
			}
			if err := mirror.Scrub(t.Context(), o); err != nil {
				t.Errorf("%s: scrub: %v\n%s", mode, err, out.String())
			}
			if err := mirror.Drop(t.Context(), o); err != nil {
				t.Errorf("%s: drop: %v\n%s", mode, err, out.String())
			}
		}
		db.Close()
		for range 6 {
			c, err := pgx.Connect(t.Context(), link)
			must.Succeed(t, err)
			var left string
			must.Succeed(t, c.QueryRow(t.Context(), `select concat_ws(' ', current_user, current_setting('statement_timeout'),
				current_setting('lock_timeout'), current_setting('transaction_isolation'),
				(select count(*) from pg_prepared_statements))`).Scan(&left))
			c.Close(t.Context())
			if left != "postgres 0 0 read committed 0" {
				t.Errorf("%s: a connection has %s", mode, left)
			}
		}
	}
}

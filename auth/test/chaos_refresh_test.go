package test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// While the database is unreachable a refresh is answered 503 with Retry-After, however it is unreachable: any other
// answer makes client libraries drop their session. The same token works afterwards.
func TestRefresh_databaseUnavailable(t *testing.T) {
	t.Parallel()
	// hold takes a lock on the sessions until the returned function is called.
	hold := func(t *testing.T, pg *localserver.Server) (release func()) {
		conn, err := pgx.Connect(t.Context(), pg.PostgresURL("postgres"))
		must.Succeed(t, err)
		must.Succeed(t, must.ErrOf(conn.Exec(t.Context(), `begin; lock table sessions in access exclusive mode`)))
		return func() { must.Succeed(t, conn.Close(context.Background())) }
	}
	// occupy takes all connections that the server has, the daemon's too, until the returned function is called.
	occupy := func(t *testing.T, pg *localserver.Server) (release func()) {
		var taken []*pgx.Conn
		await.True(t, "all connections are taken", func() bool {
			for {
				conn, err := pgx.Connect(t.Context(), pg.PostgresURL("postgres"))
				if err != nil {
					break
				}
				taken = append(taken, conn)
			}
			var pids []uint32
			for _, conn := range taken {
				pids = append(pids, conn.PgConn().PID())
			}
			var others int
			err := taken[0].QueryRow(t.Context(), `select count(pg_terminate_backend(pid)) from pg_stat_activity
				where backend_type = 'client backend' and pid <> all($1)`, pids).Scan(&others)
			must.Succeed(t, err)
			return others == 0
		})
		return func() {
			for _, conn := range taken {
				conn.Close(context.Background())
			}
		}
	}
	f := func(name string, away func(*testing.T, *localserver.Server) (back func()), more ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testdb.PrivatePostgres(t, localserver.PostgresOptions{Config: []string{"max_connections=20"}})
			env := environment(pg.PostgresURL("postgres"), "AUTH_MAILER_AUTOCONFIRM=true")
			patient := start(t, env) // on a slow machine a sign-up may take longer than d allows
			var tokens []string
			for i := range 8 {
				tokens = append(tokens, patient.want(t, 200, "POST", "/signup", "",
					fmt.Sprintf(`{"email":"p%d@example.org","password":"correct horse"}`, i)).str("refresh_token"))
			}
			must.Succeed(t, patient.Stop(time.Minute))
			d := start(t, append(append(env, "AUTH_API_MAX_REQUEST_DURATION=1s", "AUTH_DB_MAX_POOL_SIZE=4"), more...))
			client := newCaller(t, 30*time.Second)
			back := away(t, pg)
			var wg sync.WaitGroup
			for _, token := range tokens {
				wg.Go(func() {
					for range 3 {
						begun := time.Now()
						r, err := client.do("POST", d.http+refreshPath, "", refreshing(token))
						if err != nil || r.status != 503 || r.header.Get("Retry-After") == "" {
							t.Errorf("away: %v %d %s, Retry-After %q", err, r.status, r.text,
								r.header.Get("Retry-After"))
						}
						if took := time.Since(begun); took > 15*time.Second {
							t.Errorf("an answer took %v", took)
						}
					}
				})
			}
			wg.Wait()
			back()
			for _, token := range tokens {
				await.True(t, "the same token works", func() bool {
					r, err := client.do("POST", d.http+refreshPath, "", refreshing(token))
					if err != nil || r.status != 200 && r.status != 503 {
						t.Fatalf("back: %v %d %s", err, r.status, r.text)
					}
					return r.status == 200
				})
			}
			if n := rows[int](t, pg.PostgresURL("postgres"),
				`select count(*) from sessions where ended_at is not null`)[0]; n > 0 {
				t.Errorf("%d sessions have ended", n)
			}
		})
	}
	f("killed", func(t *testing.T, pg *localserver.Server) func() {
		pg.Kill()
		return func() { must.Succeed(t, pg.Restart(context.Background())) }
	})
	f("frozen", func(t *testing.T, pg *localserver.Server) func() {
		must.Succeed(t, pg.Stop())
		return func() { must.Succeed(t, pg.Cont()) }
	})
	f("locked", hold)
	f("the pool exhausted", hold, "AUTH_DB_MAX_POOL_SIZE=1")
	f("the server full", occupy)
	f("read only", func(t *testing.T, pg *localserver.Server) func() {
		set := func(value string) {
			conn, err := pgx.Connect(t.Context(), pg.PostgresURL("postgres"))
			must.Succeed(t, err)
			defer conn.Close(t.Context())
			for _, sql := range []string{`set default_transaction_read_only = off`,
				`alter system set default_transaction_read_only = ` + value, `select pg_reload_conf()`} {
				must.Succeed(t, must.ErrOf(conn.Exec(t.Context(), sql)))
			}
			await.True(t, "new transactions of new connections see the setting", func() bool {
				got, err := rowsOnce[string](pg.PostgresURL("postgres"),
					`select current_setting('default_transaction_read_only')`)
				return err == nil && got[0] == value
			})
		}
		set("on")
		return func() { set("off") }
	})
}

// inbox reads the daemon's mailbox.
func (d *instance) inbox(t testing.TB, method, path string) string {
	t.Helper()
	a, err := call(method, d.mailbox+path, "", "")
	must.Succeed(t, err)
	return a.text
}

// Many at once with the same secret: one of them wins, and each gets the right answer.
func TestAtOnce(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	replicas := []*instance{start(t, environment(url)), start(t, environment(url))}
	client := newCaller(t, 60*time.Second)
	// all sends n requests at once, to both replicas in turn, and sorts the answers by status.
	all := func(n int, path, body string) map[int][]reply {
		t.Helper()
		sorted := map[int][]reply{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range n {
			wg.Go(func() {
				<-begin
				r, err := client.do("POST", replicas[i%2].http+path, "", body)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				sorted[r.status] = append(sorted[r.status], r)
			})
		}
		close(begin)
		wg.Wait()
		return sorted
	}
	count := func(want int, sql string) {
		t.Helper()
		if n := rows[int](t, url, sql)[0]; n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
	told := func(sorted map[int][]reply) (text string) {
		for status, list := range sorted {
			text += fmt.Sprintf("%d × %d (such as %.200s) ", len(list), status, list[0].text)
		}
		return text
	}

	// A hundred sign-ups of one address create one user. Hashing has a short queue: a sign-up that finds it full is
	// answered to retry.
	signUp := `{"email":"ann@example.org","password":"correct horse"}`
	got := all(100, "/signup", signUp)
	if len(got[200]) == 0 || len(got[200])+len(got[503])+len(got[429]) != 100 {
		t.Errorf("sign-ups: %s", told(got))
	}
	for _, r := range append(got[503], got[429]...) {
		if r.header.Get("Retry-After") == "" {
			t.Errorf("%d without Retry-After", r.status)
		}
	}
	count(1, `select count(*) from users`)
	count(1, `select count(*) from identities`)
	count(0, `select count(*) from sessions`)
	count(len(got[200]), `select count(*) from outbox where kind = 'confirmation'`)

	// Two hundred verifies with one token are one session.
	delivered := func() bool {
		return rows[int](t, url, `select count(*) from outbox where state = 'pending'`)[0] == 0
	}
	await.True(t, "all mails are delivered", delivered)
	for _, d := range replicas { // each has a mailbox of its own
		d.inbox(t, "DELETE", "/messages")
	}
	replicas[0].want(t, 200, "POST", "/signup", "", signUp)
	count(1, `select count(*) from users`)
	await.True(t, "the newest mail is delivered", delivered)
	var token string
	for _, d := range replicas {
		if found := tokenInLink.FindStringSubmatch(d.inbox(t, "GET", "/latest/link")); found != nil {
			token = found[1]
		}
	}
	verify := `{"type":"signup","token_hash":"` + token + `"}`
	got = all(200, "/verify", verify)
	if len(got[200]) != 1 || len(got[403]) != 199 {
		t.Fatalf("verifies: %s", told(got))
	}
	count(1, `select count(*) from sessions`)
	count(1, `select count(*) from users where email_confirmed_at is not null`)

	// Twenty refreshes of one token are one child, and all get it.
	parent := got[200][0].str("refresh_token")
	for range 5 {
		got = all(20, refreshPath, refreshing(parent))
		if len(got[200]) != 20 {
			t.Fatalf("refreshes: %s", told(got))
		}
		child := got[200][0].str("refresh_token")
		for _, r := range got[200] {
			if r.str("refresh_token") != child || child == parent || child == "" {
				t.Errorf("children %s and %s of %s", child, r.str("refresh_token"), parent)
			}
		}
		parent = child
	}
	count(5, `select counter from sessions`)
	count(0, `select count(*) from sessions where ended_at is not null`)
	for _, d := range replicas {
		if strings.Contains(d.log.text(), `"status":500`) {
			t.Error("an answer 500")
		}
	}
}

package test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/shared/await"
	"gatehouse/shared/chaos"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// A daemon killed at any moment of its first starts leaves a database with which the next one goes on.
func TestKilledWhileStarting(t *testing.T) {
	t.Parallel()
	chance := chaos.Rand(t)
	url := testdb.Postgres(t)
	for range 20 {
		d := launch(t, t.TempDir(), environment(url))
		time.Sleep(time.Duration(chance.IntN(250)) * time.Millisecond)
		must.Succeed(t, d.Signal(syscall.SIGKILL))
		<-d.Ended()
	}
	d := start(t, environment(url))
	d.signUp(t, "ann@example.org")
	if n := rows[int](t, url, `select count(*) from signing_keys`)[0]; n != 1 {
		t.Errorf("%d keys", n)
	}
}

// Three replicas with pools without a bound want more connections than the server has: their callers wait for the
// existing ones, and no client notices. One of them reads its settings again all the while.
func TestReplicasCrowdedDatabase(t *testing.T) {
	t.Parallel()
	pg := testdb.PrivatePostgres(t,
		localserver.PostgresOptions{Config: []string{"max_connections=24", "superuser_reserved_connections=3"}})
	smtp := smtptest.Start(t, smtptest.Options{})
	url := pg.PostgresURL("postgres")
	// As in an installation the daemons aren't superusers, which some connections are reserved for.
	for _, sql := range []string{`create role auth login`, `create database auth owner auth`} {
		must.Succeed(t, execute(url, sql))
	}
	own := strings.Replace(pg.PostgresURL("auth"), "postgres@", "auth@", 1)
	env := append(environment(own, onSMTP(smtp)...), "AUTH_DB_MAX_POOL_SIZE=0", "AUTH_RATE_LIMIT_EMAIL_SENT=100000",
		"AUTH_RATE_LIMIT_REFRESH_PER_SESSION=0", "AUTH_API_MAX_REQUEST_DURATION=30s")
	r := &replicas{t: t, url: own, env: env, client: newCaller(t, 60*time.Second)}
	for range 3 {
		r.all = append(r.all, start(t, env))
	}
	mails := newSentMails(smtp)
	var sessions []reply
	for i := range 24 {
		email := fmt.Sprintf("p%d@example.org", i)
		r.all[i%3].want(t, 200, "POST", "/signup", "", `{"email":"`+email+`","password":"correct horse"}`)
		await.True(t, "the mail", func() bool { return len(mails.to(t, email)) > 0 })
		s, err := r.client.do("POST", r.all[(i+1)%3].http+"/verify", "",
			`{"type":"signup","token_hash":"`+mails.to(t, email)[0].token+`"}`)
		if err != nil || s.status != 200 {
			t.Fatal(err, s.text)
		}
		sessions = append(sessions, s)
	}
	var wg sync.WaitGroup
	var done atomic.Int64
	end := time.Now().Add(chaos.Time(t, 4*time.Second))
	for i, s := range sessions {
		wg.Go(func() {
			access, token := s.str("access_token"), s.str("refresh_token")
			for n := i; time.Now().Before(end) && !t.Failed(); n++ {
				await.Together(3, func(int) {
					a, err := r.client.do("GET", r.all[n%3].http+"/user", access, "")
					if err != nil || a.status != 200 {
						t.Errorf("GET /user: %v %d %s", err, a.status, a.text)
					}
					done.Add(1)
				})
				a, err := r.client.do("POST", r.all[n%3].http+refreshPath, "", refreshing(token))
				if err != nil || a.status != 200 {
					t.Errorf("refresh: %v %d %s", err, a.status, a.text)
					return
				}
				access, token = a.str("access_token"), a.str("refresh_token")
			}
		})
	}
	for time.Now().Before(end) {
		must.Succeed(t, r.all[0].Signal(syscall.SIGHUP))
		time.Sleep(100 * time.Millisecond)
	}
	wg.Wait()
	t.Logf("%d times GET /user", done.Load())
	// Of many processes that look for due mails one sends each mail.
	seen := map[string]int{}
	for _, m := range smtp.Mails() {
		seen[m.To]++
	}
	for to, n := range seen {
		if n != 1 {
			t.Errorf("%s got %d mails", to, n)
		}
	}

	// A restarted database: the next requests may get a closed connection, and are answered to retry.
	must.Succeed(t, pg.Restart(context.Background()))
	told := map[int]int{}
	for i, s := range sessions {
		a, err := r.client.do("GET", r.all[i%3].http+"/user", s.str("access_token"), "")
		if err != nil || a.status != 200 && (a.status != 503 || a.header.Get("Retry-After") == "") {
			t.Errorf("after a restart: %v %d %s", err, a.status, a.text)
		}
		told[a.status]++
	}
	t.Logf("right after a restart of the database: %v", told)
}

package test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gatehouse/auth/internal/mail/smtptest"
	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// SIGTERM while requests wait for the database and mails for the mail server: every request is answered
// as if nothing were, readiness flips first, and the leases on the mails are given back, so that another
// replica sends them at once.
func TestStopWithAllInFlight(t *testing.T) {
	t.Parallel()
	pg, smtp := testdb.PrivatePostgres(t, localserver.PostgresOptions{}), smtptest.Start(t, smtptest.Options{})
	url := pg.PostgresURL("postgres")
	env := append(environment(url, onSMTP(smtp)...), "AUTH_DRAIN_DELAY=3s", "AUTH_DRAIN_TIMEOUT=60s",
		"AUTH_API_MAX_REQUEST_DURATION=60s", "AUTH_DB_MAX_POOL_SIZE=40")
	d := start(t, env)
	client := newCaller(t, 60*time.Second)

	// 14 mails: 8 are under way and hang, the others wait for their turn.
	var tokens []string
	mails := newSentMails(smtp)
	for i := range 6 {
		email := fmt.Sprintf("early%d@example.org", i)
		d.want(t, 200, "POST", "/signup", "", `{"email":"`+email+`","password":"correct horse"}`)
		await.True(t, "the mail", func() bool { return len(mails.to(t, email)) > 0 })
		tokens = append(tokens, d.want(t, 200, "POST", "/verify", "",
			`{"type":"signup","token_hash":"`+mails.to(t, email)[0].token+`"}`).str("refresh_token"))
	}
	smtp.Behave(smtptest.At(smtptest.Data, smtptest.Action{Hang: true}))
	for i := range 14 {
		d.want(t, 200, "POST", "/signup", "",
			fmt.Sprintf(`{"email":"late%d@example.org","password":"correct horse"}`, i))
	}
	await.True(t, "8 mails hang", func() bool {
		return rows[int](t, url, `select count(*) from outbox where state = 'pending' and attempts > 0`)[0] >= 8
	})

	// Requests that wait for a lock, of each kind.
	lock := testdb.Connect(t, url)
	must.Succeed(t, must.ErrOf(lock.Exec(t.Context(), `begin; lock table sessions, users in access exclusive mode`)))
	var wg sync.WaitGroup
	var answered atomic.Int64
	send := func(path, body string) {
		wg.Go(func() {
			r, err := client.do("POST", d.http+path, "", body)
			if err != nil || r.status != 200 {
				t.Errorf("%s: %v %d %s", path, err, r.status, r.text)
				return
			}
			answered.Add(1)
		})
	}
	for i, token := range tokens {
		send(refreshPath, refreshing(token))
		send("/signup", fmt.Sprintf(`{"email":"waiting%d@example.org","password":"correct horse"}`, i))
		send("/token?grant_type=password", fmt.Sprintf(`{"email":"early%d@example.org","password":"correct horse"}`, i))
	}
	await.True(t, "all wait for the lock", func() bool {
		return rows[int](t, url, `select count(*) from pg_stat_activity where wait_event_type = 'Lock'`)[0] >= 18
	})

	begun := time.Now()
	must.Succeed(t, d.Signal(syscall.SIGTERM))
	d.log.await(t, `"msg":"stopping"`, nil)
	await.True(t, "unready while requests are still taken", func() bool {
		r, err := client.do("GET", d.http+"/readyz", "", "")
		if err != nil {
			t.Fatalf("the listener closed before readiness flipped: %v", err)
		}
		return r.status == 503 && strings.Contains(r.text, "stopping")
	})
	if r, err := client.do("GET", d.http+"/livez", "", ""); err != nil || r.status != 200 {
		t.Errorf("livez while stopping: %v %d", err, r.status)
	}
	// Past the pause the listener is closed; those in flight still wait.
	await.True(t, "no new connections", func() bool {
		fresh := newCaller(t, time.Second)
		_, err := fresh.do("GET", d.http+"/livez", "", "")
		return err != nil
	})
	if n := answered.Load(); n > 0 {
		t.Errorf("%d were answered before the lock was gone", n)
	}
	must.Succeed(t, must.ErrOf(lock.Exec(t.Context(), `rollback`)))
	wg.Wait()
	if answered.Load() != 18 {
		t.Errorf("%d of 18 answered", answered.Load())
	}
	select {
	case <-d.Ended():
	case <-time.After(40 * time.Second):
		t.Fatal("still there after 40 s")
	}
	must.Succeed(t, d.Stop(0))
	t.Logf("stopped within %v", time.Since(begun))
	if strings.Contains(d.log.text(), "were cut") {
		t.Error("requests were cut")
	}

	// What hung was cut off by our own end, which is no try; nothing is leased any more.
	if bad := rows[string](t, url,
		`select id::text || ' ' || attempts || ' ' || (due_at - now()) from outbox where state = 'pending' and (attempts > 0 or due_at > now())`); len(bad) > 0 {
		t.Errorf("%d messages are still leased, such as %s", len(bad), bad[0])
	}
	if n := rows[int](t, url, `select count(*) from outbox where state = 'pending'`)[0]; n != 20 {
		t.Errorf("%d mails are pending, want 14 late and 6 waiting ones", n)
	}
	smtp.Down()
	smtp.Behave(nil)
	smtp.Up()
	next := start(t, env)
	await.True(t, "another replica sends them", func() bool {
		return rows[int](t, url, `select count(*) from outbox where state = 'sent'`)[0] == 26
	})
	seen := map[string]int{}
	for _, m := range smtp.Mails() {
		seen[m.To]++
	}
	for to, n := range seen {
		if n != 1 {
			t.Errorf("%s got %d mails", to, n)
		}
	}
	if len(seen) != 26 {
		t.Errorf("%d people got mail, want 26", len(seen))
	}
	next.want(t, 200, "GET", "/readyz", "", "")
}

package test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/testdb"
)

// All main flows through a PgBouncer in transaction mode whose two connections are shared by many people
// on two daemons, with the DATABASE_URL that docs/operations.md#pgbouncer names. It is restarted meanwhile, too.
func TestThroughPgBouncer(t *testing.T) {
	t.Parallel()
	pg := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	bouncer := testdb.PgBouncer(t, pg, "default_pool_size = 2")
	env := append(environment(bouncer.PostgresURL("postgres")+"&default_query_exec_mode=cache_describe"),
		"AUTH_DB_MAX_POOL_SIZE=8", "AUTH_SECURITY_REFRESH_TOKEN_REUSE_INTERVAL=1h", "AUTH_API_MAX_REQUEST_DURATION=30s")
	first, second := launch(t, t.TempDir(), env), launch(t, t.TempDir(), env) // both migrate
	first.awaitReady(t)
	second.awaitReady(t)
	daemons := []*instance{first, second}
	_, out, _ := command(t, env, "", "keys", "service")
	admin := strings.TrimSpace(out)
	client := newCaller(t, 60*time.Second)

	// do sends a request to one of the daemons, and repeats it while hashing is busy.
	do := func(i, status int, method, path, bearer, body string) reply {
		t.Helper()
		for {
			r, err := client.do(method, daemons[i%2].http+path, bearer, body)
			if err == nil && r.status == 503 && status != 503 && r.header.Get("Retry-After") != "" {
				time.Sleep(100 * time.Millisecond)
				continue
			}
			if err != nil || r.status != status {
				t.Errorf("%s %s: %v %d %s, want %d", method, path, err, r.status, r.text, status)
			}
			return r
		}
	}
	// code waits for the newest mail of a kind; it arrives at the mailbox of either daemon.
	code := func(to, kind string) (token string) {
		t.Helper()
		await.True(t, kind+" for "+to, func() bool {
			for _, d := range daemons {
				if found := tokenInLink.FindStringSubmatch(
					d.inbox(t, "GET", "/latest/link?to="+to+"&kind="+kind)); found != nil {
					token = found[1]
				}
			}
			return token != ""
		})
		return token
	}
	life := func(i int) {
		email := fmt.Sprintf("p%d@example.org", i)
		password := func(text string) string { return `{"email":"` + email + `","password":"` + text + `"}` }
		do(i, 200, "POST", "/signup", "", password("correct horse"))
		do(i+1, 400, "POST", "/token?grant_type=password", "", password("correct horse")) // not confirmed
		session := do(i+1, 200, "POST", "/verify", "",
			`{"type":"signup","token_hash":"`+code(email, "confirmation")+`"}`)
		user := do(i, 200, "GET", "/user", session.str("access_token"), "").str("id")
		for n := range 5 {
			session = do(i+n, 200, "POST", refreshPath, "", refreshing(session.str("refresh_token")))
		}
		do(i+1, 200, "PUT", "/user", session.str("access_token"), `{"password":"battery staple","data":{"n":1}}`)
		do(i, 400, "POST", "/token?grant_type=password", "", password("correct horse"))
		second := do(i+1, 200, "POST", "/token?grant_type=password", "", password("battery staple"))
		do(i, 200, "GET", "/user/sessions", second.str("access_token"), "")
		do(i, 200, "POST", "/recover", "", `{"email":"`+email+`"}`)
		do(i+1, 200, "POST", "/verify", "", `{"type":"recovery","token_hash":"`+code(email, "recovery")+`"}`)
		do(i, 200, "POST", "/otp", "", `{"email":"`+email+`"}`)
		do(i+1, 200, "POST", "/verify", "", `{"type":"magiclink","token_hash":"`+code(email, "magic_link")+`"}`)
		do(i, 200, "PUT", "/admin/users/"+user, admin, `{"user_metadata":{"n":2}}`)
		do(i, 200, "GET", "/admin/users?email="+email, admin, "")
		do(i+1, 204, "POST", "/logout?scope=global", second.str("access_token"), "")
		do(i, 400, "POST", refreshPath, "", refreshing(session.str("refresh_token")))
		if i%2 == 0 {
			do(i, 200, "DELETE", "/admin/users/"+user, admin, "")
			do(i+1, 404, "GET", "/admin/users/"+user, admin, "")
		}
	}
	await.Together(8, func(worker int) {
		for n := range 2 {
			life(worker + 8*n)
		}
	})
	do(0, 200, "GET", "/admin/audit", admin, "")

	// The pooler is gone for a while.
	do(0, 200, "POST", "/signup", "", `{"email":"last@example.org","password":"correct horse"}`)
	session := do(0, 200, "POST", "/verify", "",
		`{"type":"signup","token_hash":"`+code("last@example.org", "confirmation")+`"}`)
	bouncer.Kill()
	for i := range daemons {
		if r := do(i, 503, "POST", refreshPath, "",
			refreshing(session.str("refresh_token"))); r.header.Get("Retry-After") == "" {
			t.Error("503 without Retry-After")
		}
	}
	if err := bouncer.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	for i := range daemons {
		do(i, 200, "POST", refreshPath, "", refreshing(session.str("refresh_token")))
	}
	url := pg.PostgresURL("postgres")
	if n := rows[int](t, url, `select count(*) from users`)[0]; n != 9 {
		t.Errorf("%d users, want 9", n)
	}
	none(t, url, "messages left",
		`select id::text || ' ' || state || ' ' || error from outbox where state <> 'sent' and error <> 'no longer wanted'`)
	for _, d := range daemons {
		for _, sign := range []string{"SQLSTATE 42P05", "SQLSTATE 26000", "prepared statement", `"status":500`} {
			if strings.Contains(d.log.text(), sign) {
				t.Errorf("the log holds %s", sign)
			}
		}
	}
}

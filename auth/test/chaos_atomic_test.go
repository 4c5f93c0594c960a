package test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gatehouse/shared/await"
	"gatehouse/shared/fakeidp"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// A request answered with 503 or 504 has changed nothing, wherever it got stuck: one table after the other can't be
// touched, and after each failed request the whole database is what it was.
func TestFailedRequestsChangeNothing(t *testing.T) {
	t.Parallel()
	pg := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	at := pg.PostgresURL("postgres")
	tables := []string{"users", "identities", "sessions", "one_time_tokens", "flows", "outbox", "audit", "limits",
		"spent_id_tokens", "external_states"}
	idp, err := fakeidp.Start(fakeidp.Options{})
	must.Succeed(t, err)
	defer idp.Close()
	env := append(environment(at), providersAt(idp, "http://localhost:9999/callback")...)
	patient := start(t, append(env, "AUTH_DB_CLEANUP_ENABLED=false")) // with time enough to prepare
	client := newCaller(t, 30*time.Second)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	challenge := strings.Repeat("0123456789", 5)
	_, service, _ := command(t, env, "", "keys", "service")
	admin := strings.TrimSpace(service)

	type request struct{ name, method, path, bearer, body string }
	requests := map[string][]request{}
	for i, table := range tables {
		person := func(name string) string { return fmt.Sprintf("%s%d@example.org", name, i) }
		body := func(email string) string { return `{"email":"` + email + `","password":"correct horse"}` }
		ann, leaver := patient.signUp(t, person("ann")), patient.signUp(t, person("leaver"))
		patient.want(t, 200, "POST", "/signup", "", body(person("bob")))
		bob, _ := patient.mail(t, person("bob"))
		patient.want(t, 200, "POST", "/signup", "",
			`{"email":"`+person("carol")+`","password":"correct horse","code_challenge":"`+
				challenge+`","code_challenge_method":"plain"}`)
		carol, _ := patient.mail(t, person("carol"))
		r, err := client.do("GET", patient.http+"/verify?"+after(carol, "/verify?"), "", "")
		if err != nil || r.status != 303 {
			t.Fatal(err, r.status, r.text)
		}
		back, err := url.Parse(r.header.Get("Location"))
		if err != nil || back.Query().Get("code") == "" {
			t.Fatal(err, back)
		}
		user, _ := leaver.body["user"].(map[string]any)
		requests[table] = []request{
			{"sign-up", "POST", "/signup", "", body(person("new"))},
			{"verification", "POST", "/verify", "",
				`{"type":"signup","token_hash":"` + tokenInLink.FindStringSubmatch(bob)[1] + `"}`},
			{"exchange of a code", "POST", "/token?grant_type=pkce", "",
				`{"auth_code":"` + back.Query().Get("code") + `","code_verifier":"` + challenge + `"}`},
			{"refresh", "POST", refreshPath, "", refreshing(ann.str("refresh_token"))},
			{"sign-in", "POST", "/token?grant_type=password", "", body(person("ann"))},
			{"recovery", "POST", "/recover", "", `{"email":"` + person("ann") + `"}`},
			{"change of password", "PUT", "/user", ann.str("access_token"), `{"password":"battery staple"}`},
			{"change of address", "PUT", "/user", ann.str("access_token"), `{"email":"` + person("changed") + `"}`},
			{"sign-out", "POST", "/logout?scope=global", leaver.str("access_token"), ""},
			{"invitation", "POST", "/invite", admin, `{"email":"` + person("guest") + `"}`},
			{"sign-in by a provider", "POST", "/token?grant_type=id_token", "", idTokenBody(idp, person("ext"))},
			{"sign-in by a provider, linked", "POST", "/token?grant_type=id_token", "",
				idTokenBody(idp, person("ann"))},
			{"the way to a provider", "GET",
				"/user/identities/authorize?provider=github&skip_http_redirect=true&code_challenge_method=plain&code_challenge=" +
					challenge, ann.str("access_token"), ""},
			{"deletion", "DELETE", "/admin/users/" + fmt.Sprint(user["id"]), admin, ""},
		}
	}
	d := start(t, append(env, "AUTH_API_MAX_REQUEST_DURATION=200ms", "AUTH_DB_CLEANUP_ENABLED=false"))

	// The provider's document and keys, so that they aren't fetched in the little time that requests have.
	await.True(t, "the provider is known", func() bool {
		forged := strings.TrimSuffix(idTokenBody(idp, "x@example.org"), `"}`) + `x"}`
		r, err := client.do("POST", d.http+"/token?grant_type=id_token", "", forged)
		return err == nil && r.status == 400
	})

	conn := testdb.Connect(t, at)
	run := func(sql string) {
		t.Helper()
		must.Succeed(t, must.ErrOf(conn.Exec(t.Context(), sql)))
	}
	// whole is what is in the database, once all mails are sent.
	var every []string
	for _, name := range tables {
		every = append(every, `select '`+name+`', coalesce(string_agg(x::text, e'\n' order by x::text), '') from `+name+` x
			where not exists (select from outbox where state = 'pending')`)
	}
	whole := func() (state map[string]string) {
		t.Helper()
		await.True(t, "all mails are sent", func() bool {
			state = map[string]string{}
			var name, text string
			r, err := conn.Query(t.Context(), strings.Join(every, " union all "))
			must.Succeed(t, err)
			must.Succeed(t, must.ErrOf(pgx.ForEachRow(
				r, []any{&name, &text}, func() error { state[name] = text; return nil })))
			return state["users"] != ""
		})
		return state
	}
	failed := map[string]int{}
	for _, table := range tables {
		for _, q := range requests[table] {
			before := whole()
			run(`begin; lock table ` + table + ` in access exclusive mode`)
			r, err := client.do(q.method, d.http+q.path, q.bearer, q.body)
			must.Succeed(t, err)
			// No statement may get the lock after its caller got the answer.
			run(`select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity where wait_event_type = 'Lock'`)
			run(`rollback`)
			if r.status < 300 {
				continue // it has nothing to do there
			}
			failed[table]++
			if r.status != 503 && r.status != 504 {
				t.Errorf("%s with %s locked: %d %s", q.name, table, r.status, r.text)
			}
			for name, now := range whole() {
				if now != before[name] {
					t.Errorf("%s with %s locked: %d, and yet %s has changed", q.name, table, r.status, name)
				}
			}
			// A request that was answered to retry succeeds then. It goes to the other daemon: where 200 ms end just
			// when the database has committed, the answer is 504 and the next one another than the first time.
			await.True(t, q.name+" again", func() bool {
				if r, err = client.do(q.method, patient.http+q.path, q.bearer, q.body); err != nil {
					t.Fatal(err)
				}
				return r.status != 503 && r.status != 504
			})
			if r.status >= 300 {
				t.Errorf("%s after %s was locked: %d %s", q.name, table, r.status, r.text)
			}
		}
	}
	t.Logf("failed requests by locked table: %v", failed)
}

// idTokenBody is a native sign-in with an ID token of the fake's Google.
func idTokenBody(idp *fakeidp.Server, email string) string {
	u := fakeidp.Ann
	u.ID, u.Email = email, email
	return `{"provider":"google","id_token":"` + idp.IDToken("google", u, nil) + `"}`
}

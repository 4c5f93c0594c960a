package test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/shared/await"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// While the database is unreachable nothing is answered as if something were wrong with the request, and requests
// that need no database succeed. Once it is back, all works and nothing of a refused request has half happened.
func TestEndpoints_databaseUnavailable(t *testing.T) {
	t.Parallel()
	f := func(name string, away func(*localserver.Server) error, back func(*localserver.Server) error) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
			url := pg.PostgresURL("postgres")
			env := append(environment(url), "AUTH_API_MAX_REQUEST_DURATION=700ms", "AUTH_EXTERNAL_PHONE_ENABLED=true",
				"AUTH_EXTERNAL_ANONYMOUS_USERS_ENABLED=true")
			patient := start(t, environment(url)) // on a slow machine a sign-up may take longer than d allows
			session := patient.signUp(t, "ann@example.org")
			patient.want(t, 200, "POST", "/signup", "", `{"email":"bob@example.org","password":"correct horse"}`)
			link, _ := patient.mail(t, "bob@example.org")
			must.Succeed(t, patient.Stop(time.Minute))
			d := start(t, env)
			_, service, _ := command(t, env, "", "keys", "service")
			access, admin := session.str("access_token"), strings.TrimSpace(service)
			client := newCaller(t, 30*time.Second)
			client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			ask := func(method, path, bearer, body string) reply {
				t.Helper()
				r, err := client.do(method, d.http+path, bearer, body)
				if err != nil {
					t.Fatalf("%s %s: %v", method, path, err)
				}
				return r
			}
			confirm := "/verify?" + after(link, "/verify?")
			must.Succeed(t, away(pg))
			for _, path := range []string{"/health", "/livez", "/settings", "/.well-known/jwks.json", "/openapi.json"} {
				if r := ask("GET", path, "", ""); r.status != 200 {
					t.Errorf("%s: %d %s", path, r.status, r.text)
				}
			}
			refused := []struct{ method, path, bearer, body string }{
				{"POST", "/signup", "", `{"email":"new@example.org","password":"correct horse"}`},
				{"POST", "/signup", "", `{}`},
				{"POST", "/token?grant_type=password", "", `{"email":"ann@example.org","password":"correct horse"}`},
				{"POST", "/token?grant_type=password", "", `{"email":"nobody@example.org","password":"correct horse"}`},
				{"POST", "/token?grant_type=pkce", "",
					`{"auth_code":"` + strings.Repeat("0f", 32) +
						`","code_verifier":"0123456789012345678901234567890123456789012345"}`},
				{"POST", refreshPath, "", refreshing(session.str("refresh_token"))},
				{"POST", "/verify", "", `{"type":"signup","token_hash":"` + tokenInLink.FindStringSubmatch(link)[1] +
					`"}`},
				{"POST", "/verify", "", `{"type":"email","email":"bob@example.org","token":"123456"}`},
				{"POST", "/otp", "", `{"email":"ann@example.org"}`},
				{"POST", "/otp", "", `{"phone":"+15550001111"}`},
				{"POST", "/magiclink", "", `{"email":"ann@example.org"}`},
				{"POST", "/recover", "", `{"email":"ann@example.org"}`},
				{"POST", "/resend", "", `{"type":"signup","email":"bob@example.org"}`},
				{"GET", "/user", access, ""},
				{"PUT", "/user", access, `{"password":"battery staple"}`},
				{"PUT", "/user", access, `{"email":"other@example.org"}`},
				{"GET", "/user/sessions", access, ""},
				{"GET", "/reauthenticate", access, ""},
				{"POST", "/logout", access, ""},
				{"POST", "/logout?scope=local", access, ""},
				{"POST", "/invite", admin, `{"email":"guest@example.org"}`},
				{"POST", "/admin/generate_link", admin, `{"type":"magiclink","email":"ann@example.org"}`},
				{"GET", "/admin/users", admin, ""},
				{"POST", "/admin/users", admin, `{"email":"made@example.org"}`},
				{"GET", "/admin/audit", admin, ""},
			}
			var wg sync.WaitGroup
			for _, q := range refused { // at once: with a frozen database each takes all the time that it has
				wg.Go(func() {
					r, err := client.do(q.method, d.http+q.path, q.bearer, q.body)
					if err != nil || r.status != 503 && r.status != 504 || r.status == 503 &&
						r.header.Get("Retry-After") == "" || r.str("error_code") == "" {
						t.Errorf("%s %s: %v %d %s, Retry-After %q", q.method, q.path, err, r.status, r.text,
							r.header.Get("Retry-After"))
					}
				})
			}
			wg.Wait()
			// A browser is led back to the application, without an error about its link.
			if r := ask("GET", confirm, "", ""); r.status != 503 && r.status != 504 &&
				(r.status != 303 || strings.Contains(r.header.Get("Location"), "otp_expired") ||
					!strings.Contains(r.header.Get("Location"), "error=")) {
				t.Errorf("GET /verify: %d %s %s", r.status, r.header.Get("Location"), r.text)
			}
			await.True(t, "unready", func() bool { return ask("GET", "/readyz", "", "").status == 503 })
			must.Succeed(t, back(pg))
			await.True(t, "ready", func() bool { return ask("GET", "/readyz", "", "").status == 200 })

			// Nothing of it has half happened: a killed one has done nothing, a frozen one all or nothing.
			none(t, url, "users without identity",
				`select id::text from users u where not is_anonymous and not exists (select from identities where user_id = u.id)`)
			none(t, url, "tokens without mail",
				`select t.kind || ' ' || t.address from one_time_tokens t where link_hash is not null
				and not exists (select from outbox where user_id = t.user_id)`)
			// A link that is presented again works or has worked.
			var r reply
			answered := func(method, path, body string) func() bool {
				return func() bool {
					r = ask(method, path, "", body)
					return r.status != 503 && r.status != 504 // which say to try again
				}
			}
			await.True(t, "an answer to the link", answered("GET", confirm, ""))
			confirmed := rows[bool](t, url,
				`select email_confirmed_at is not null from users where email = 'bob@example.org'`)[0]
			if r.status != 303 || !confirmed {
				t.Errorf("the link afterwards: %d %s, confirmed %v", r.status, r.header.Get("Location"), confirmed)
			}
			await.True(t, "an answer to the refresh token",
				answered("POST", refreshPath, refreshing(session.str("refresh_token"))))
			ended := rows[int](t, url, `select count(*) from sessions where ended_at is not null`)[0]
			if ended == 0 && r.status != 200 {
				t.Errorf("the refresh token afterwards: %d %s", r.status, r.text)
			}
			if strings.Contains(d.log.text(), `"status":500`) {
				t.Error("an answer 500")
			}
		})
	}
	f("killed", func(s *localserver.Server) error { s.Kill(); return nil },
		func(s *localserver.Server) error { return s.Restart(context.Background()) })
	f("frozen", (*localserver.Server).Stop, (*localserver.Server).Cont)
}

// after is what follows sep in s.
func after(s, sep string) string {
	_, rest, _ := strings.Cut(s, sep)
	return rest
}

package test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// TestBrowser_console: every page and action of the admin console, in Chromium.
func TestBrowser_console(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	env := environment(url, "AUTH_CONSOLE_ADDR=127.0.0.1:0", "AUTH_MAILER_AUTOCONFIRM=true")
	d := start(t, env)
	var ready struct{ Console string }
	d.log.await(t, `"msg":"ready"`, &ready)
	if status, _, stderr := command(t, env, "correct horse\n", "admin", "create", "-confirm", "-admin",
		"boss@example.org", "-"); status != 0 {
		t.Fatal(stderr)
	}
	const markup = `<img src=x onerror=alert(1)>`
	_, service, _ := command(t, env, "", "keys", "service")
	service = strings.TrimSpace(service)
	create := func(body string) answer {
		t.Helper()
		got, err := call("POST", d.http+"/admin/users", service, body)
		if err != nil || got.status != 200 {
			t.Fatalf("%+v, %v", got, err)
		}
		return got
	}
	for i := range 60 {
		create(fmt.Sprintf(`{"email":"%02d.%s@example.org"}`, i, strings.Repeat("long-address", 4)))
	}
	create(`{"email":"mia@example.org","password":"correct horse","email_confirm":true}`)
	for range 2 {
		call("POST", d.http+"/token?grant_type=password", "", `{"email":"mia@example.org","password":"correct horse"}`)
	}
	eve := create(`{"email":"eve@example.org","user_metadata":{"full_name":"` + markup + `\u202egnp.exe"},"app_metadata":{"x":"` +
		markup + `"}}`)
	create(`{"email":"cook@example.org","password":"correct horse","email_confirm":true,"role":"service_role"}`)
	cook, key := enrolTOTP(t, d, "cook@example.org")
	exec := func(sql string) {
		t.Helper()
		db, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close(t.Context())
		must.Succeed(t, must.ErrOf(db.Exec(t.Context(), sql)))
	}
	exec(`insert into outbox (id, channel, kind, user_id, payload, state, error, due_at, expires_at, created_at, done_at)
		select gen_random_uuid(), 'email', 'password_changed_notification', id, 'x', 'failed',
			'550 no such mailbox: <img src=x onerror=alert(1)>', now(), now() + interval '1 h', now(), now()
		from users where email = 'eve@example.org'`)
	exec(`insert into sessions (id, user_id, created_at, secret_hash, refreshed_at, user_agent, ip, amr)
		select gen_random_uuid(), id, now(), '', now(), '` + markup + `', '192.0.2.1', '[]' from users
		where email = 'eve@example.org'`)
	runBrowser(t, "console.mjs", "CONSOLE="+ready.Console, "HOSTILE="+eve.body["id"].(string),
		"COOK="+cook, "TOTP="+hex.EncodeToString(key))
}

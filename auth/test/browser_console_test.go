package test

import (
	"fmt"
	"strings"
	"testing"

	"gatehouse/shared/testdb"
)

// TestBrowser_console: every page and action of the admin console, in Chromium.
func TestBrowser_console(t *testing.T) {
	t.Parallel()
	env := environment(testdb.Postgres(t), "AUTH_CONSOLE_ADDR=127.0.0.1:0", "AUTH_MAILER_AUTOCONFIRM=true")
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
	eve := create(`{"email":"eve@example.org","user_metadata":{"full_name":"` + markup + `"},"app_metadata":{"x":"` +
		markup + `"}}`)
	runBrowser(t, "console.mjs", "CONSOLE="+ready.Console, "HOSTILE="+eve.body["id"].(string))
}

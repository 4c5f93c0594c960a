package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/shared/testdb"
)

// A key that the command revokes is refused by every replica within ten seconds, without a restart, and
// people go on with their sessions; a rotated one is published by all.
func TestKeysReachReplicas(t *testing.T) {
	t.Parallel()
	env := environment(testdb.Postgres(t))
	a := start(t, env)
	replicas := []*instance{a, start(t, env)}
	session := a.signUp(t, "ann@example.org")
	keys := func(args ...string) string {
		t.Helper()
		status, out, errs := command(t, env, "", append([]string{"keys"}, args...)...)
		if status != 0 {
			t.Fatal(errs)
		}
		return out
	}
	all := func(what string, f func(*instance) bool) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			done := true
			for _, d := range replicas {
				done = f(d) && done
			}
			if done {
				return
			}
			if time.Since(began) > time.Minute { // ten seconds on a machine with nothing else to do
				t.Fatalf("not everywhere: %s", what)
			}
		}
	}
	kid := strings.Fields(strings.Split(keys("list"), "\n")[1])[0]
	keys("revoke", kid)
	all("the revoked key's token is refused", func(d *instance) bool {
		a, err := call("GET", d.http+"/user", session.str("access_token"), "")
		return err == nil && a.status == 403 && a.str("error_code") == "bad_jwt"
	})
	session = replicas[1].want(t, 200, "POST", "/token?grant_type=refresh_token", "",
		`{"refresh_token":"`+session.str("refresh_token")+`"}`)
	a.want(t, 200, "GET", "/user", session.str("access_token"), "")

	next := strings.Fields(keys("rotate"))[0]
	all("the next key is published", func(d *instance) bool {
		a, err := call("GET", d.http+"/.well-known/jwks.json", "", "")
		return err == nil && strings.Contains(a.text, next) && !strings.Contains(a.text, kid)
	})
	a.want(t, 200, "GET", "/user", session.str("access_token"), "")
}

// TestOtherJWTSecret has the secret changed as docs/tokens.md says: sessions go on, service tokens end, and of access
// tokens those that the secret signed.
func TestOtherJWTSecret(t *testing.T) {
	t.Parallel()
	f := func(algorithm string, status int) {
		t.Helper()
		env := environment(testdb.Postgres(t), "AUTH_JWT_SECRET=short", "AUTH_JWT_ALGORITHM="+algorithm)
		d := start(t, env)
		session := d.signUp(t, "ann@example.org")
		_, service, _ := command(t, env, "", "keys", "service")
		d.want(t, 200, "GET", "/admin/users", strings.TrimSpace(service), "")
		d.Stop(20 * time.Second)
		env = append(env, "AUTH_JWT_SECRET=another secret that has more than 32 bytes",
			"AUTH_SECRET_KEY=a root key that has more than 32 bytes", "AUTH_SECRET_KEYS_PREVIOUS=short")
		d = start(t, env)
		d.want(t, 403, "GET", "/admin/users", strings.TrimSpace(service), "")
		d.want(t, status, "GET", "/user", session.str("access_token"), "")
		session = d.want(t, 200, "POST", "/token?grant_type=refresh_token", "",
			`{"refresh_token":"`+session.str("refresh_token")+`"}`)
		d.want(t, 200, "GET", "/user", session.str("access_token"), "")
		_, service, _ = command(t, env, "", "keys", "service")
		d.want(t, 200, "GET", "/admin/users", strings.TrimSpace(service), "")
	}
	f("ES256", 200)
	f("HS256", 403)
}

// A port that is taken is an error, never shared.
func TestBusyPort(t *testing.T) {
	t.Parallel()
	url := testdb.Postgres(t)
	d := start(t, environment(url))
	port := d.http[strings.LastIndex(d.http, ":")+1:]
	mailbox := d.mailbox[strings.LastIndex(d.mailbox, ":")+1:]
	log := filepath.Join(t.TempDir(), "log")
	const api = "AUTH_API_HOST, AUTH_API_PORT or PORT"
	for setting, name := range map[string]string{"PORT=" + port: api, "AUTH_API_PORT=" + port: api,
		"AUTH_DEV_MAILBOX_PORT=" + mailbox: "AUTH_DEV_MAILBOX_PORT"} {
		status, _, errs := command(t, append(environment(url), setting, "AUTH_LOG_FILE="+log), "")
		if status != 1 || !strings.Contains(errs, "auth: "+name+": ") ||
			!strings.Contains(errs, "address already in use: another program has this port, set another one") {
			t.Errorf("%s: %d %s", setting, status, errs)
		}
		if b, err := os.ReadFile(log); err != nil ||
			!strings.Contains(string(b), `"msg":"the daemon ends","error":"`+name+`: `) {
			t.Errorf("%v %s", err, b)
		}
	}
}

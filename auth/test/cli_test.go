package test

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"gatehouse/shared/testdb"
)

// command runs a sub-command to its end.
func command(t testing.TB, env []string, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Dir, cmd.Env, cmd.Stdin = t.TempDir(), env, strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestSubcommands(t *testing.T) {
	t.Parallel()
	env := environment(testdb.Postgres(t))
	f := func(status int, wantOut, wantErr string, args ...string) string {
		t.Helper()
		got, out, errs := command(t, env, "correct horse\n", args...)
		if got != status || !regexp.MustCompile(wantOut).MatchString(out) ||
			!regexp.MustCompile(wantErr).MatchString(errs) {
			t.Errorf("%q: %d\n%s\n%s\nwant %d, %s, %s", args, got, out, errs, status, wantOut, wantErr)
		}
		return out
	}
	f(0, `^auth .*go1`, `^$`, "version")
	f(0, `^usage: auth `, `^$`, "help")
	f(0, `^\{\s*"openapi": "3\.1`, `^$`, "openapi")
	f(2, `^$`, `^usage: auth openapi\n`, "openapi", "now")
	f(0, `^usage: auth admin create`, `^$`, "admin", "-h")
	f(0, `^usage: auth keys list`, `^$`, "keys", "help")
	f(0, `-exp duration`, `^$`, "keys", "service", "-h")
	f(2, `^$`, `^usage: auth mail list`, "mail")
	f(2, `^$`, `^usage: auth redirect test`, "redirect", "x")
	f(2, `^$`, `-config needs a file`, "-config")
	f(2, `^$`, `there is no command "nothing"`, "nothing")
	f(2, `^$`, `^usage: auth serve \[-skip-migrations\]`, "serve", "now")
	f(2, `^$`, `usage: auth serve`, "serve", "skip-migrations")
	f(2, `^$`, `usage: auth serve`, "serve", "-skip-migration")
	f(2, `^$`, `^usage: auth migrate\n`, "migrate", "now")
	f(0, `^usage: auth migrate\n  -plan\n`, `^$`, "migrate", "-h")
	f(0, `^usage: auth serve \[-skip-migrations\]\n`, `^$`, "serve", "-h")
	f(0, `^usage: auth keys list\n$`, `^$`, "keys", "list", "--help")
	f(2, `^$`, `there is no flag "-d"`, "-d", "/etc")
	f(2, `^$`, `-config needs a file`, "-config=", "version")
	f(2, `^$`, `flag -config: needs a file`, "migrate", "-config=")
	f(2, `^$`, `-role needs a role`, "keys", "service", "-role", "")
	f(2, `^$`, `-state is pending, sent, failed or expired, not "posted"`, "mail", "list", "-state", "posted")
	f(2, `^$`, `-n is at least 1, not -5`, "mail", "list", "-n", "-5")
	f(2, `^$`, `the role is given twice`, "admin", "create", "-role", "x", "a@example.org", "correct horse", "y")
	f(2, `^$`, `the role is given twice`, "admin", "create", "-admin", "-role", "x", "a@example.org")
	f(2, `^$`, `^auth: hashing: this command hashes passwords for a running daemon, which starts it itself\n$`,
		"hashing")
	f(2, `^$`, `^auth: hashing: this command`, "hashing", "now")
	f(1, `^$`, `settings file: open /does/not/exist`, "migrate", "-c", "/does/not/exist")
	f(1, ``, `the database lacks \d+ migrations: auth migrate`, "keys", "list")
	for _, args := range [][]string{{"drop", "-yes"}, {"install", "-yes"}, {"scrub", "-sql"}, {"check"}} {
		f(1, `^$`, `^auth: mirror: schema "public" of the database has no tables of this program: does DATABASE_URL `+
			`name the daemon's database\?\n$`, append([]string{"mirror"}, args...)...)
	}
	f(0, `warn .*\d+ migrations are still to be applied`, `^$`, "check")
	f(1, `^$`, `the database lacks`, "serve", "-skip-migrations")
	f(0, `^applied [1-9]\d* migrations\n$`, `^$`, "migrate")
	f(0, `^applied 0 migrations\n$`, `^$`, "-config", "/dev/null", "migrate")
	f(0, `^applied 0 migrations\n$`, `^$`, "migrate", "--config=/dev/null")
	f(0, `(?s)ok    settings.*ok    database answers.*ok    database rights.*ok    database schema.*ok    signing keys`,
		`^$`, "check")

	f(0, `^KID +ALGORITHM +STATE`, `^$`, "keys", "list")
	f(0, `\(ES256\) is published and signs from`, `^$`, "keys", "rotate")
	out := f(0, `(?m) ES256 +current `, `^$`, "keys", "list")
	kid := strings.Fields(strings.Split(out, "\n")[1])[0]
	f(0, `(?s)is revoked\n.*ES256\) signs now`, `^$`, "keys", "revoke", kid)
	f(1, `^$`, `no such key`, "keys", "revoke", kid)
	f(1, `^$`, `no such key`, "keys", "revoke", "-CJ5Ki7QiGsPX0lhnJbT3zrlNYGkdjAvmtKrfC9mB1E")
	f(2, `^$`, `usage: auth keys revoke KID`, "keys", "revoke")
	f(0, `^[\w-]+\.[\w-]+\.[\w-]+\n$`, `^$`, "keys", "service", "-role", "anon", "-exp", "1y")
	f(1, `^$`, `-exp 1x`, "keys", "service", "-exp", "1x")

	f(0, `"role": "authenticated"`, `^$`, "admin", "create", "-confirm", "Ann@Example.org", "-")
	f(0, `(?s)"email": "ann@example.org".*"has_password": true`, `^$`, "admin", "get", "ann@example.org")
	f(1, `^$`, `already been registered`, "admin", "createuser", "ann@example.org", "correct horse")
	f(1, `^$`, `Password should be`, "admin", "create", "bob@example.org", "x")
	f(0, `"banned_until": "2`, `^$`, "admin", "ban", "ann@example.org", "24h")
	f(0, `"created_at"`, `^$`, "admin", "unban", "ann@example.org")
	f(0, `"role": "support"`, `^$`, "admin", "role", "ann@example.org", "support")
	f(0, `"has_password": true`, `^$`, "admin", "password", "ann@example.org")
	f(1, `^$`, `ban duration`, "admin", "ban", "ann@example.org", "long")
	f(0, `^deleted `, `^$`, "admin", "delete", "ann@example.org")
	f(1, `^$`, `no user ann@example.org`, "admin", "get", "ann@example.org")
	f(0, `"id"`, `^$`, "admin", "create", "dan@example.org")
	f(0, `"has_password": true`, `^$`, "admin", "create", "-confirm", "--", "cleo@example.org",
		"-correct-horse") // no flag
	f(1, `^$`, `ban duration`, "admin", "ban", "--", "cleo@example.org", "-5h")
	f(0, `^claimed [0-9a-f-]{36}: a recovery mail waits for cleo@example.org\n$`, `^$`, "admin", "claim",
		"cleo@example.org")
	f(0, `"has_password": false`, `^$`, "admin", "get", "cleo@example.org")
	f(1, `^$`, `no user nobody@example.org`, "admin", "claim", "nobody@example.org")
	f(1, `^$`, `neither an e-mail address nor an id, nor a phone number`, "admin", "get", "ann")
	f(1, `^$`, `no user \+4915112345678`, "admin", "get", "+4915112345678")
	f(0, `(?s)^ID +EMAIL .*cleo@example.org +- +authenticated `, `^more: -cursor [0-9a-f-]{36}\n$`, "admin", "list", "-n", "1")
	id := regexp.MustCompile(`[0-9a-f-]{36}`).FindString(f(0, `cleo@`, `^$`, "admin", "list", "-filter", "CLEO"))
	f(0, `^ID +EMAIL +PHONE +ROLE +CONFIRMED +LAST SIGN-IN +BANNED UNTIL\n.*dan@`, `^$`, "admin", "list", "-cursor", id)
	f(2, `^$`, `-cursor is the id of a user`, "admin", "list", "-cursor", "x")
	f(2, `^$`, `-n is 1 to 1000`, "admin", "list", "-n", "0")
	f(0, `^ID +CHANNEL`, `^$`, "mail", "list", "-state", "pending", "-n", "3")
	f(1, `^$`, `is no id`, "mail", "resend", "x")
	f(1, `^$`, `no message 00000000-0000-4000-8000-000000000000 can be sent`, "mail", "resend",
		"00000000-0000-4000-8000-000000000000")
	f(0, `^allowed  http://localhost:3000/x`, `^$`, "redirect", "test", "http://localhost:3000/x")
	f(1, `^refused  https://evil.test/ `, `1 of 1 are refused`, "redirect", "test", "https://evil.test/")
	for _, args := range []string{"openapi", "admin get cleo@example.org", "help", "keys -h", "keys list -h"} { // cut on a full disk
		cmd := exec.CommandContext(t.Context(), "sh", "-c", `exec "$0" $1 >/dev/full`, os.Args[0], args)
		cmd.Dir, cmd.Env = t.TempDir(), env
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "no space left") {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
	env = append(env, "AUTH_URI_ALLOW_LIST=https://example.com**")
	const doubt = `"https://example\.com\*\*" of the redirect list also matches hosts that anyone can register`
	f(0, `^allowed  https://example.com.evil.test`, `^warn  `+doubt, "redirect", "test",
		"https://example.com.evil.test")
	f(0, `warn  AUTH_URI_ALLOW_LIST: `+doubt, `^$`, "check")
}

// check goes on after a failure, and names each; a password in a URL is in none of its lines.
func TestCheckFails(t *testing.T) {
	t.Parallel()
	env := append(environment("postgres://someone:hunter2@127.0.0.1:1/none"), "AUTH_DEV_MAILBOX=false",
		"AUTH_SMTP_HOST=127.0.0.1", "AUTH_SMTP_PORT=1",
		"AUTH_SMTP_ADMIN_EMAIL=auth@example.org", "AUTH_SMTP_USER=u", "AUTH_SMTP_PASS=hunter2",
		"AUTH_MAILER_TEMPLATES_INVITE=http://127.0.0.1:1/invite")
	status, out, errs := command(t, env, "", "check")
	for _, want := range []string{"ok    settings", "FAIL  database answers: DATABASE_URL: ", "FAIL  SMTP server: ",
		"FAIL  mail templates: "} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	if status != 1 || !strings.Contains(errs, "3 of the checks failed") || strings.Contains(out+errs, "hunter2") {
		t.Errorf("%d\n%s\n%s", status, out, errs)
	}
	env = append(environment(testdb.Postgres(t)), "AUTH_DB_NAMESPACE=other_")
	if status, out, errs := command(t, env, "", "migrate"); status != 0 {
		t.Error(out, errs)
	}
	status, out, errs = command(t, append(env, "AUTH_SECRET_KEY=x"), "", "check") // no key yet
	if status != 0 {
		t.Errorf("%d\n%s\n%s", status, out, errs)
	}
}

// All errors in settings are reported together, with exit status 1, whatever the command.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	env := append(environment("postgres://localhost/none"), "PORT=many", "AUTH_JWT_EXP=-1", "AUTH_SITE_URL=",
		"AUTH_JWT_ALGORITM=RS256", "AUTH_SECRET_KEY=hunter2")
	for _, args := range [][]string{nil, {"serve"}, {"migrate"}, {"keys", "list"}} {
		status, _, errs := command(t, env, "", args...)
		for _, want := range []string{`3 errors`, `PORT="many"`, `AUTH_JWT_EXP="-1"`, `AUTH_SITE_URL: is required`} {
			if status != 1 || !strings.Contains(errs, want) {
				t.Errorf("%q: %d\n%s", args, status, errs)
			}
		}
	}
	status, out, _ := command(t, env, "", "check")
	if status != 1 || !strings.Contains(out, `FAIL  settings: 3 errors`) || strings.Contains(out, "hunter2") ||
		!strings.Contains(out, "did you mean AUTH_JWT_ALGORITHM?") {
		t.Errorf("%d %s", status, out)
	}
}

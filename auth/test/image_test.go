package test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/auth/internal/former/formertest"
	"gatehouse/shared/await"
	"gatehouse/shared/imagetest"
	"gatehouse/shared/localserver"
	"gatehouse/shared/must"
	"gatehouse/shared/testdb"
)

// This file runs the image: its root in a sandbox, with the command lines, environment and port that Supabase's
// compose file has for the service that this one replaces.

// supabase is the environment of its auth service, with the values of the example file.
func supabase() map[string]string {
	return map[string]string{
		"GOTRUE_API_HOST": "0.0.0.0", "GOTRUE_API_PORT": "9999", "API_EXTERNAL_URL": "http://localhost:8000",
		"GOTRUE_DB_DRIVER": "postgres",
		"GOTRUE_DB_DATABASE_URL": "postgres://supabase_auth_admin:your-super-secret-and-long-postgres-password" +
			"@db:5432/postgres",
		"GOTRUE_SITE_URL": "http://localhost:3000", "GOTRUE_URI_ALLOW_LIST": "", "GOTRUE_DISABLE_SIGNUP": "false",
		"GOTRUE_JWT_ADMIN_ROLES": "service_role", "GOTRUE_JWT_AUD": "authenticated",
		"GOTRUE_JWT_DEFAULT_GROUP_NAME": "authenticated", "GOTRUE_JWT_EXP": "3600",
		"GOTRUE_JWT_SECRET":             "your-super-secret-jwt-token-with-at-least-32-characters-long",
		"GOTRUE_EXTERNAL_EMAIL_ENABLED": "true", "GOTRUE_EXTERNAL_ANONYMOUS_USERS_ENABLED": "false",
		"GOTRUE_MAILER_AUTOCONFIRM": "false", "GOTRUE_SMTP_ADMIN_EMAIL": "admin@example.com",
		"GOTRUE_SMTP_HOST": "supabase-mail", "GOTRUE_SMTP_PORT": "2500", "GOTRUE_SMTP_USER": "fake_mail_user",
		"GOTRUE_SMTP_PASS": "fake_mail_password", "GOTRUE_SMTP_SENDER_NAME": "fake_sender",
		"GOTRUE_MAILER_URLPATHS_INVITE": "/auth/v1/verify", "GOTRUE_MAILER_URLPATHS_CONFIRMATION": "/auth/v1/verify",
		"GOTRUE_MAILER_URLPATHS_RECOVERY": "/auth/v1/verify", "GOTRUE_MAILER_URLPATHS_EMAIL_CHANGE": "/auth/v1/verify",
		"GOTRUE_EXTERNAL_PHONE_ENABLED": "true", "GOTRUE_SMS_AUTOCONFIRM": "true",
	}
}

// postgresSocket is where the server behind a DATABASE_URL of package testdb listens.
func postgresSocket(t *testing.T, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	must.Succeed(t, err)
	sockets, err := filepath.Glob(filepath.Join(u.Query().Get("host"), ".s.PGSQL.*[0-9]"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("sockets of %s: %v %v", database, sockets, err)
	}
	return sockets[0]
}

// get200 waits for an answer of 200.
func get200(t *testing.T, c *imagetest.Running, url string) {
	t.Helper()
	var status int
	var body string
	await.True(t, url, func() bool { status, body = c.Get(url); return status == 200 },
		func() string { return body + "\n" + c.Log.String() })
}

// The image of this program in Supabase's compose file: on the tables there the start is refused, on a schema of its
// own it serves, with the compose file's health check, as both users that manifests set.
func TestImage_supabase(t *testing.T) {
	t.Parallel()
	imagetest.Need(t)
	pg := testdb.PrivatePostgres(t, localserver.PostgresOptions{})
	database := pg.PostgresURL("postgres")
	formertest.CreateSchema(t, database, "auth", formertest.Newest)
	formertest.Exec(t, database, `create role supabase_auth_admin login; alter schema auth owner to supabase_auth_admin;
		alter role supabase_auth_admin set search_path = auth; grant select on all tables in schema auth to supabase_auth_admin;
		create schema gatehouse authorization supabase_auth_admin`)
	image := imagetest.New(t, "auth")
	container := imagetest.Container{Image: image, Argv: image.Argv(nil, nil), UID: 65532, Env: supabase(),
		Hosts: map[string]string{"db:5432": postgresSocket(t, database)}}
	before := imagetest.Snapshot(t, image.Root)

	refused := container.Start(t)
	refused.Await(t, `schema "auth" holds the tables of the service that this one replaces; they are neither read nor changed.`)
	<-refused.Ended()
	if err := refused.Process.Stop(0); err == nil {
		t.Error("the start on tables of the replaced service ended with 0")
	}

	// The lines that docs/deploy.md adds.
	container.Env["GOTRUE_DB_DATABASE_URL"] += "?search_path=gatehouse"
	container.Env["AUTH_JWT_ALGORITHM"] = "HS256"
	container.Env["AUTH_SECRET_KEY"] = "fedcba9876543210fedcba9876543210"
	for _, uid := range []int{65532, 65534} {
		container.UID = uid
		c := container.Start(t)
		healthy := func() bool {
			status, _ := c.Exec(t, image.Argv(nil, []string{"wget", "--no-verbose", "--tries=1", "--spider",
				"http://localhost:9999/health"})...)
			return status == 0
		}
		await.True(t, "the compose file's health check", healthy)
		get200(t, c, "http://127.0.0.1:9999/readyz")
		body := fmt.Sprintf(`{"email":"ann%d@example.org","password":"correct horse"}`, uid)
		resp, err := c.Client(time.Minute).Post("http://127.0.0.1:9999/signup", "application/json", strings.NewReader(body))
		if err != nil || resp.StatusCode != 200 {
			t.Errorf("user %d: sign-up: %v %v", uid, resp, err)
		}
		if strings.Contains(c.Log.String(), `"msg":"password: `) {
			t.Errorf("user %d: no process for hashing, which needs /proc", uid)
		}
		page, err := os.ReadFile("../docs/deploy.md")
		must.Succeed(t, err)
		atStart, _, _ := strings.Cut(c.Log.String(), `"msg":"ready"`)
		for _, w := range warned(atStart) {
			if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), w) {
				t.Errorf("docs/deploy.md does not list the warning\n%s", w)
			}
		}
		if err := c.Stop(time.Minute); err != nil {
			t.Errorf("user %d: stopping: %v", uid, err)
		}
	}
	if after := imagetest.Snapshot(t, image.Root); after != before {
		t.Errorf("files changed:\n%s\n%s", before, after)
	}
}

// What manifests and compose files name as program, and five good and five bad lines of wget.
func TestImage_commandLines(t *testing.T) {
	t.Parallel()
	imagetest.Need(t)
	image := imagetest.New(t, "auth")
	if image.User != "65532:65532" || image.Entrypoint != nil {
		t.Errorf("user %q, entrypoint %q", image.User, image.Entrypoint)
	}
	env := map[string]string{"DATABASE_URL": "postgres://postgres@db:5432/" + databaseName(t),
		"AUTH_DB_DRIVER": "postgres", "AUTH_SITE_URL": "http://localhost:3000", "AUTH_API_EXTERNAL_URL": "http://localhost:9999",
		"AUTH_JWT_SECRET": "0123456789abcdef0123456789abcdef", "AUTH_JWT_ALGORITHM": "ES256", "AUTH_DEV_MAILBOX": "true"}
	socket := postgresSocket(t, testdb.Postgres(t))
	c := imagetest.Container{Image: image, Argv: image.Argv([]string{"auth"}, nil), UID: 65532, Env: env,
		Hosts: map[string]string{"db:5432": socket}}.Start(t)
	get200(t, c, "http://127.0.0.1:8081/readyz")
	f := func(first, rest []string, status int, want string) {
		t.Helper()
		argv := image.Argv(first, rest)
		if got, out := c.Exec(t, argv...); got != status || !strings.Contains(out, want) {
			t.Errorf("%q: %d %s; want %d and %q", argv, got, out, status, want)
		}
	}
	f([]string{"gotrue", "migrate"}, nil, 0, "")          // command: of a pod
	f(nil, []string{"auth", "version"}, 0, "auth ")       // command: of a compose file
	f([]string{"/auth"}, []string{"version"}, 0, "auth ") // what the image before had
	f(nil, []string{"auth", "health"}, 0, "")
	f(nil, []string{"auth", "health", "-timeout", "20s", "http://[::1]:8081/livez"}, 0, "")
	f(nil, []string{"auth", "health", "http://127.0.0.1:8081/nothing"}, 1, "http://127.0.0.1:8081/nothing: 404 Not Found: {")
	f(nil, []string{"auth", "health", "http://127.0.0.1:1/"}, 1, "connection refused")
	f(nil, []string{"auth", "health", "http://db:5432/"}, 2, "not a page of this host")
	f(nil, []string{"auth", "health", "-timeout", "-1s"}, 2, "usage:")
	wget := func(status int, want string, args ...string) {
		t.Helper()
		f([]string{"wget"}, args, status, want)
	}
	const page = "http://localhost:8081/health"
	wget(0, "", "--no-verbose", "--tries=1", "--spider", page)
	wget(0, "", "-q", "--spider", page)
	wget(0, "", "-nv", "-t", "1", "-T", "5", "--spider", page)
	wget(0, "", page, "--quiet", "--timeout=5", "--spider")
	wget(1, "404 Not Found", "--spider", "http://127.0.0.1:8081/nothing")
	const noWget = "this is no wget: only --spider URL"
	wget(2, noWget, page)
	wget(2, noWget, "--spider")
	wget(2, noWget, "--spider", "-O", "/tmp/x", page)
	wget(2, noWget, "--spider", page, page)
	wget(2, "not a page of this host", "--spider", "http://db:5432/")
}

// databaseName creates a database and returns its name.
func databaseName(t *testing.T) string {
	t.Helper()
	u, err := url.Parse(testdb.Postgres(t))
	must.Succeed(t, err)
	return strings.TrimPrefix(u.Path, "/")
}

// The root as it is laid out: modes, links, size and others' licences.
func TestImage_root(t *testing.T) {
	t.Parallel()
	root := imagetest.New(t, "auth").Root
	imagetest.WantRoot(t, root, map[string]string{"usr/local/bin/auth": "-rwxr-xr-x", "usr/local/bin/gotrue": "auth",
		"usr/local/bin/wget": "auth", "auth": "usr/local/bin/auth"}, "auth")
	if size := imagetest.Compressed(t, root); size > 10_500_000 {
		t.Errorf("%d bytes compressed, want at most 10.5 MB", size)
	}
}
